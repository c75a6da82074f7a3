"""What a top of all and a top of each group share: how they begin, the order of their rows, the changes of those shown.

A row is shown when it has a rank.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import HASH, TIME, UPDATED
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.equality import equal_values
from hailstorm.ledger.keyed_state import Layout, changes
from hailstorm.ledger.lookup import Matches
from hailstorm.ledger.ordering import sortable

BY, RANK = "_by", "rank"


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """What both stages are told, and how they begin. Nothing flows out of them."""

    step: str
    table: str  # the stateful step whose rows these are; its state is what they are filled from
    n: int
    key: tuple[str, ...]
    values: tuple[str, ...]  # without rank
    schema: pa.Schema  # key, values, `_by`, `_hash`
    sinks: tuple[str, ...]
    feeds: bool
    times: bool  # the times of rows matter to those who read it
    refilling: bool = False  # the input is the whole table

    phase = "merge"

    @property
    def layout(self) -> Layout:
        return Layout(self.step, self.key)

    def __call__(self, batches: Batches, task: Task) -> Batches:
        arrived = self._arrived(batch for batch in batches if batch.num_rows)
        if arrived.num_rows or self.refilling:
            self._update(arrived, task)
        yield from ()

    @abstractmethod
    def _arrived(self, batches: Batches) -> pa.Table:
        """What has come, in the columns of the state."""

    @abstractmethod
    def _update(self, arrived: pa.Table, task: Task) -> None:
        """Rank, write what has changed, and hand it on; or ask for the whole table."""


def ranking_of(
    rows: pa.Table, key: Sequence[str], groups: pa.Array | None = None
) -> tuple[pa.Table, list[tuple[str, str]]]:
    """What to sort the rows by: largest first, nulls last, ties by key, within their groups if there are such.

    A total order, so that every cut into ticks gives the same rows.
    """
    columns: dict[str, Any] = {} if groups is None else {"0": groups}
    order = [(name, "ascending") for name in columns]
    for name, direction in ((BY, "descending"), *((name, "ascending") for name in key)):
        for part in sortable(rows.column(name).combine_chunks()):
            order.append((str(len(order)), direction))
            columns[order[-1][0]] = part
    return pa.table(columns), order


def changes_of_shown(
    rows: pa.Table,
    prior: Matches,
    key: Sequence[str],
    values: Sequence[str],
    was: pa.Array,
    gone: pa.Array,
    times: bool,
) -> pa.Table:
    """Changes of rows that are shown or `was`, with what they were in `prior`. With `times`, another time is one."""
    names = (*values, RANK)
    moved = pc.invert(equal_values(rows.column(UPDATED), prior.column(UPDATED, TIME))) if times else None
    return changes(
        {name: rows.column(name) for name in key},
        {name: rows.column(name) for name in names},
        {name: prior.column(name, rows.schema.field(name).type) for name in names},
        was,
        gone,
        rows.column(UPDATED),
        rows.column(HASH),
        moved,
    )
