"""The protocol that every log implements, and the shape of a record.

A source is a log: partitions, numbered from 0, and offsets within each. The driver asks how far it is; Spark
tasks read ranges of it. A source is a value: picklable, cheap to copy, and it opens what it needs when it is
used (a task may run in another process, and the driver's copy is never closed).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from hailstorm.environment import concealed
from hailstorm.errors import LogError
from hailstorm.ledger.stores import is_folder, is_in_objects

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

    @property
    def has_time(self) -> bool:
        """Whether records have a time of their own, which is their event time unless the spout names a column."""

    def earliest(self) -> Mapping[int, int]:
        """The first offset that can still be read, by partition. Called by the driver, also while others write."""

    def latest(self) -> Mapping[int, int]:
        """The offset after the last record that a power cut cannot take back, by partition.

        New partitions may appear between two calls.
        """

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The records with start <= offset < end, in order of offset, in batches of at most 100,000 rows.

        Runs in a Spark task, possibly several times and in several processes at once; must give the same
        records every time. A range may hold fewer records than offsets (gaps); it must end all the same.
        Offsets before `earliest()` raise LogError; so does an end beyond the log's, where the log has one (`Rate`
        does not): a clock that names such an offset was formed on another log.
        """

    def size(self, partition: int, start: int, end: int) -> int | None:
        """Roughly how many bytes a range has, once it is read; None where only reading tells. Asked once per tick."""

    def resolve(self, folder: Path) -> Source:
        """This source with relative paths taken from `folder`, the app file's."""

    def describe(self) -> Mapping[str, Any]:
        """What identifies the log, as JSON, without secrets: for the graph and the fingerprint."""


@runtime_checkable
class SingleLog(Source, Protocol):
    """A source that is one log, with an id: most are. The engine keeps their rosters (`roster.OneLog`)."""

    def identity(self) -> str:
        """What tells this log from another one in the same place: made with the log, the same as long as it lives.

        Asked once per tick, and by tasks before they read.
        """

    def resolve(self, folder: Path) -> SingleLog: ...


@runtime_checkable
class LivingSource(Source, Protocol):
    """A source that knows which logs it has read: what the engine asks.

    Logs change around us: topics appear, and logs are deleted and made again. So the ledger keeps a *roster* for each
    spout (a few texts by number, opaque to the engine) in the commit, beside the clock that counts by the same numbers.
    """

    def beginning(self, first: bool) -> Mapping[int, int]:
        """Where to begin with partitions that no commit names. Asked once for each: the answer is committed.

        `first`: for a topology that starts for the first time; otherwise the partitions have appeared since, and
        nothing of them may be passed over.
        """

    def roster(self, accept: bool = False) -> Mapping[str, str]:
        """What to write into the next commit. Grows, and never changes what it had. Asked before a clock is formed.

        Raises LogError when a log is not the one that is remembered, unless the user accepts it.
        """

    def remembering(self, roster: Mapping[str, str], spout: str = "") -> LivingSource:
        """This log, with partitions numbered as the roster says. This copy is asked for offsets, and given to tasks.
        `spout` is the name for its messages, from now on.
        """

    def committed(self, offsets: Mapping[int, int]) -> None:
        """A commit was made at these offsets. For others to see; may fail without harm."""


@runtime_checkable
class Followed(Protocol):
    """A log that can be read ahead of ticks, by a worker that stays."""

    def follow(self, positions: Mapping[int, int], wake: Callable[[], None]) -> Mapping[int, int]:
        """Read on from these positions, beside ticks, and call `wake` from another thread whenever there is more.

        How far it has come by now, by partition: records before that are there for good, and a `read` of them does not
        wait. Partitions that are not named are not followed at the moment. `read` gives what it always gives.
        """


@runtime_checkable
class Gradual(Protocol):
    """A log whose `latest()` looks at so much at once, and leaves the rest to the next call: a tick must not wait."""

    def latest_of_all(self) -> Mapping[int, int]:
        """As `latest()`, with all that is there when it is called, however long the look takes. What comes meanwhile
        need not be in it."""


@runtime_checkable
class Watched(Protocol):
    """A log that is in folders, which can be watched (watching.py) by whoever waits for more."""

    def folders(self) -> list[Path]:
        """Into which something is renamed whenever there is more, or another partition. None: nobody would tell."""


def holes(source: Source, positions: Mapping[int, int]) -> dict[int, range]:
    """The offsets that were not read yet and are gone, by partition: what `--on-data-loss continue` skips and records.

    `positions` are the next offsets to read. Asks the log once.
    """
    earliest = source.earliest()
    return {p: range(start, earliest[p]) for p, start in positions.items() if start < earliest.get(p, start)}


def check_place(path: str) -> None:
    """A log that is files is in a folder or in an object store. Another address would be taken for a folder's name, and
    an empty log would be found there."""
    if is_folder(path) or is_in_objects(path):
        return
    if "@" in path:
        raise LogError(
            64,
            f"the log's address '{concealed(path)}' has a name and a password in it",
            hint="Who you are comes from the environment: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for example.",
        )
    raise LogError(
        64,
        f"'{concealed(path)}' is not the address of a log",
        hint="A log that is files is in a folder, or at s3://bucket/path, gs://bucket/path, az://container/path.",
    )


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
