"""Which windows a row is for, and which rows are too late.

A row is late for a window that has ended by the tick's watermark, which is that of the commit before: so it depends
neither on the order of rows nor on tasks. A row that one of its windows no longer takes goes to the step's `late`
output, and is counted: once, and also where others of its windows take it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.watermark import FIRST_MOMENT, LAST_MOMENT
from hailstorm.clock.windows import Closing, Windows
from hailstorm.columns import EVENT_TIME, INNER, SIGN, TIME, WINDOW_END, WINDOW_START
from hailstorm.engine.stages.bolt import refuse_row
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.task import Batches, Task


def with_windows(schema: pa.Schema) -> pa.Schema:
    """The columns after AssignWindows."""
    bounds = [(WINDOW_START, TIME), (WINDOW_END, TIME)]
    return pa.schema([*(field for field in schema if field.name not in (WINDOW_START, WINDOW_END)), *bounds])


@dataclass(frozen=True)
class AssignWindows:
    """Each row once per window that takes it, with `window_start` and `window_end`."""

    step: str
    windows: Windows
    closing: Closing
    late: Outlet | None  # None: nobody wants late rows

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        refused = []
        for batch in batches:
            batch = within_years(batch, self.step, self.windows.reach, task)
            if not batch.num_rows:
                continue
            times = np.asarray(batch.column(EVENT_TIME).cast(pa.int64()))
            index, start, end = self.windows.of(times)
            watermark = task.watermark(self.step)
            if watermark is not None:
                open_ = end + self.closing.accepts > watermark
                if not open_.all():
                    refused.append(batch.take(pa.array(np.unique(index[~open_]))))
                    index, start, end = index[open_], start[open_], end[open_]
            # Rows of one window that are neighbours stay neighbours.
            taken = batch if len(index) == batch.num_rows and self.windows.at_most == 1 else batch.take(pa.array(index))
            bounds = {WINDOW_START: pa.array(start).cast(TIME), WINDOW_END: pa.array(end).cast(TIME)}
            # Of windows of windows, these are the outer ones.
            inner = {name: taken.column(name) for name in taken.schema.names if name not in bounds}
            yield pa.RecordBatch.from_pydict({**inner, **bounds})
        if refused:
            refuse_late(self.step, pa.Table.from_batches(refused), self.closing, self.late, task)


def within_years(batch: pa.RecordBatch, step: str, reach: int, task: Task) -> pa.RecordBatch:
    """The rows whose windows are within the years 1 to 9999. The others are dead letters.

    `reach` is how far from a row's time the bounds of its windows can be.
    """
    if not batch.num_rows:
        return batch
    times = batch.column(EVENT_TIME)
    first, last = FIRST_MOMENT + reach, LAST_MOMENT - reach
    bounds = pc.min_max(times)
    if first <= bounds["min"].value and bounds["max"].value <= last:
        return batch
    numbers = np.asarray(times.cast(pa.int64()))
    outside = (numbers < first) | (numbers > last)
    came = outside & (np.asarray(batch.column(SIGN)) > 0) if SIGN in batch.schema.names else outside
    for place in np.flatnonzero(came).tolist():
        refuse_row(batch, place, step, "its window is not within the years 1 to 9999", "dead-letter", task)
    return batch.filter(pa.array(~outside))


def refuse_late(step: str, rows: pa.Table, closing: Closing, outlet: Outlet | None, task: Task) -> None:
    """Count rows that are too late, and hand them on unless they are to be dropped. Of a table, those that come."""
    if SIGN in rows.column_names:
        rows = rows.filter(pc.greater(rows.column(SIGN), 0)).drop_columns([SIGN])
        rows = rows.rename_columns([name.removeprefix(INNER) for name in rows.column_names])
        if not rows.num_rows:
            return
    task.report.late[step] = task.report.late.get(step, 0) + rows.num_rows
    if outlet is not None and closing.late != "drop":
        outlet.give(rows, task)
