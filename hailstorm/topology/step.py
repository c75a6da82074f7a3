"""The steps of a topology: frozen values that name their inputs and remember the user's line.

`Topology` (topology.py) makes them, `engine/plan/plan.py` compiles them; nothing here runs anything.
A table step (`is_table`) has a key: what flows out of it are changes, with `_kind` and `_old` beside its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from hailstorm.algebra.monoid import AnyMonoid
from hailstorm.clock.windows import Closing, Windows
from hailstorm.errors import Location
from hailstorm.topology.groupings import Grouping
from hailstorm.topology.process import Process as AnyProcess
from hailstorm.topology.process import has_timers
from hailstorm.topology.schema import Schema

if TYPE_CHECKING:
    from hailstorm.sinks.sink import Sink as AnySink
    from hailstorm.spouts.source import Source
    from hailstorm.topology.state_fields import StateField

OnError = Literal["dead-letter", "fail", "skip"]
# The name of a decoder, or a function from the bytes of a record to a row, rows or None.
Decode = str | Callable[[bytes], Mapping[str, object] | Iterable[Mapping[str, object]] | None]
DeliveryMode = Literal["exactly-once", "at-least-once", "at-most-once"]

_CAME_LATE = "which rows came late"


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
    # Whether it remembers rows from one tick to the next: then a change of it needs a word.
    keeps_state: ClassVar[bool] = False
    # Whether the records or rows that it refuses can be read as a stream: `stream.errors`.
    gives_errors: ClassVar[bool] = False
    # What it has of a table that had rows before it was there: what `changes` from then on, the `whole` table, which is
    # brought to it (engine/ticks/beginning.py), or what it `finds` by itself.
    has_of_old_tables: ClassVar[Literal["changes", "whole", "finds"]] = "changes"

    @property
    def clocked_by(self) -> tuple[str, ...]:
        """The inputs whose watermarks make its own."""
        return self.inputs

    @property
    def late_schema(self) -> Schema | None:
        """The columns of the rows that come too late for it; None where no row can."""
        return None

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

    def depends_on_cut(self, came_late: bool) -> str:
        """Why its state, or its rows, depend on where ticks were cut; empty where they do not.

        `came_late`: whether any row has, up to the moment in question.
        """
        return ""


@dataclass(frozen=True, kw_only=True)
class Spout(Step):
    kind: ClassVar[str] = "spout"
    gives_errors: ClassVar[bool] = True
    source: Source
    decode: Decode
    event_time: str | None
    lateness_ms: int
    idle_ms: int | None
    max_ahead_ms: int
    on_error: OnError

    @property
    def decoded(self) -> Schema:
        """The columns of its records."""
        return self.schema

    @property
    def has_time(self) -> bool:
        """Whether its records say when they happened."""
        return self.event_time is not None or self.source.has_time


@dataclass(frozen=True, kw_only=True)
class SourceTable(Spout):
    """A log that is a table: the newest record of each key. Records for which `deletes` is true remove their key."""

    kind: ClassVar[str] = "table"
    keeps_state: ClassVar[bool] = True
    gives_errors: ClassVar[bool] = False
    records: Schema  # the columns in the order in which records hold them
    deletes: str | None

    @property
    def decoded(self) -> Schema:
        return self.records


@dataclass(frozen=True, kw_only=True)
class Calling(Step):
    """What calls a user's function, and keeps nothing."""

    gives_errors: ClassVar[bool] = True
    function: Callable[..., Any]
    grouping: Grouping | None
    on_error: OnError
    event_time: str | None = None  # the column that says when a row of it happened; None: as the row that it got

    @property
    def has_own_times(self) -> bool:
        return self.event_time is not None

    @property
    def title(self) -> str:
        return self.kind if self.grouping is None else f"{self.kind} {self.grouping}"

    @property
    def gathering(self) -> str:
        return "local" if self.grouping is None else str(self.grouping)


@dataclass(frozen=True, kw_only=True)
class Bolt(Calling):
    """A Python function over rows: returns or yields dicts, or None."""

    kind: ClassVar[str] = "bolt"


@dataclass(frozen=True, kw_only=True)
class ArrowBolt(Calling):
    """A function over Arrow record batches: batch -> batch, table or an iterable of batches."""

    kind: ClassVar[str] = "arrow"


@dataclass(frozen=True, kw_only=True)
class Sql(Step):
    kind: ClassVar[str] = "sql"
    query: str


@dataclass(frozen=True, kw_only=True)
class Where(Step):
    kind: ClassVar[str] = "where"
    predicate: str


@dataclass(frozen=True, kw_only=True)
class Select(Step):
    """Columns as SQL expressions. On a table the key columns stay, whether or not they are named."""

    kind: ClassVar[str] = "select"
    expressions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Union(Step):
    kind: ClassVar[str] = "union"


@dataclass(frozen=True, kw_only=True)
class Output(Step):
    """One of the named outputs of a step beside its own rows: `hourly.late`."""

    kind: ClassVar[str] = "output"


@dataclass(frozen=True, kw_only=True)
class Fold(Step):
    """A keyed (or, with an empty `key`, global) step whose state is a product of monoids."""

    kind: ClassVar[str] = "fold"
    keeps_state: ClassVar[bool] = True
    has_of_old_tables: ClassVar[Literal["changes", "whole", "finds"]] = "whole"
    monoids: Mapping[str, AnyMonoid]
    ttl_us: int | None = None  # a key that was not updated for so long in event time is deleted

    @property
    def goes_by_time(self) -> bool:
        return self.ttl_us is not None or any(monoid.reads_time for monoid in self.monoids.values())

    @property
    def title(self) -> str:
        return f"fold by {', '.join(self.key)}" if self.key else "fold of all"

    @property
    def gathering(self) -> str:
        return _gathered(self.key)

    def depends_on_cut(self, came_late: bool) -> str:
        return "when a key was not updated for its ttl" if self.ttl_us is not None else ""


