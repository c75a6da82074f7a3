"""Ordered: rows wait until the watermark has reached their time, and then go on in the order of time.

What waits is its own agenda: rows whose `_hash` is their time. A row that comes when the watermark has passed its time
is late: rows after it may have gone on already.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, HIDDEN, NUMBER, TIME
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.process_events import in_order, numbers
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import shaped


@dataclass(frozen=True)
class ReleaseInOrder:
    """In: all rows, in one task."""

    step: str
    schema: pa.Schema  # of the rows, hidden columns included
    own: Outlet
    late: Outlet | None

    phase = "merge"

    @property
    def waiting(self) -> Layout:
        return Layout(f"{self.step}.waiting", (NUMBER,), "event")

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows = pa.Table.from_batches([b for b in batches if b.num_rows], self.schema)
        times, watermark = pc.cast(rows.column(EVENT_TIME), pa.int64()), task.watermark(self.step)
        now: list[pa.Table] = []
        if watermark is not None:
            self._give_late(rows.filter(pc.less(times, watermark)), task)
            now.append(rows.filter(pc.equal(times, watermark)))
            rows = rows.filter(pc.greater(times, watermark))
        due = task.due(self.waiting)
        if due is not None and due.num_rows:
            now.append(shaped(due.append_column(EVENT_TIME, due.column(HASH).cast(TIME)), self.schema))
        self._wait(rows, task)
        released = pa.concat_tables(now).combine_chunks() if now else rows.slice(0, 0)
        public = tuple(name for name in self.schema.names if name not in HIDDEN.names)
        order = in_order(released, np.zeros(released.num_rows, dtype=np.int64), public)
        self.own.give(released.take(pa.array(order)), task)
        yield from ()

    def _give_late(self, rows: pa.Table, task: Task) -> None:
        if rows.num_rows:
            task.report.late[self.step] = task.report.late.get(self.step, 0) + rows.num_rows
            if self.late is not None:
                self.late.give(rows, task)

    def _wait(self, rows: pa.Table, task: Task) -> None:
        if not rows.num_rows:
            return
        # The commit and a place in it: no other row has ever had both.
        first = task.order.seq << 32
        columns = {name: rows.column(name) for name in self.schema.names if name != EVENT_TIME}
        task.state(self.waiting).write(
            {
                HASH: pa.array(numbers(rows, EVENT_TIME)),
                NUMBER: pa.array(np.arange(first, first + rows.num_rows)),
                **columns,
            },
            rows.column(EVENT_TIME),
        )
