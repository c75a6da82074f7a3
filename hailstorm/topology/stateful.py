"""The steps of one input that keep state: folds, tops, tables of streams, processes, `distinct` and `ordered`.

Those of two inputs are in two_sided.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from hailstorm.algebra.monoid import AnyMonoid, name_of
from hailstorm.clock.windows import Closing, Windows
from hailstorm.topology.arrow_types import spark_name
from hailstorm.topology.process import Process as AnyProcess
from hailstorm.topology.process import has_timers
from hailstorm.topology.schema import Schema
from hailstorm.topology.step import CAME_LATE, NEWEST_IS_LAST, OfOldTables, OnError, Past, Step, gathered

if TYPE_CHECKING:
    from hailstorm.topology.state_fields import StateField


@dataclass(frozen=True, kw_only=True)
class Fold(Step):
    """A keyed (or, with an empty `key`, global) step whose state is a product of monoids."""

    kind: ClassVar[str] = "fold"
    keeps_state: ClassVar[bool] = True
    has_of_old_tables: ClassVar[OfOldTables] = "whole"
    keeps_times: ClassVar[bool] = True
    retyped_value: ClassVar[str] = "another monoid"
    monoids: Mapping[str, AnyMonoid]
    ttl_us: int | None = None  # a key that was not updated for so long in event time is deleted

    @property
    def value_types(self) -> Mapping[str, str]:
        return {name: name_of(monoid) for name, monoid in self.monoids.items()}

    @property
    def reads_times(self) -> bool:
        return any(monoid.reads_time for monoid in self.monoids.values())

    @property
    def goes_by_time(self) -> bool:
        return self.ttl_us is not None or self.reads_times

    @property
    def title(self) -> str:
        return f"fold by {', '.join(self.key)}" if self.key else "fold of all"

    @property
    def gathering(self) -> str:
        return gathered(self.key)

    def depends_on_cut(self, past: Past) -> str:
        return "when a key was not updated for its ttl" if self.ttl_us is not None else ""


@dataclass(frozen=True, kw_only=True)
class WindowedFold(Fold):
    """A fold by key and window. Its key ends with `window_start` and `window_end`."""

    not_identity: ClassVar[frozenset[str]] = Fold.not_identity | {"source_schema"}
    windows: Windows | None  # None: sessions
    gap: int  # of sessions, in microseconds
    closing: Closing
    source_schema: Schema  # what late rows look like

    @property
    def late_schema(self) -> Schema:
        return self.source_schema

    @property
    def reads_times(self) -> bool:
        return True

    @property
    def misses_late(self) -> bool:
        return True

    @property
    def holds(self) -> bool:
        return self.closing.emit == "final"

    def depends_on_cut(self, past: Past) -> str:
        if self.windows is None and (self.closing.late != "correct" or self.closing.keep < self.gap):
            return "which rows meet a session before it is closed"
        if past.came_late and self.closing.late != "correct":
            return CAME_LATE
        return super().depends_on_cut(past)


@dataclass(frozen=True, kw_only=True)
class Top(Step):
    """The n first rows of a table by an expression, largest first; its columns are the table's and `rank`."""

    kind: ClassVar[str] = "top"
    keeps_state: ClassVar[bool] = True
    has_of_old_tables: ClassVar[OfOldTables] = "finds"
    asks_tables: ClassVar[bool] = True
    n: int
    by: str
    per: tuple[str, ...] = ()  # of each group; none: of the whole table

    @property
    def has_keys_of_input(self) -> bool:
        return True

    @property
    def title(self) -> str:
        return f"top {self.n} by {self.by}" + (f" per {', '.join(self.per)}" if self.per else "")

    @property
    def gathering(self) -> str:
        return gathered(self.per)


@dataclass(frozen=True, kw_only=True)
class Newest(Step):
    """A stream as a table: the newest row of each key. Rows for which `deletes` is true remove their key."""

    kind: ClassVar[str] = "table"
    keeps_state: ClassVar[bool] = True
    time: str | None  # the column that says since when a row is true; None: its event time
    deletes: str | None

    @property
    def goes_by_time(self) -> bool:
        return self.time is None

    @property
    def has_own_times(self) -> bool:
        return self.time is not None

    def depends_on_cut(self, past: Past) -> str:
        return NEWEST_IS_LAST if past.timeless > 1 else ""


@dataclass(frozen=True, kw_only=True)
class KeyedStream(Step):
    """What decides row by row, by what it keeps of their key, and gives a stream."""

    keeps_state: ClassVar[bool] = True
    by: tuple[str, ...]

    @property
    def state_key(self) -> tuple[str, ...]:
        return self.by

    @property
    def goes_by_time(self) -> bool:
        return True

    @property
    def title(self) -> str:
        return f"{self.kind} by {', '.join(self.by)}"

    @property
    def gathering(self) -> str:
        return gathered(self.by)


@dataclass(frozen=True, kw_only=True)
class Process(KeyedStream):
    """A user's class over the events and timers of each key. Its own rows are those of `returns`."""

    kind: ClassVar[str] = "process"
    can_retry: ClassVar[bool] = True
    retyped_value: ClassVar[str] = "a field of another type"
    new_value: ClassVar[str] = "its default"
    using: type[AnyProcess]
    fields: tuple[StateField, ...]
    methods: tuple[Callable[..., Any], ...]  # of the state class
    outputs: Mapping[str, Schema]
    on_error: ClassVar[OnError] = "dead-letter"

    @property
    def needs_word(self) -> bool:
        """Its code may change: what is kept are its fields, and those have names and types."""
        return False

    @property
    def is_end(self) -> bool:
        return True

    @property
    def found_by_key(self) -> bool:
        return True

    @property
    def value_types(self) -> Mapping[str, str]:
        return {field.name: spark_name(field.column.type) for field in self.fields}

    @property
    def holds(self) -> bool:
        """What a timer gives has the timer's time."""
        return has_timers(self.using)

    def depends_on_cut(self, past: Past) -> str:
        return "a process sees the rows of each tick in their order"


@dataclass(frozen=True, kw_only=True)
class Distinct(KeyedStream):
    """The first row of a key, and then none for so long in event time."""

    kind: ClassVar[str] = "distinct"
    within_us: int

    @property
    def late_schema(self) -> Schema:
        return self.schema

    def depends_on_cut(self, past: Past) -> str:
        return "of two rows the one that came in an earlier tick is the first"


@dataclass(frozen=True, kw_only=True)
class Ordered(Step):
    """Rows in the order of event time, each when the watermark has reached it."""

    kind: ClassVar[str] = "ordered"
    keeps_state: ClassVar[bool] = True

    @property
    def goes_by_time(self) -> bool:
        return True

    @property
    def holds(self) -> bool:
        return True

    @property
    def late_schema(self) -> Schema:
        return self.schema

    @property
    def gathering(self) -> str:
        return gathered(())

    def depends_on_cut(self, past: Past) -> str:
        return CAME_LATE if past.came_late else ""
