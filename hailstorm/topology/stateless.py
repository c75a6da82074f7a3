"""The steps that keep nothing from one tick to the next. Their rows are made of one row each, and of nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from hailstorm.topology.groupings import Grouping
from hailstorm.topology.step import CAME_LATE, OnError, Past, Step


@dataclass(frozen=True, kw_only=True)
class Calling(Step):
    """What calls a user's function, and keeps nothing."""

    gives_errors: ClassVar[bool] = True
    can_retry: ClassVar[bool] = True
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

    @property
    def has_keys_of_input(self) -> bool:
        return self.is_table


@dataclass(frozen=True, kw_only=True)
class Select(Step):
    """Columns as SQL expressions. On a table the key columns stay, whether or not they are named."""

    kind: ClassVar[str] = "select"
    expressions: Mapping[str, str]

    @property
    def has_keys_of_input(self) -> bool:
        return self.is_table


@dataclass(frozen=True, kw_only=True)
class Union(Step):
    kind: ClassVar[str] = "union"


@dataclass(frozen=True, kw_only=True)
class Output(Step):
    """One of the named outputs of a step beside its own rows: `hourly.late`."""

    kind: ClassVar[str] = "output"

    @property
    def is_end(self) -> bool:
        return True

    def depends_on_cut(self, past: Past) -> str:
        return CAME_LATE if past.came_late and self.name.endswith(".late") else ""
