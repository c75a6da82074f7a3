"""Look-ups of a whole table: each row of a stream with every row of a small control table, as it is after the tick.

The table goes to everyone, as in Storm's grouping *all*: one task keeps a copy of it and leaves the changes of a tick;
every task reads both. The rows of the stream stay where they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, HIDDEN, KIND
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import sort_by_hash

_PAIRS = 100_000  # rows of a batch


@dataclass(frozen=True)
class ControlTable:
    """The table as a look-up keeps it, under the names of the result."""

    step: str
    key: tuple[str, ...]
    columns: tuple[tuple[str, pa.Field], ...]  # name in the table, and what it is in the result

    @property
    def layout(self) -> Layout:
        return Layout(f"{self.step}.table", self.key)


@dataclass(frozen=True)
class KeepControl:
    """In: all changes of the table. Writes them, and leaves what it has written for those who pair."""

    table: ControlTable

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = [batch for batch in batches if batch.num_rows]
        if kept:
            changed = sort_by_hash(pa.Table.from_batches(kept))
            columns = {field.name: changed.column(name).cast(field.type) for name, field in self.table.columns}
            gone = pc.equal(changed.column(KIND), "delete").combine_chunks()
            layout = self.table.layout
            state = task.state(layout)
            task.leave(
                layout.table,
                state.write({HASH: changed.column(HASH), **columns}, changed.column(EVENT_TIME), gone),
            )
        yield from ()


@dataclass(frozen=True)
class PairWithEveryone:
    """In: rows of the stream. Out: each of them with each row of the table; of a left look-up, with nulls where the
    table is empty."""

    table: ControlTable
    rows: pa.Schema  # the public columns of the stream
    how: str

    phase = "look up"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        others: pa.Table | None = None
        for batch in batches:
            if batch.num_rows:
                others = self._others(task) if others is None else others
                yield from self._pairs(batch, others)

    def _others(self, task: Task) -> pa.Table:
        layout = self.table.layout
        left = [pa.Table.from_batches([batch]) for batch in task.rows_left(layout.table, 0, 1)]
        found = task.state(layout).everything(also=[pa.concat_tables(left).combine_chunks()] if left else [])
        fields = [field for _, field in self.table.columns]
        if found is None or not found.num_rows:
            nothing = pa.schema(fields).empty_table()
            return (
                nothing
                if self.how == "inner"
                else pa.table([pa.nulls(1, f.type) for f in fields], names=nothing.column_names)
            )
        return found.select([field.name for field in fields]).combine_chunks()

    def _pairs(self, batch: pa.RecordBatch, others: pa.Table) -> Iterator[pa.RecordBatch]:
        if not others.num_rows:
            return
        at_once = max(1, _PAIRS // others.num_rows)
        for start in range(0, batch.num_rows, at_once):
            rows = batch.slice(start, at_once)
            mine = pa.array(np.repeat(np.arange(rows.num_rows), others.num_rows))
            theirs = pa.array(np.tile(np.arange(others.num_rows), rows.num_rows))
            columns = {name: rows.column(name).take(mine) for name in (*self.rows.names, *HIDDEN.names)}
            found = {name: others.column(name).combine_chunks().take(theirs) for name in others.column_names}
            order = (*self.rows.names, *others.column_names, *HIDDEN.names)
            both = columns | found
            yield pa.RecordBatch.from_pydict({name: both[name] for name in order})
