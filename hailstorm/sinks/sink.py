"""The protocol that every sink implements.

Delivery (engine/delivery/) is the only caller, from one thread per sink: `open` once, then `deliver` in commit
order, then `close` (which may never come: the process may be killed). A sink is a value until `open`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import pyarrow as pa

from hailstorm.errors import SinkError


@dataclass(frozen=True)
class Rejected:
    """A row that the target refuses for good: its number in the commit, counted from 0, and the target's reason."""

    row: int
    reason: str


@dataclass(frozen=True)
class Cursor:
    """How far a target has been delivered to: a commit's number, and the id of the ledger whose commit it is."""

    ledger: str
    commit: int


@dataclass(frozen=True)
class Parcel:
    """What one commit has for a sink. Its rows come in pieces, because all of them may be more than memory holds.

    `pieces()` gives them from the beginning, as often as it is called, always in the same order and the same pieces.
    A `whole` parcel is a table as it is at that commit, as inserts, and not the changes since the commit before: the
    target must hold exactly these rows afterwards, where it is a table. Where it is a log of changes they are added.
    """

    commit: int
    rows: int
    pieces: Callable[[], Iterator[pa.Table]]
    whole: bool = False

    @staticmethod
    def of(commit: int, rows: pa.Table, whole: bool = False) -> Parcel:
        """In one piece."""
        return Parcel(commit, rows.num_rows, lambda: iter([rows]), whole)

    def numbered(self) -> Iterator[tuple[int, pa.Table]]:
        """Each piece with the number of its first row."""
        first = 0
        for piece in self.pieces():
            yield first, piece
            first += piece.num_rows


@runtime_checkable
class Joining(Protocol):
    """A sink that can write several commits in one transaction: under load that is cheaper, and sooner."""

    def deliver_together(self, parcels: Sequence[Parcel]) -> None:
        """As `deliver` of each, in their order, atomically together with the cursor of the last one."""


def stop_at_rejected(commit: int, rejected: Sequence[Rejected]) -> None:
    """Where nobody keeps dead letters, a rejected row stops the sink."""
    first = rejected[0]
    raise SinkError(11, f"the target does not take row {first.row} of commit {commit}: {first.reason}")


def a_tenth_of_many(commit: int, rows: int) -> int:
    """More than a tenth of at least a hundred rows is no accident."""
    return rows if rows < 100 else rows // 10


def nobody_knows() -> bool:
    """Where there is no ledger to ask, who is shut out by its target gives way."""
    return False


