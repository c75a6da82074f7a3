"""How records become a table: decide which ones remove their key, bring the records of a key together, keep the newest.

A table of a stream and one of a log differ in where the records come from (compiler.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hailstorm.columns import GONE, HIDDEN, OWN_HASH, TIME
from hailstorm.engine.plan.flow import Flow, why_not
from hailstorm.engine.plan.sides import Input, together
from hailstorm.engine.stages.compute import ComputeColumns
from hailstorm.engine.stages.deposit import Outlet, RefuseNullKeys
from hailstorm.engine.stages.expressions import in_arrow
from hailstorm.engine.stages.newest import DELETES, SEEN, KeepNewest, MarkGone, RecordTimes, forgotten
from hailstorm.engine.stages.sides import ReadDue, Side
from hailstorm.ledger.keyed_state import Layout
from hailstorm.topology.ends import SourceTable
from hailstorm.topology.stateful import Newest


@dataclass(frozen=True)
class TablePlan:
    step: Newest | SourceTable
    flow: Flow  # of its records
    tasks: int
    sinks: tuple[str, ...]
    feeds: bool
    times: bool  # the times of its rows matter to those who read it
    versions: Outlet | None

    @property
    def key(self) -> pa.Schema:
        return pa.schema([self.flow.schema.field(name) for name in self.step.key])

    @property
    def values(self) -> pa.Schema:
        names = [name for name in self.step.schema.names if name not in self.step.key]
        return pa.schema([self.flow.schema.field(name) for name in names])

    @property
    def records(self) -> pa.Schema:
        """Of every record that may be a version of a row."""
        return pa.schema([*self.key, *self.values, *HIDDEN, (GONE, pa.bool_())])

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return Layout(self.step.name, self.step.key), self._agenda

    @property
    def _agenda(self) -> Layout:
        return forgotten(self.step.name, self.step.key)

    def compiled(self, due: Flow) -> Flow:
        """The flow that writes the table. `due` reads nothing yet: it is where one task begins."""
        noted = pa.schema([*self.key, (OWN_HASH, pa.int64())])
        seen = ((SEEN, pa.field(SEEN, TIME)),)
        sides = (
            Side((*((field.name, field) for field in self.records), *seen), self.step.key),
            Side(tuple((field.name, field) for field in noted)),
        )
        inputs = [Input(self._marked(), sides[0]), Input(due.then(ReadDue(self._agenda, noted), noted), sides[1])]
        stage = KeepNewest(
            step=self.step.name,
            key=self.step.key,
            values=self.values,
            sides=sides,
            sinks=self.sinks,
            feeds=self.feeds,
            times=self.times,
            versions=self.versions,
        )
        return together(self.step.name, inputs, self.tasks).then(stage)

    def _marked(self) -> Flow:
        """The records that have a key and a time, each with whether it removes its key."""
        flow, deletes = self.flow, self.step.deletes
        flow = flow.then(RefuseNullKeys(self.step.name, self.step.key))
        if deletes is not None:
            found = in_arrow([(deletes, pa.bool_())], flow.schema)
            if found is None:
                rows = flow.dataframe()
                rows.where(deletes)  # what is no predicate is refused here, and not by a job
                computed = rows.selectExpr("*", f"{deletes} AS {DELETES}")
                flow = flow.over(computed).needing(*why_not(self.step.name, [(deletes, pa.bool_())], flow))
            else:
                flow = flow.then(ComputeColumns((DELETES,), found))
        if isinstance(self.step, Newest) and self.step.time is not None:
            flow = flow.then(RecordTimes(self.step.name, self.step.time))
        return flow.then(MarkGone(), pa.schema([*self.records, (SEEN, TIME)]))
