"""The steps that bring two inputs together: joins of streams, joins of tables, and look-ups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from hailstorm.topology.schema import Schema
from hailstorm.topology.step import CAME_LATE, OfOldTables, Past, Step


@dataclass(frozen=True, kw_only=True)
class TwoSided(Step):
    """What reads a left and a right side, and brings together the rows that are equal in `on`.

    `names` says what the other columns of the right are called in the result.
    """

    keeps_state: ClassVar[bool] = True
    asks_tables: ClassVar[bool] = True
    on: tuple[tuple[str, str], ...]
    names: Mapping[str, str]
    how: str


@dataclass(frozen=True, kw_only=True)
class Join(TwoSided):
    """Pairs of rows of two streams: the right one at most `before_us` before the left one, or `after_us` after it.

    One of the two may be negative: then the right row is always after the left one, or always before it.
    """

    kind: ClassVar[str] = "join"
    before_us: int
    after_us: int
    both: Schema  # the columns of both sides, which a semi or anti join does not show

    @property
    def goes_by_time(self) -> bool:
        return True

    @property
    def holds(self) -> bool:
        """Rows of an inner join come out when the second one of a pair comes; others may wait for their bound."""
        return self.how != "inner"

    @property
    def behind_us(self) -> int:
        """Each row of a pair is open when they meet, so that the later one is within the shorter bound. Other rows have
        their own times: those of the left within what may come after them, those of the right within the other bound.
        """
        bounds = {
            "inner": min(self.before_us, self.after_us),
            "right": self.before_us,
            "full": max(self.before_us, self.after_us),
        }
        return max(bounds.get(self.how, self.after_us), 0)

    @property
    def late_schema(self) -> Schema:
        return self.both

    def depends_on_cut(self, past: Past) -> str:
        return CAME_LATE if past.came_late else ""


@dataclass(frozen=True, kw_only=True)
class TableJoin(TwoSided):
    """A view of two tables: on both keys, or from columns of the left (`foreign`) to the key of the right."""

    kind: ClassVar[str] = "join"
    has_of_old_tables: ClassVar[OfOldTables] = "whole"
    foreign: bool


@dataclass(frozen=True, kw_only=True)
class Lookup(TwoSided):
    """The rows of a stream with what a table has for them: now, or (`by_time`) at the time of the row."""

    kind: ClassVar[str] = "lookup"
    has_of_old_tables: ClassVar[OfOldTables] = "whole"
    by_time: bool
    rows: Schema  # the columns of the stream

    @property
    def of_everyone(self) -> bool:
        """Whether each row is paired with the whole table."""
        return not self.on

    @property
    def title(self) -> str:
        return "lookup of every row" if self.of_everyone else self.kind

    @property
    def clocked_by(self) -> tuple[str, ...]:
        """The newest row of a table is there at any time."""
        return self.inputs if self.by_time else self.inputs[:1]

    @property
    def made_of(self) -> tuple[str, ...]:
        return self.inputs[:1]

    @property
    def goes_by_time(self) -> bool:
        return self.by_time

    @property
    def holds(self) -> bool:
        return self.by_time

    @property
    def late_schema(self) -> Schema | None:
        return self.rows if self.by_time else None

    def depends_on_cut(self, past: Past) -> str:
        if not self.by_time:
            return "rows meet the table as it was after their tick"
        return CAME_LATE if past.came_late else ""
