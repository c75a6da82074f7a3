"""How a top becomes a flow: all changes of its table in one task, with what they are ordered by beside them.

A top of each group is spread over tasks by group, as rows that come and go.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hailstorm.columns import HASH, HIDDEN, SIGN
from hailstorm.engine.plan.flow import Flow, why_not
from hailstorm.engine.plan.keyed import KeyedFlow
from hailstorm.engine.stages.compute import ComputeColumns
from hailstorm.engine.stages.expressions import in_arrow
from hailstorm.engine.stages.members import SignRows
from hailstorm.engine.stages.ranking import BY, RANK
from hailstorm.engine.stages.rows import ReadRows, ReadWhole
from hailstorm.engine.stages.top import KeepTop
from hailstorm.engine.stages.top_per import KeepTopOfGroups
from hailstorm.topology.sql_text import column_named
from hailstorm.topology.stateful import Top


@dataclass(frozen=True)
class TopPlan:
    step: Top
    table: str  # the stateful step whose rows these are
    columns: pa.Schema  # of the table that it reads
    sinks: tuple[str, ...]
    feeds: bool
    times: bool  # the times of its rows matter to those who read it
    tasks: int

    rank = RANK

    @property
    def key(self) -> pa.Schema:
        return pa.schema([self.columns.field(name) for name in self.step.key])

    @property
    def values(self) -> pa.Schema:
        return pa.schema([field for field in self.columns if field.name not in self.step.key])

    def compiled(self, flow: Flow, refilling: bool = False) -> tuple[Flow, KeepTop]:
        """What flows into the top, and the stage that keeps it."""
        by = column_named(self.step.by)
        if by is None or by not in flow.schema.names:
            flow, by = with_by(self.step, flow), BY
        if self.tasks > 1 and not _in_one_task(flow):
            flow = flow.over(flow.dataframe().repartition(1))
        stage = KeepTop(
            step=self.step.name,
            table=self.table,
            n=self.step.n,
            by=by,
            key=self.step.key,
            values=tuple(self.values.names),
            schema=pa.schema([*self.key, *self.values, (BY, flow.schema.field(by).type), (HASH, pa.int64())]),
            sinks=self.sinks,
            feeds=self.feeds,
            times=self.times,
            refilling=refilling,
        )
        return flow.named(self.step.name), stage


@dataclass(frozen=True)
class TopPerPlan(TopPlan):
    """A top of each group."""

    def of_groups(self, flow: Flow, table_key: tuple[str, ...], start: Flow, refilling: bool = False) -> Flow:
        """The flow that keeps it. What fills it again is one task."""
        columns = tuple(self.columns.names)
        signed = flow.then(SignRows(table_key, columns), pa.schema([*self.columns, (SIGN, pa.int64()), *HIDDEN]))
        tasks = 1 if refilling else self.tasks
        keyed = KeyedFlow(self.step.name, self.step.per, (), pa.schema([]), tasks, start)
        brought = keyed.over(with_by(self.step, signed)).named(self.step.name)
        by = pa.field(BY, brought.schema.field(BY).type)
        return brought.then(
            KeepTopOfGroups(
                step=self.step.name,
                table=self.table,
                n=self.step.n,
                per=self.step.per,
                key=self.step.key,
                values=tuple(self.values.names),
                schema=pa.schema([*self.key, *self.values, by, (HASH, pa.int64())]),
                sinks=self.sinks,
                feeds=self.feeds,
                times=self.times,
                refilling=refilling,
            )
        )


def _in_one_task(flow: Flow) -> bool:
    """Whether the flow begins in one task, and Spark has not spread it since. A `where` reads in all of them."""
    first = flow.stages[0] if flow.stages else None
    return not flow.needs_jvm and (isinstance(first, ReadWhole) or (isinstance(first, ReadRows) and first.tasks == 1))


def with_by(step: Top, flow: Flow) -> Flow:
    """The flow with what its rows are ordered by, in front, where ComputeColumns has it."""
    computed = flow.over(flow.dataframe().selectExpr(f"{step.by} AS {BY}", "*"))
    wanted = [(step.by, computed.schema.field(BY).type)]
    found = in_arrow(wanted, flow.schema) if flow.stages else None
    if found is None:
        return computed.needing(*why_not(step.name, wanted, flow))
    return flow.then(ComputeColumns((BY,), found), pa.schema([computed.schema.field(BY), *flow.schema]))
