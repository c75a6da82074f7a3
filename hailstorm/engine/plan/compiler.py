"""The compiler: walks the steps of a topology and makes the plan (plan.py), one small method per kind of step.

Here are the kinds with state; those without are in stateless.py, and what all share in builder.py.

What a kind of stateful step does is in a file of its own (fold.py, top.py); what `where` and `select` mean for a table
is in tables.py; expressions that need no Spark are in stages/expressions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException, UnsupportedOperationException
from pyspark.sql import SparkSession

from hailstorm.clock.windows import MOST
from hailstorm.columns import HIDDEN, PRESENT
from hailstorm.engine.plan.builder import Beginning, public_columns, shape_of, shape_of_stream
from hailstorm.engine.plan.flow import Flow
from hailstorm.engine.plan.fold import FoldPlan
from hailstorm.engine.plan.join import JoinedColumns, TableJoinPlan
from hailstorm.engine.plan.keyed import KeyedFlow
from hailstorm.engine.plan.panes import PanePlan, may_share
from hailstorm.engine.plan.plan import Branch, Plan
from hailstorm.engine.plan.process import ProcessPlan
from hailstorm.engine.plan.sessions import SessionPlan, TableSessionPlan, assigning, signed
from hailstorm.engine.plan.stateless import Stateless
from hailstorm.engine.plan.stream_join import LookupPlan, StreamJoinPlan
from hailstorm.engine.plan.table import TablePlan
from hailstorm.engine.plan.table_fold import TableFoldPlan
from hailstorm.engine.plan.top import TopPerPlan, TopPlan
from hailstorm.engine.spark.shipping import ship_by_value
from hailstorm.engine.stages.deposit import Outlet, RefuseNullKeys
from hailstorm.engine.stages.distinct import KeepDistinct
from hailstorm.engine.stages.exchange import part_names
from hailstorm.engine.stages.marks import MarkRows, Unmark
from hailstorm.engine.stages.ordered import ReleaseInOrder
from hailstorm.engine.stages.process_calls import OWN
from hailstorm.engine.stages.read import KeepCovered
from hailstorm.engine.stages.rows import Prune
from hailstorm.engine.stages.waiting import CLOSED, DUE, Waiting
from hailstorm.engine.stages.windows import with_windows
from hailstorm.errors import TopologyError
from hailstorm.ledger.keyed_state import Layout
from hailstorm.topology import mistakes
from hailstorm.topology.ends import Sink, SourceTable, Spout
from hailstorm.topology.stateful import Distinct, Fold, Newest, Ordered, Process, Top, WindowedFold
from hailstorm.topology.stateless import ArrowBolt, Bolt, Output, Select, Sql, Union, Where
from hailstorm.topology.step import Step
from hailstorm.topology.topology import Topology
from hailstorm.topology.two_sided import Join, Lookup, TableJoin, TwoSided


def compile_topology(
    spark: SparkSession,
    topology: Topology,
    tasks: int,
    retrying: bool = False,
    beginning: Beginning | None = None,
    marking: bool = False,
) -> Plan:
    """Compile for so many tasks. Asks Spark for types, which takes a while, but runs no job.

    `retrying` gives a plan that reads no log: dead letters enter each step at which they failed. `beginning` gives one
    that reads no log, too: some steps get the whole of their tables. `marking` gives one whose rows say which rows of
    the steps above they were made of.
    """
    ship_by_value(topology.folder)
    return Compiler(spark, topology, tasks, retrying, beginning, marking).plan()


@dataclass
class Compiler(Stateless):
    def plan(self) -> Plan:
        kinds: Mapping[type[Step], Callable[[Any], None]] = {
            Spout: self._spout,
            Bolt: self._bolt,
            ArrowBolt: self._bolt,
            Sql: self._sql,
            Where: self._where,
            Select: self._select,
            Union: self._union,
            Fold: self._fold,
            WindowedFold: self._fold,
            Output: self._output,
            Process: self._process,
            Distinct: self._distinct,
            Ordered: self._ordered,
            Top: self._top,
            SourceTable: self._source_table,
            Newest: self._newest,
            TableJoin: self._table_join,
            Join: self._join,
            Lookup: self._lookup,
            Sink: self._sink,
        }
        for step in self.topology.steps:
            try:
                kinds[type(step)](step)
            except (AnalysisException, ParseException, UnsupportedOperationException) as error:
                first = str(error).strip().partition("\n")[0].partition(" SQLSTATE")[0]
                raise TopologyError(90, f"Spark refuses step '{step.name}': {first}", at=step.at) from error
        run = tuple(one for one in self.branches if self.beginning is None or self.beginning.runs(one.step))
        return Plan(self.tasks, run, self.steps, self.inbox)

    def _fold(self, step: Fold) -> None:
        source = self.topology.step(step.inputs[0])
        flow = self.rows_of(source.name, reader=step.name).named(step.name)
        if self.marking and not source.is_table:
            flow = flow.then(Unmark())
        if self.retrying and not source.is_table:
            flow = flow.then(KeepCovered(step.name))
        sinks, readers = self.consumers(step)
        kind = TableFoldPlan if source.is_table else FoldPlan
        waiting, outputs = None, tuple[str, ...]()
        if step.ttl_us is not None:
            waiting = Waiting(step.name, step.key, self.tasks == 1, ttl=step.ttl_us)
        if isinstance(step, WindowedFold):
            waiting = Waiting(step.name, step.key, self.tasks == 1, step.closing)
            late = self.outlet(step, "late", self.steps[source.name].schema)
            outputs = (late.name,) if late is not None else ()
            if source.is_table:
                flow = signed(flow, step, source, self._times_of_keys(source))
            if len(step.key) > 2:  # before it is in several windows: a row is one dead letter
                flow = flow.then(RefuseNullKeys(step.name, step.key[:-2]))
            if not source.is_table and self._shares_panes(step, source, flow):
                kind = PanePlan
            elif step.windows is not None and step.windows.at_most > MOST:  # Spark knows more of them than `.fold` did
                raise mistakes.too_many_windows(source.name, step.windows.at_most, MOST, step.at)
            elif step.windows is None:
                kind = TableSessionPlan if source.is_table else SessionPlan
            flow = flow.then(assigning(step, flow, late, self.tasks, kind is PanePlan), with_windows(flow.schema))
        fold = kind(step, source, flow, self.tasks, sinks, bool(readers), self._times(step), self.leaf, waiting)
        written, values, rejects = fold.compiled()
        if fold.parts is not None:
            self.branches.append(Branch(fold.parts.name, fold.parts, outputs=part_names(step.name, self.tasks)))
        self.branches.append(Branch(step.name, written, outputs=outputs))
        key = pa.schema([fold.key_field(name) for name in step.key])
        waits = CLOSED if waiting is not None and waiting.final else ""
        hashed = step.key[:-2] if isinstance(step, WindowedFold) and step.windows is None else None
        panes = fold.shape if isinstance(fold, PanePlan) else None
        self._give_table(step, key, values, fold.layouts, rejects=rejects, waits=waits, hashed=hashed, panes=panes)

    def _shares_panes(self, step: WindowedFold, source: Step, flow: Flow) -> bool:
        plan = PanePlan(step, source, flow, self.tasks, (), False, False, self.leaf)
        return may_share(step, flow) and plan.merges_in_arrow()

    def _process(self, step: Process) -> None:
        flow = self._seen_by(step).named(step.name)
        if self.retrying:
            flow = self._with_letters(flow.then(KeepCovered(step.name)), step)
        plan = ProcessPlan(step, self.tasks, self._start(step))
        outlets = {OWN: self._outlet_of(step)}
        for name in step.outputs:
            if (outlet := self.outlet(step, name, plan.outputs[name])) is not None:
                outlets[name] = outlet
        shape = plan.shape(flow, outlets)
        outputs = tuple(outlet.name for name, outlet in outlets.items() if name != OWN)
        self.branches.append(Branch(step.name, plan.compiled(flow, shape), outputs=outputs))
        self._give_rows(step, plan.outputs[OWN], shape_of(step, shape.key, plan.values, shape.layouts))

    def _distinct(self, step: Distinct) -> None:
        flow = self._given_rows(step, step.inputs[0]).named(step.name)
        schema = public_columns(flow.schema)
        late = self.outlet(step, "late", schema)
        own = self._outlet_of(step)
        stage = KeepDistinct(step.name, step.by, step.within_us, tuple(schema.names), own, late)
        entries = pa.schema([(DUE, pa.bool_())])
        keyed = KeyedFlow(step.name, step.by, (stage.agenda,), entries, self.tasks, self._start(step))
        outputs = (late.name,) if late is not None else ()
        self.branches.append(Branch(step.name, keyed.over(flow).then(stage), outputs=outputs))
        key = pa.schema([schema.field(name) for name in step.by])
        self._give_rows(step, schema, shape_of(step, key, pa.schema([]), (stage.state, stage.agenda)))

    def _ordered(self, step: Ordered) -> None:
        flow = self._given_rows(step, step.inputs[0]).named(step.name)
        schema = public_columns(flow.schema)
        late = self.outlet(step, "late", schema)
        if self.tasks > 1:
            flow = flow.over(flow.dataframe().repartition(1))
        stage = ReleaseInOrder(step.name, pa.schema([*schema, *HIDDEN]), self._outlet_of(step), late)
        flow = flow.then(Prune((*schema.names, *HIDDEN.names))).then(stage)
        self.branches.append(Branch(step.name, flow, outputs=(late.name,) if late is not None else ()))
        self._give_rows(step, schema, shape_of(step, pa.schema([]), pa.schema([]), (stage.waiting,)))

    def _source_table(self, step: SourceTable) -> None:
        self._keep_newest(step, self._records(step, step.key))

    def _newest(self, step: Newest) -> None:
        flow = self._seen_by(step).named(step.name)
        self._keep_newest(step, flow.then(KeepCovered(step.name)) if self.retrying else flow)

    def _keep_newest(self, step: Newest | SourceTable, flow: Flow) -> None:
        sinks, readers = self.consumers(step)
        wanted = any(isinstance(one, Lookup) and one.by_time for one in self.topology.consumers(step.name))
        versions = Outlet(f"{step.name}.versions", (), True) if wanted else None
        table = TablePlan(step, flow, self.tasks, sinks, bool(readers), self._times(step), versions)
        outputs = () if versions is None else (versions.name,)
        self.branches.append(Branch(step.name, table.compiled(self._start(step)), outputs=outputs))
        self._give_table(step, table.key, table.values, table.layouts, waits=PRESENT)
        if versions is not None:
            self.versions[step.name] = lambda tasks: self.left_by((versions.name,), table.records, tasks)

    def _table_join(self, step: TableJoin) -> None:
        sinks, readers = self.consumers(step)
        flows = (self.rows_of(step.inputs[0], reader=step.name), self.rows_of(step.inputs[1], reader=step.name))
        join = TableJoinPlan(
            step, self._joined_columns(step), flows, self.tasks, sinks, bool(readers), self._times(step)
        )
        flow, layouts = join.compiled()
        self.branches.append(Branch(step.name, flow))
        self._give_table(step, join.key, join.values, layouts, waits="" if step.foreign else PRESENT)

    def _join(self, step: Join) -> None:
        columns = self._joined_columns(step)
        late = self.outlet(step, "late", columns.both)
        join = StreamJoinPlan(step, columns, self.tasks, self._outlet_of(step), late)
        left, right = (self._given_rows(step, name) for name in step.inputs)
        flow, layouts = join.compiled(left, right, self._start(step))
        self._give_stream(step, flow, join.shown, layouts, late)

    def _lookup(self, step: Lookup) -> None:
        columns = self._joined_columns(step)
        late = self.outlet(step, "late", columns.of_rows) if step.by_time else None
        lookup = LookupPlan(step, columns, self.tasks, self._outlet_of(step), late)
        stream, table = self._given_rows(step, step.inputs[0]), step.inputs[1]
        if step.of_everyone:
            key = self.topology.step(table).key
            kept, paired, layout = lookup.of_everyone(stream, self.rows_of(table, tasks=1, reader=step.name), key)
            self.branches.append(Branch(layout.table, kept))
            self._give(step, paired.then(MarkRows(step.name)) if self.marking else paired)
            shape = shape_of_stream(step, columns.both, (layout,))
            self.steps[step.name] = replace(self.steps[step.name], shape=shape)
            return
        if step.by_time:
            flow, layouts = lookup.by_time(stream, self.versions_of(table, step.name), self._start(step))
        else:
            flow, layouts = lookup.latest(stream, self.rows_of(table, reader=step.name))
        self._give_stream(step, flow, columns.both, layouts, late)

    def _joined_columns(self, step: TwoSided) -> JoinedColumns:
        left, right = (self.steps[name].schema for name in step.inputs)
        return JoinedColumns(step, left, right)

    def _top(self, step: Top) -> None:
        sinks, readers = self.consumers(step)
        source = self.steps[step.inputs[0]]
        root = self._root_table(step)
        assert source.whole is not None
        kind = TopPerPlan if step.per else TopPlan
        top = kind(step, root, source.schema, sinks, bool(readers), self._times(step), self.tasks)
        values = pa.schema([*top.values, (top.rank, pa.int32())])
        if isinstance(top, TopPerPlan):
            table_key, start = self.topology.step(step.inputs[0]).key, self._start(step)
            of_groups = top.of_groups(self.rows_of(step.inputs[0]), table_key, start)
            refill = top.of_groups(source.whole(), table_key, start, refilling=True).ended()
            self.branches.append(Branch(step.name, of_groups, waits=True))
            layouts = (Layout(step.name, step.key),)
            self._give_table(step, top.key, values, layouts, refill=refill, waits=top.rank, hashed=step.per)
            return
        flow, stage = top.compiled(self.rows_of(step.inputs[0], tasks=1))
        again, stage_again = top.compiled(source.whole(), refilling=True)
        self.branches.append(Branch(step.name, flow.then(stage), waits=True))
        refill = again.then(stage_again).ended()
        self._give_table(step, top.key, values, (stage.layout,), refill=refill, waits=top.rank)
