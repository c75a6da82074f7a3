"""Look-ups: the rows of a stream with what a table has for them, now or at the time of the row.

Both keep a copy of what they need of the table, by the key that rows ask for: the newest row of each key here, or all
its versions that somebody may still ask for (lookup_by_time.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, HIDDEN, KIND
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.sides import Side, has_all, split
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import Layout


@dataclass(frozen=True)
class LookupShape:
    """What both kinds of look-up know of their step."""

    step: str
    on: tuple[str, ...]
    rows: pa.Schema  # the public columns of the stream
    others: pa.Schema  # what the table adds to them
    how: str
    sides: tuple[Side, ...]
    out: Outlet
    late: Outlet | None = None

    def answered(self, rows: pa.Table, found: pa.Array, others: dict[str, pa.Array]) -> pa.Table:
        """Rows with the columns that were found for them. Of an inner look-up, those for which there are any."""
        made = pa.table({name: rows.column(name) for name in self.rows.names} | others)
        for field in HIDDEN:
            made = made.append_column(field, rows.column(field.name))
        return made.filter(found) if self.how == "inner" else made


@dataclass(frozen=True)
class LookUpLatest:
    """In: rows of the stream, and changes of the table. The rows get the table after the tick."""

    shape: LookupShape

    phase = "look up"

    @property
    def layout(self) -> Layout:
        return Layout(f"{self.shape.step}.table", self.shape.on)

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows, changed = split(batches, self.shape.sides)
        written = self._write(changed, task) if changed.num_rows else []
        if rows.num_rows:
            self.shape.out.give(self._looked_up(rows, written, task).combine_chunks(), task)
        yield from ()

    def _write(self, changed: pa.Table, task: Task) -> list[pa.Table]:
        columns = {name: changed.column(name) for name in (HASH, *self.shape.on, *self.shape.others.names)}
        gone = pc.equal(changed.column(KIND), "delete").combine_chunks()
        return [task.state(self.layout).write(columns, changed.column(EVENT_TIME), gone)]

    def _looked_up(self, rows: pa.Table, written: list[pa.Table], task: Task) -> pa.Table:
        asking = has_all(rows, self.shape.on)
        matches = task.state(self.layout).prior(rows.filter(asking), also=written)
        taken = places_among(asking)
        found = pc.fill_null(matches.found().take(taken), False)
        others = {one.name: matches.column(one.name, one.type).take(taken) for one in self.shape.others}
        return self.shape.answered(rows, found, others)


def places_among(chosen: pa.Array) -> pa.Array:
    """For each row, its place among those that were chosen; null for the others."""
    mask = chosen.to_numpy(zero_copy_only=False)
    return pa.array(np.cumsum(mask) - 1, mask=~mask)
