"""The steps of a topology: frozen values that name their inputs and remember the user's line.

`Topology` (topology.py) makes them, `engine/plan.py` compiles them; nothing here runs anything.
A table step (`is_table`) has a key: what flows out of it are changes, with `_kind` and `_old` beside its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from hailstorm.algebra.monoid import AnyMonoid
from hailstorm.errors import Location
from hailstorm.topology.groupings import Grouping
from hailstorm.topology.schema import Schema

OnError = Literal["dead-letter", "fail", "skip"]
DeliveryMode = Literal["exactly-once", "at-least-once", "at-most-once"]


@dataclass(frozen=True)
class Step:
    name: str
    at: Location
    inputs: tuple[str, ...]
    schema: Schema
    key: tuple[str, ...] = ()
    # True when changes flow out. Said apart from the key, because the table of a global fold has an empty one.
    is_table: bool = False

    kind: ClassVar[str] = "step"


@dataclass(frozen=True, kw_only=True)
class Spout(Step):
    kind: ClassVar[str] = "spout"
    source: Any  # spouts.source.Source; the topology may not import spouts
    decode: str | Callable[[bytes], Any]
    event_time: str | None
    lateness_ms: int
    idle_ms: int | None
    on_error: OnError


@dataclass(frozen=True, kw_only=True)
class Bolt(Step):
    """A Python function over rows: returns or yields dicts, or None."""

    kind: ClassVar[str] = "bolt"
    function: Callable[[Any], Any]
    grouping: Grouping | None
    on_error: OnError


@dataclass(frozen=True, kw_only=True)
class ArrowBolt(Step):
    """A function over Arrow record batches: batch -> batch, table or an iterable of batches."""

    kind: ClassVar[str] = "arrow"
    function: Callable[[Any], Any]
    grouping: Grouping | None
    on_error: OnError


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
class Fold(Step):
    """A keyed (or, with an empty `key`, global) step whose state is a product of monoids."""

    kind: ClassVar[str] = "fold"
    monoids: Mapping[str, AnyMonoid]


@dataclass(frozen=True, kw_only=True)
class Top(Step):
    """The n first rows of a table by an expression, largest first; its columns are the table's and `rank`."""

    kind: ClassVar[str] = "top"
    n: int
    by: str


@dataclass(frozen=True, kw_only=True)
class Sink(Step):
    kind: ClassVar[str] = "sink"
    sink: Any  # sinks.sink.Sink; the topology may not import sinks
    delivery: DeliveryMode
