"""A step of a topology: a frozen value that names its inputs and remembers the user's line. It runs nothing.

What others must know of a kind of step it says itself, here: whoever asks goes by these words, and never by the class.
What is not said has a default. The kinds are in ends.py (spouts, sinks), stateless.py, stateful.py and two_sided.py;
`Topology` (topology.py) makes them, `engine/plan/compiler.py` compiles them.
A table step (`is_table`) has a key: what flows out of it are changes, with `_kind` and `_old` beside its columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from hailstorm.errors import Location
from hailstorm.topology.schema import Schema

OnError = Literal["dead-letter", "fail", "skip"]
# What a step has of a table that had rows before it was there: what `changes` from then on, the `whole` table, which is
# brought to it (engine/ticks/beginning.py), or what it `finds` by itself.
OfOldTables = Literal["changes", "whole", "finds"]

CAME_LATE = "which rows came late"
NEWEST_IS_LAST = "without event times the row that came last is the newest"


@dataclass(frozen=True)
class Past:
    """What came up to some moment, as far as where ticks were cut may matter to a step."""

    came_late: bool  # whether any row has
    timeless: int  # how many partitions give it rows without an event time: each has an order of its own


@dataclass(frozen=True)
class Step:
    name: str
    at: Location
    inputs: tuple[str, ...]
    schema: Schema
    key: tuple[str, ...] = ()
    # True when changes flow out. Said apart from the key, because the table of a global fold has an empty one.
    is_table: bool = False
    # What it was called in an earlier run: its state goes on under the new name (engine/ticks/renaming.py).
    renamed_from: str | None = None

    kind: ClassVar[str] = "step"
    # Whether it remembers rows from one tick to the next.
    keeps_state: ClassVar[bool] = False
    # Whether others can read rows of it.
    gives_rows: ClassVar[bool] = True
    # Whether the records or rows that it refuses can be read as a stream: `stream.errors`.
    gives_errors: ClassVar[bool] = False
    # Whether it runs code of the user's: what it refused may pass when that is fixed, so it can be tried again.
    can_retry: ClassVar[bool] = False
    has_of_old_tables: ClassVar[OfOldTables] = "changes"
    # Whether it finds the rows of tables by their key, and so need not see each change to know who made a row.
    asks_tables: ClassVar[bool] = False
    # Whether over a table it keeps the times of rows, where a step below it reads them (times.py).
    keeps_times: ClassVar[bool] = False
    # What a value of its state is called that is not of the type that was kept, and what a new value begins with.
    retyped_value: ClassVar[str] = "another value"
    new_value: ClassVar[str] = "null"
    # The field that holds what is outside of the topology: that one describes itself.
    outside: ClassVar[str] = ""
    # The fields that are no part of what it does: where it stands, and what it is called.
    not_identity: ClassVar[frozenset[str]] = frozenset({"at", "name", "renamed_from"})

    @property
    def needs_word(self) -> bool:
        """Whether a change of it needs a word of its owner: its old state may not mean what its new code says."""
        return self.keeps_state

    @property
    def is_end(self) -> bool:
        """Whether it is of use when nothing reads it."""
        return self.is_table and self.keeps_state

    @property
    def clocked_by(self) -> tuple[str, ...]:
        """The inputs whose watermarks make its own."""
        return self.inputs

    @property
    def late_schema(self) -> Schema | None:
        """The columns of the rows that come too late for it; None where no row can."""
        return None

    @property
    def value_types(self) -> Mapping[str, str]:
        """Its values whose type, or monoid, must stay: what was kept as one is not read as another."""
        return {}

    @property
    def made_of(self) -> tuple[str, ...]:
        """The inputs whose rows become its own, one by one."""
        return self.inputs

    @property
    def misses_late(self) -> bool:
        """Whether what is made of it may lack rows that came too late for it."""
        return False

    @property
    def has_keys_of_input(self) -> bool:
        """Whether its rows have the keys of its input's, one to one."""
        return False

    @property
    def found_by_key(self) -> bool:
        """Whether the rows that it gives are those of a key of its state."""
        return self.is_table

    @property
    def state_key(self) -> tuple[str, ...]:
        """What its state is kept by, where it has any."""
        return self.key

    @property
    def holds(self) -> bool:
        """Whether it keeps rows until their time has come, so that what is below it must wait, too."""
        return False

    @property
    def behind_us(self) -> int:
        """How far behind the watermark with which it leaves the step a row can be, in microseconds."""
        return 0

    @property
    def goes_by_time(self) -> bool:
        """Whether what it does with a row depends on when the row happened."""
        return False

    @property
    def reads_times(self) -> bool:
        """Whether it must be told when the time of a table's row moved, and no value did."""
        return False

    @property
    def has_own_times(self) -> bool:
        """Whether it says itself when its rows happened, whatever those that it gets say."""
        return False

    @property
    def title(self) -> str:
        """Its kind, with what a reader most wants to know of it."""
        return self.kind

    @property
    def gathering(self) -> str:
        """How rows reach it, as a grouping is written; `local`: they stay where they are."""
        return "local"

    def depends_on_cut(self, past: Past) -> str:
        """Why its state, or its rows, depend on where ticks were cut; empty where they do not."""
        return ""


def gathered(by: tuple[str, ...]) -> str:
    """Rows with equal values meet; without any columns, all do."""
    return f"fields({', '.join(by)})" if by else "one()"
