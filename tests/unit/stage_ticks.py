"""Ticks of a stage without Spark: what a task does in one tick is what it finds in the next.

For tests of stateful stages: thousands of small ticks in seconds, with runs in real files, and compaction when asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from hailstorm.clock.panes import Panes
from hailstorm.clock.watermark import BEGINNING, due_until
from hailstorm.columns import HIDDEN, PANE
from hailstorm.engine.stages.chain import Stage, run_stages
from hailstorm.engine.stages.order import Order, Report
from hailstorm.engine.stages.task import Shelf, Task
from hailstorm.ledger.commit import Run, Stamp, StateChange
from hailstorm.ledger.compaction import compact
from hailstorm.ledger.keyed_state import KeyedState, Layout
from hailstorm.ledger.live import changed_runs
from hailstorm.ledger.stores import open_store

Row = dict[str, Any]


class Ticks:
    """One step over many ticks. `layouts` are its tables of state; `outputs` the names under which it leaves rows."""

    def __init__(
        self, folder: Path, stages: Sequence[Stage], layouts: Sequence[Layout], outputs: Sequence[str]
    ) -> None:
        self.folder, self.stages, self.layouts, self.outputs = folder, stages, layouts, outputs
        self.step = layouts[0].step
        self.panes: Panes | None = None  # of a fold that has some
        self.runs: dict[str, tuple[Run, ...]] = {}
        self.reached: dict[str, int] = {}
        self.seq = 0
        self.report = Report("none")

    def tick(self, rows: pa.Table | None, watermark: int | None, now: int = 0) -> dict[str, list[Row]]:
        """Run the stages over these rows. What they left, by name; `report` has what else they said."""
        task = self._task(watermark, now)
        batches = [] if rows is None else rows.to_batches(max_chunksize=max(1, rows.num_rows // 2))
        for _ in run_stages(self.stages, iter(batches), task):
            pass
        self.letters = [(letter, row.to_pylist()[0]) for letter, row in task.letters]
        self.report, self.seq = task.report, self.seq + 1
        for table, added in task.report.runs.items():
            self.runs[table] = changed_runs(self.runs.get(table, ()), StateChange(added=tuple(added)))
        for layout in self.layouts:
            until = due_until(layout.clock, watermark, now, self.seq - 1) if layout.clock else None
            if until is not None:
                self.reached[layout.table] = max(until, self.reached.get(layout.table, BEGINNING))
        found = task.shelf.rows
        return {name: [row for batch in found.get(name, ()) for row in batch.to_pylist()] for name in self.outputs}

    def is_due(self, watermark: int | None, now: int = 0) -> bool:
        task = self._task(watermark, now)
        return any(
            (found := task.due(layout)) is not None and found.num_rows for layout in self.layouts if layout.clock
        )

    def state(self, layout: Layout) -> list[Row]:
        """All live rows of a table of state."""
        found = self._task(None, 0).state(layout).everything()
        return [] if found is None else found.to_pylist()

    def opened(self, layout: Layout) -> KeyedState:
        return self._task(None, 0).state(layout)

    def compact(self) -> None:
        for layout in self.layouts:
            store, past = open_store(self.folder), self._past(layout)
            cache = self._task(None, 0).cache
            runs, stamp = self.runs.get(layout.table, ()), Stamp(self.seq + 1, 1)
            change = compact(store, cache, layout.table, layout.key, runs, stamp, everything=True, past=past)
            if change is not None:
                self.runs[layout.table] = changed_runs(runs, change)

    def _past(self, layout: Layout) -> int | None:
        if self.panes is None or PANE not in layout.key:
            return self.reached.get(layout.table)
        reached = self.reached.get(f"{self.step}.agenda")
        return None if reached is None else self.panes.over(reached)

    def _task(self, watermark: int | None, now: int) -> Task:
        order = Order(
            ledger=str(self.folder),
            cache=str(self.folder / "cache"),
            scratch=str(self.folder / "scratch"),
            seq=self.seq + 1,
            epoch=1,
            now=now,
            watermarks={self.step: (watermark, watermark)},
            reached=self.reached,
            runs=self.runs,
        )
        return Task(order, 0, Report("test"), Shelf(kept=frozenset(self.outputs)))


def table_of(rows: Sequence[Mapping[str, Any]], columns: pa.Schema) -> pa.Table:
    """Rows with their hidden columns: `_time` in microseconds, `_offset`; the spout is `s`."""
    whole = [{"_spout": "s", "_partition": 0, **row} for row in rows]
    return pa.Table.from_pylist(whole, schema=pa.schema([*columns, *HIDDEN]))
