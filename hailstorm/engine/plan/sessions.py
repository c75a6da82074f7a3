"""How windows and sessions become flows: rows are given their window, then folded (fold.py).

A session's bounds change with what comes, so the sessions of this tick's rows are joined with those of before, state by
state; what comes out of that is the whole new state of each session.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hailstorm.algebra.monoid import Monoid
from hailstorm.clock.panes import Panes
from hailstorm.columns import (
    EVENT_TIME,
    HASH,
    HIDDEN,
    KIND,
    MEMBERS,
    OLD,
    SIGN,
    STATE,
    TIME,
    WINDOW_END,
    WINDOW_START,
    quoted,
)
from hailstorm.engine.plan.flow import Flow, Job
from hailstorm.engine.plan.fold import Bound, FoldPlan
from hailstorm.engine.plan.table_fold import TableFoldPlan
from hailstorm.engine.stages.chain import Stage
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.fold import FoldShape
from hailstorm.engine.stages.members import HideInnerWindows, RecallTimes, SignRows, inner_name
from hailstorm.engine.stages.panes import AssignPanes
from hailstorm.engine.stages.reduce import MergeLists, ReduceStates, can_combine, jvm_merge, take_whole
from hailstorm.engine.stages.sessions import AssignSessions, HashBy, JoinSessions
from hailstorm.engine.stages.table_sessions import ReplaceSessions, SessionMembers
from hailstorm.engine.stages.waiting import DUE
from hailstorm.engine.stages.windows import AssignWindows
from hailstorm.ledger.hashing import can_hash
from hailstorm.topology.stateful import WindowedFold
from hailstorm.topology.step import Step


def assigning(step: WindowedFold, flow: Flow, late: Outlet | None, tasks: int, panes: bool) -> Stage:
    """The stage that gives rows their windows, or their panes."""
    if step.windows is not None and panes:
        return AssignPanes(step.name, Panes(step.windows), step.closing, late)
    if step.windows is not None:
        return AssignWindows(step.name, step.windows, step.closing, late)
    by = step.key[:-2]
    # Of a table each row is its own session here: which are one depends on the rows that stay.
    together = (
        tasks == 1 and SIGN not in flow.schema.names and all(can_hash(flow.schema.field(name).type) for name in by)
    )
    return AssignSessions(step.name, by, step.gap, step.closing, late, together)


def signed(flow: Flow, step: WindowedFold, source: Step, times_of_keys: bool) -> Flow:
    """A table's changes as rows that go and come, each with its own time: so each finds its own window.

    What `times_of_keys` says saves the memory of when rows were.
    """
    columns = [field for field in flow.schema if field.name not in (*HIDDEN.names, HASH, KIND, OLD)]
    if not times_of_keys:
        flow = flow.then(RecallTimes(step.name, source.key))
    flow = flow.then(SignRows(source.key, tuple(field.name for field in columns))).then(HideInnerWindows())
    inner = [field.with_name(inner_name(field.name)) for field in columns]
    return replace(flow, schema=pa.schema([*inner, (SIGN, pa.int64()), *HIDDEN]))


@dataclass
class SessionPlan(FoldPlan):
    """A fold by session of a stream."""

    replaces = True
    counts_members = True
    in_parts = False

    def compiled(self) -> tuple[Flow, pa.Schema, Job | None]:
        rows = self.rows()
        bound = self._bound(rows)
        assert self.waiting is not None
        # What is due comes with the sessions that are joined.
        shape = self._shape(bound, replace(self.waiting, one_task=False))
        self.keys = self.key_fields(rows)
        values = pa.schema([(b.name, b.cell.value_type) for b in bound])
        grouped, rejects = self._grouped_in_arrow(bound), None
        if grouped is not None:
            grouped = grouped.then(HashBy(self._by))
        else:
            grouped, rejects = self._grouped_by_spark(rows, bound), self._rejects(rows)
        joined = self._joined(grouped, bound, shape)
        # From here on states are whole: there is nothing of before to merge them with.
        whole = tuple(replace(cell, merge=cell.merge and take_whole) for cell in shape.cells)
        return self._written(joined, bound, replace(shape, cells=whole)), values, rejects

    @property
    def _by(self) -> tuple[str, ...]:
        return self.step.key[:-2]

    def _grouped_by_spark(self, rows: DataFrame, bound: list[Bound]) -> Flow:
        aggregated = self._aggregated(rows, bound).withColumn(HASH, _hashed(self._by))
        delta = self.flow.over(aggregated).needing(*self._why_not(bound))
        return delta if self.tasks == 1 else self.brought_with_due(delta, self._by)

    def _joined(self, grouped: Flow, bound: list[Bound], shape: FoldShape) -> Flow:
        assert self.waiting is not None
        stage = JoinSessions(shape.layout, self._by, self.waiting, shape.cells, self.tasks == 1)
        states = [(STATE + b.name, b.cell.state_type) for b in bound]
        known = [*self.keys.values(), (HASH, pa.int64()), *states]
        schema = pa.schema([*known, (EVENT_TIME, TIME), (DUE, pa.bool_()), (MEMBERS, pa.int64())])
        joined = grouped.then(stage, schema)
        if can_combine(shape.cells):
            return joined.then(ReduceStates(self.step.key, shape.cells))
        lists = [F.collect_list(quoted(name)).alias(name) for name, _ in states]
        others = [F.max(name).alias(name) for name in (EVENT_TIME, DUE, MEMBERS)]
        key = [quoted(name) for name in self.step.key]
        gathered = joined.dataframe().groupBy(*key).agg(F.max(HASH).alias(HASH), *lists, *others)
        # One's own monoids have no SQL: their lists are merged behind it.
        own = tuple(b.cell for b in bound if isinstance(b.monoid, Monoid))
        of_spark = {STATE + b.name: b.pieces.merge for b in bound if b.cell not in own}
        merged = {name: jvm_merge(merge, quoted(name)) for name, merge in of_spark.items()}
        whole = joined.over(gathered.selectExpr(*(f"{merged.get(n, quoted(n))} AS {quoted(n)}" for n in schema.names)))
        return whole.then(MergeLists(own), schema) if own else whole


@dataclass
class TableSessionPlan(TableFoldPlan):
    """A fold by session of a table: sessions are made again from the rows of each key that has changed."""

    replaces = True

    @property
    def members_by(self) -> tuple[str, ...]:
        return self.step.key[:-2]

    def _members_stage(self) -> ReplaceSessions:
        assert isinstance(self.step, WindowedFold)
        members = SessionMembers(self.step.name, self.members_by, self.identity, self.step.gap)
        columns = tuple(name for name in self.columns() if name not in (WINDOW_START, WINDOW_END))
        return ReplaceSessions(members, columns, self.step.closing.accepts)

    def _grouped_in_arrow(self, bound: list[Bound]) -> Flow | None:
        grouped = super()._grouped_in_arrow(bound)
        return None if grouped is None else grouped.then(HashBy(self.members_by))

    def _aggregated(self, rows: DataFrame, bound: list[Bound]) -> DataFrame:
        return super()._aggregated(rows, bound).withColumn(HASH, _hashed(self.members_by))

    def _with_due(self, delta: Flow) -> Flow:
        return delta if self.tasks == 1 else self.brought_with_due(delta, self.members_by)


def _hashed(by: tuple[str, ...]) -> SparkColumn:
    """So that all sessions of a key are neighbours."""
    return F.xxhash64(*map(quoted, by)) if by else F.lit(0).cast("bigint")
