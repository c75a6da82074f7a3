"""The protocol that every log implements, and the shape of a record.

A source is a log: partitions, numbered from 0, and offsets within each. The driver asks how far it is; Spark
tasks read ranges of it. A source is a value: picklable, cheap to copy, and it opens what it needs when it is
used (a task may run in another process, and the driver's copy is never closed).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from hailstorm.errors import LogError

# What `read` yields for a log of bytes. A decoder turns `value` into columns.
RECORD = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)

BATCH_ROWS = 100_000  # what `read` yields at once, at most


@runtime_checkable
class Source(Protocol):
    @property
    def columns(self) -> str | None:
        """The schema (DDL) of rows that need no decoding, or None for a log of bytes.

        With columns, `read` yields `offset`, `time` and these columns instead of key and value.
        """

    def earliest(self) -> Mapping[int, int]:
        """The first offset that can still be read, by partition. Called by the driver, also while others write."""

    def latest(self) -> Mapping[int, int]:
        """The offset after the last record, by partition. New partitions may appear between two calls."""

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The records with start <= offset < end, in order of offset, in batches of at most 100,000 rows.

        Runs in a Spark task, possibly several times and in several processes at once; must give the same
        records every time. A range may hold fewer records than offsets (gaps); it must end all the same.
        Offsets before `earliest()` raise LogError; so does an end beyond the log's, where the log has one (`Rate`
        does not): a clock that names such an offset was formed on another log.
        """

    def resolve(self, folder: Path) -> Source:
        """This source with relative paths taken from `folder`, the app file's."""

    def describe(self) -> Mapping[str, Any]:
        """What identifies the log, as JSON, without secrets: for the graph and the fingerprint."""


@runtime_checkable
class LivingSource(Source, Protocol):
    """What a log of a system of its own can do beyond a source. The negotiator asks with `isinstance`.

    Such a log changes around us: topics appear, are deleted and made again. So the ledger keeps a *roster* of it (a
    few texts by number, opaque to the engine) in the commit, beside the clock that counts by the same numbers.
    """

    def beginning(self, known: Mapping[int, int]) -> Mapping[int, int]:
        """Where to begin, by partition, for a topology whose last clock is `known` (empty: it has read nothing)."""

    def roster(self, accept_new: bool = False) -> Mapping[str, str]:
        """What to write into the next commit. Grows, and never changes what it had. Asked before a clock is formed.

        Raises LogError when the log is not the one that is remembered, unless the user accepts the loss.
        """

    def remembering(self, roster: Mapping[str, str]) -> LivingSource:
        """This log, with partitions numbered as the roster says. This copy is asked for offsets, and given to tasks."""

    def committed(self, offsets: Mapping[int, int]) -> None:
        """A commit was made at these offsets. For others to see; may fail without harm."""


def holes(source: Source, positions: Mapping[int, int]) -> dict[int, range]:
    """The offsets that were not read yet and are gone, by partition: what `--on-data-loss continue` skips and records.

    `positions` are the next offsets to read. Asks the log once.
    """
    earliest = source.earliest()
    return {p: range(start, earliest[p]) for p, start in positions.items() if start < earliest.get(p, start)}


def check_range(log: str, partition: int, start: int, end: int, earliest: int, latest: int) -> None:
    """Raise LogError when a range asks for records that are gone, or that never were."""
    if start < earliest:
        raise LogError(
            4,
            f"{log} no longer has the offsets {start} to {min(end, earliest) - 1} of partition {partition}",
            hint=f"Retention removed them: it now begins at {earliest}.\n"
            "To go on without them, and have the hole in the ledger: --on-data-loss continue",
        )
    if end > latest:
        raise LogError(
            5,
            f"{log} has no offsets {max(start, latest)} to {end - 1} in partition {partition}: it ends at {latest}",
            hint="They were there when the clock was formed, so the log was replaced or restored from an old copy.",
        )