@dataclass(frozen=True, kw_only=True)
class WindowedFold(Fold):
    """A fold by key and window. Its key ends with `window_start` and `window_end`."""

    windows: Windows | None  # None: sessions
    gap: int  # of sessions, in microseconds
    closing: Closing
    source_schema: Schema  # what late rows look like

    @property
    def late_schema(self) -> Schema:
        return self.source_schema

    @property
    def goes_by_time(self) -> bool:
        return True

    @property
    def holds(self) -> bool:
        return self.closing.emit == "final"

    def depends_on_cut(self, came_late: bool) -> str:
        if self.windows is None and (self.closing.late != "correct" or self.closing.keep < self.gap):
            return "which rows meet a session before it is closed"
        if came_late and self.closing.late != "correct":
            return _CAME_LATE
        return super().depends_on_cut(came_late)


@dataclass(frozen=True, kw_only=True)
class Top(Step):
    """The n first rows of a table by an expression, largest first; its columns are the table's and `rank`."""

    kind: ClassVar[str] = "top"
    keeps_state: ClassVar[bool] = True
    has_of_old_tables: ClassVar[Literal["changes", "whole", "finds"]] = "finds"
    n: int
    by: str
    per: tuple[str, ...] = ()  # of each group; none: of the whole table

    @property
    def title(self) -> str:
        return f"top {self.n} by {self.by}" + (f" per {', '.join(self.per)}" if self.per else "")

    @property
    def gathering(self) -> str:
        return _gathered(self.per)


@dataclass(frozen=True, kw_only=True)
class Process(Step):
    """A user's class over the events and timers of each key. Its own rows are those of `returns`."""

    kind: ClassVar[str] = "process"
    by: tuple[str, ...]
    using: type[AnyProcess]
    fields: tuple[StateField, ...]
    methods: tuple[Callable[..., Any], ...]  # of the state class
    outputs: Mapping[str, Schema]
    on_error: ClassVar[OnError] = "dead-letter"

    @property
    def state_key(self) -> tuple[str, ...]:
        return self.by

    @property
    def goes_by_time(self) -> bool:
        return True

    @property
    def holds(self) -> bool:
        """What a timer gives has the timer's time."""
        return has_timers(self.using)

    @property
    def title(self) -> str:
        return f"process by {', '.join(self.by)}"

    @property
    def gathering(self) -> str:
        return _gathered(self.by)

    def depends_on_cut(self, came_late: bool) -> str:
        return "a process sees the rows of each tick in their order"


@dataclass(frozen=True, kw_only=True)
class Distinct(Step):
    """The first row of a key, and then none for so long in event time."""

    kind: ClassVar[str] = "distinct"
    keeps_state: ClassVar[bool] = True
    by: tuple[str, ...]
    within_us: int

    @property
    def state_key(self) -> tuple[str, ...]:
        return self.by

    @property
    def goes_by_time(self) -> bool:
        return True

    @property
    def late_schema(self) -> Schema:
        return self.schema

    @property
    def title(self) -> str:
        return f"distinct by {', '.join(self.by)}"

    @property
    def gathering(self) -> str:
        return _gathered(self.by)

    def depends_on_cut(self, came_late: bool) -> str:
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
        return _gathered(())

    def depends_on_cut(self, came_late: bool) -> str:
        return _CAME_LATE if came_late else ""


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


@dataclass(frozen=True, kw_only=True)
class TwoSided(Step):
    """What reads a left and a right side, and brings together the rows that are equal in `on`.

    `names` says what the other columns of the right are called in the result.
    """

    keeps_state: ClassVar[bool] = True
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

    def depends_on_cut(self, came_late: bool) -> str:
        return _CAME_LATE if came_late else ""


@dataclass(frozen=True, kw_only=True)
class TableJoin(TwoSided):
    """A view of two tables: on both keys, or from columns of the left (`foreign`) to the key of the right."""

    kind: ClassVar[str] = "join"
    has_of_old_tables: ClassVar[Literal["changes", "whole", "finds"]] = "whole"
    foreign: bool


@dataclass(frozen=True, kw_only=True)
class Lookup(TwoSided):
    """The rows of a stream with what a table has for them: now, or (`by_time`) at the time of the row."""

    kind: ClassVar[str] = "lookup"
    has_of_old_tables: ClassVar[Literal["changes", "whole", "finds"]] = "whole"
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
    def goes_by_time(self) -> bool:
        return self.by_time

    @property
    def holds(self) -> bool:
        return self.by_time

    @property
    def late_schema(self) -> Schema | None:
        return self.rows if self.by_time else None

    def depends_on_cut(self, came_late: bool) -> str:
        if not self.by_time:
            return "rows meet the table as it was after their tick"
        return _CAME_LATE if came_late else ""


@dataclass(frozen=True, kw_only=True)
class Sink(Step):
    kind: ClassVar[str] = "sink"
    sink: AnySink
    delivery: DeliveryMode


def _gathered(by: tuple[str, ...]) -> str:
    """Rows with equal values meet; without any columns, all do."""
    return f"fields({', '.join(by)})" if by else "one()"
