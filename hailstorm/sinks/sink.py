"""The protocol that every sink implements.

Delivery (engine/delivery.py) is the only caller, from one thread per sink: `open` once, then `deliver` in commit
order, then `close` (which may never come: the process may be killed). A sink is a value until `open`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from hailstorm.errors import SinkError

KIND = "_kind"  # insert, update or delete: only in what comes from a table
OLD = "_old"  # the values before the change, as a struct; null for an insert


@dataclass(frozen=True)
class Rejected:
    """A row that the target refuses for good: its number in the commit, counted from 0, and the target's reason."""

    row: int
    reason: str


def stop_at_rejected(commit: int, rejected: Sequence[Rejected]) -> None:
    """Where nobody keeps dead letters, a rejected row stops the sink."""
    first = rejected[0]
    raise SinkError(11, f"the target does not take row {first.row} of commit {commit}: {first.reason}")


def a_tenth_of_many(commit: int, rows: int) -> int:
    """More than a tenth of at least a hundred rows is no accident."""
    return rows if rows < 100 else rows // 10


@dataclass(frozen=True)
class Delivery:
    """What a sink is opened with.

    `schema` holds the public columns. `key` names the key columns when a table is delivered: then batches also
    have `_kind` and `_old`, and for a delete the value columns are null. `key` is empty for a stream of rows.

    `reject(commit, rows)` makes dead letters of single rows that the target refuses; the sink goes on without them.
    It is called once per attempt, before the cursor moves, because it is durable when it returns: a crash in between
    repeats it for the same commit, and then the newer call counts. It raises when it is more than
    `most_rejected(commit, rows)` of so many rows.
    """

    topology: str
    sink: str
    schema: pa.Schema
    key: tuple[str, ...]
    reject: Callable[[int, Sequence[Rejected]], None] = field(default=stop_at_rejected, repr=False, compare=False)
    most_rejected: Callable[[int, int], int] = field(default=a_tenth_of_many, repr=False, compare=False)


@runtime_checkable
class Sink(Protocol):
    @property
    def keeps_cursor(self) -> bool:
        """Whether the sink stores the commit number together with the rows. If not, the ledger keeps the cursor in
        `cursors/<sink>.json` after `deliver` returns, and a crash in between delivers that commit again."""

    def open(self, delivery: Delivery) -> None:
        """Connect and prepare (create tables). Raises TransientSinkError when trying later may help."""

    def cursor(self) -> int | None:
        """The last commit that was delivered, or None. Only asked of sinks that keep their cursor."""

    def deliver(self, commit: int, rows: pa.Table) -> None:
        """Write the rows of one commit, atomically with the cursor where the sink keeps it.

        May be called again for a commit that was delivered already (a crash, a retry): must not double it.
        Raises TransientSinkError when trying later may help; any other exception stops this sink.
        """

    def close(self) -> None: ...

    def resolve(self, folder: Path) -> Sink:
        """This sink with relative paths taken from `folder`, the app file's."""

    def describe(self) -> Mapping[str, Any]:
        """What identifies the target, as JSON, without secrets."""
