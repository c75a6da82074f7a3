"""The ends of a topology: spouts, where records of logs come in, tables that are read from logs, and sinks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar, Literal

from hailstorm.topology.schema import Schema
from hailstorm.topology.step import NEWEST_IS_LAST, OnError, Past, Step

if TYPE_CHECKING:
    from hailstorm.sinks.sink import Sink as AnySink
    from hailstorm.spouts.source import Source

# The name of a decoder, or a function from the bytes of a record to a row, rows or None.
Decode = str | Callable[[bytes], Mapping[str, object] | Iterable[Mapping[str, object]] | None]
DeliveryMode = Literal["exactly-once", "at-least-once", "at-most-once"]


@dataclass(frozen=True, kw_only=True)
class Spout(Step):
    kind: ClassVar[str] = "spout"
    gives_errors: ClassVar[bool] = True
    can_retry: ClassVar[bool] = True
    outside: ClassVar[str] = "source"
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

    def depends_on_cut(self, past: Past) -> str:
        return NEWEST_IS_LAST if past.timeless > 1 else ""

    def of_records(self) -> Spout:
        """A spout of all its records, also of those that remove their key: the log, without the table."""
        return Spout(**{one.name: getattr(self, one.name) for one in fields(Spout)})


@dataclass(frozen=True, kw_only=True)
class Sink(Step):
    kind: ClassVar[str] = "sink"
    gives_rows: ClassVar[bool] = False
    outside: ClassVar[str] = "sink"
    # How often, where and how fast results are delivered does not change what they are.
    not_identity: ClassVar[frozenset[str]] = Step.not_identity | {"schema", "key", "is_table"}
    sink: AnySink
    delivery: DeliveryMode

    @property
    def is_end(self) -> bool:
        return True

    @property
    def made_of(self) -> tuple[str, ...]:
        return ()