@dataclass(frozen=True)
class Delivery:
    """What a sink is opened with.

    `schema` holds the public columns. When `is_table`, rows are changes: they also have `_kind` and `_old`, for a
    delete the value columns are null, and `key` names the key columns (none for a table of one row).

    `known_as` is the name under which the target keeps the cursor: that of the sink, unless it was renamed.
    `ledger` is the id that the cursor must carry. `takes_over` says that somebody asked for it (`hailstorm resend`):
    the next whole parcel replaces whatever is in the target, and whoever wrote it.

    `reject(commit, rows)` makes dead letters of single rows that the target refuses; the sink goes on without them.
    It is called once per attempt, before the cursor moves, because it is durable when it returns: a crash in between
    repeats it for the same commit, and then the newer call counts. It raises when it is more than
    `most_rejected(commit, rows)` of so many rows.

    `has_ledger()` looks whether this driver still is the one that commits. For a target that shuts its writer out: it
    cannot say whether another driver is there, or it only gave up waiting for this one. It reads the ledger's store.
    """

    topology: str
    sink: str
    ledger: str
    schema: pa.Schema
    key: tuple[str, ...]
    is_table: bool
    takes_over: bool = False
    first_name: str = ""  # of a sink that was renamed
    reject: Callable[[int, Sequence[Rejected]], None] = field(default=stop_at_rejected, repr=False, compare=False)
    most_rejected: Callable[[int, int], int] = field(default=a_tenth_of_many, repr=False, compare=False)
    has_ledger: Callable[[], bool] = field(default=nobody_knows, repr=False, compare=False)

    @property
    def known_as(self) -> str:
        """The sink's name as the target remembers it."""
        return self.first_name or self.sink

    @property
    def owner(self) -> str:
        """Who writes to the target, as the target remembers it."""
        return f"{self.topology}/{self.known_as}"

    def has_got(self, cursor: Cursor | None, parcel: Parcel) -> bool:
        """Whether the target has the parcel already, as its cursor says. Another ledger's cursor is refused.

        To be asked within the target's transaction: another driver may have been there since `open`.
        """
        if cursor is None or (cursor.ledger != self.ledger and parcel.whole and self.takes_over):
            return False
        self.refuse_other_ledger(cursor)
        return cursor.commit >= parcel.commit

    def refuse_other_ledger(self, cursor: Cursor) -> None:
        if cursor.ledger != self.ledger:
            raise SinkError(
                60,
                f"the target of sink '{self.sink}' holds rows of another ledger of topology '{self.topology}'",
                hint=f"Its cursor is commit {cursor.commit} of ledger {cursor.ledger}; this is ledger {self.ledger}. "
                "Going on would mix the two.\n" + self.way_out("Name another target, or remove this one"),
            )

    def refuse_other_owner(self, owner: str, place: str) -> None:
        """A target belongs to one sink: two would overwrite each other's rows."""
        if owner != self.owner and not self.takes_over:
            raise SinkError(
                62,
                f"sink '{self.sink}' cannot write to {place}: it belongs to sink {owner}",
                hint=self.way_out("Each sink needs a target of its own: name another one"),
            )

    def lost_rows(self, place: str, what: str) -> SinkError:
        """For a target that kept its cursor and not its rows."""
        return SinkError(
            63,
            f"{place} {what}, and its cursor says that sink '{self.sink}' was delivered to it",
            hint=self.way_out("Bring the rows back"),
        )

    def foreign_rows(self, place: str) -> SinkError:
        """For a target that is to hold exactly one table, and holds rows of nobody knows whom."""
        return SinkError(
            64,
            f"{place} has rows that sink '{self.sink}' did not write, and would be replaced by the whole table",
            hint=self.way_out("Name another target, or empty this one"),
        )

    def way_out(self, otherwise: str) -> str:
        resend = f"; or let this sink's table replace what is there: hailstorm resend APP {self.sink}"
        return f"{otherwise}{resend if self.is_table else ''}."


def old_cursor(place: str) -> SinkError:
    return SinkError(
        61,
        f"the cursors in {place} were written by an older Hailstorm, and do not say of which ledger they are",
        hint="Remove them with the rows that they are about (the table or topic of the sink, and hailstorm_cursors),\n"
        "or name another target. A table is then delivered as a whole again.",
    )


@runtime_checkable
class Sink(Protocol):
    @property
    def keeps_cursor(self) -> bool:
        """Whether the sink stores the commit number together with the rows. If not, the ledger keeps the cursor in
        `cursors/<sink>` after `deliver` returns, and a crash in between delivers that commit again."""

    @property
    def forgets(self) -> bool:
        """Whether a table's rows are gone when the process ends (a screen): then each start begins with all of it."""

    def open(self, delivery: Delivery) -> None:
        """Connect and prepare (create tables). Raises TransientSinkError when trying later may help."""

    def cursor(self) -> Cursor | None:
        """The last commit that was delivered, or None. Only asked of sinks that keep their cursor."""

    def deliver(self, parcel: Parcel) -> None:
        """Write the rows of one commit, atomically with the cursor where the sink keeps it.

        May be called again for a commit that was delivered already (a crash, a retry): must not double it.
        Raises TransientSinkError when trying later may help; any other exception stops this sink.
        """

    def close(self) -> None: ...

    def resolve(self, folder: Path) -> Sink:
        """This sink with relative paths taken from `folder`, the app file's."""

    def describe(self) -> Mapping[str, Any]:
        """What identifies the target, as JSON, without secrets."""
