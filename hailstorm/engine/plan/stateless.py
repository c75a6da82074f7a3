"""The steps without state: spouts, bolts, SQL, where, select, union, named outputs and sinks, one small method each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from hailstorm.columns import HASH, HIDDEN, LETTER_ID, TASK, quoted
from hailstorm.engine.plan.builder import Builder
from hailstorm.engine.plan.flow import Flow, Job, why_not
from hailstorm.engine.plan.needs import of_sql
from hailstorm.engine.plan.plan import CompiledStep
from hailstorm.engine.plan.tables import selected_changes, wanted_changes
from hailstorm.engine.stages.bolt import BatchBolt, RowBolt
from hailstorm.engine.stages.chain import Stage
from hailstorm.engine.stages.compute import ComputeColumns, KeepWhere
from hailstorm.engine.stages.deposit import Deliver
from hailstorm.engine.stages.event_times import EventTimes
from hailstorm.engine.stages.expressions import in_arrow
from hailstorm.engine.stages.read import AlsoLetters, ReadLog, ReadRecordLetters, ReadRowLetters
from hailstorm.engine.stages.rows import CopyToAll
from hailstorm.spouts.decode import decoder
from hailstorm.spouts.decode.tombstones import TombstoneDecoder
from hailstorm.topology.arrow_types import arrow_type
from hailstorm.topology.ends import Sink, Spout
from hailstorm.topology.query import carry_columns
from hailstorm.topology.stateful import Process
from hailstorm.topology.stateless import ArrowBolt, Bolt, Output, Select, Sql, Union, Where
from hailstorm.topology.times import goes_by_time_below


@dataclass
class Stateless(Builder):
    def _spout(self, step: Spout) -> None:
        self._give(step, self._records(step))

    def _records(self, step: Spout, required: tuple[str, ...] = ()) -> Flow:
        """What a log holds, decoded; of a table, also the records that have no value."""
        columns = tuple((column.name, column.type or "string") for column in step.decoded)
        needed = dict.fromkeys((*required, *(column.name for column in step.decoded if not column.nullable)))
        decode = decoder(step.decode, columns, needed) if step.source.columns is None else None
        if decode is not None and step.is_table:
            decode = TombstoneDecoder(decode, columns, step.key, step.event_time)
            columns = decode.columns
        schema = pa.schema([(name, arrow_type(type_)) for name, type_ in columns])
        times = EventTimes(step.event_time, step.source.has_time, step.lateness_ms, step.max_ahead_ms)
        read: Stage = ReadLog(step.name, step.source, decode, tuple(schema.names), times, step.on_error)
        if self.retrying:
            read = ReadRecordLetters(step.name, decode, tuple(schema.names), times, step.on_error)
        return self.leaf(step.name, read, pa.schema([*schema, *HIDDEN]), self.tasks)

    def _bolt(self, step: Bolt | ArrowBolt) -> None:
        flow = self._seen_by(step).named(step.name)
        columns = tuple(name for name in flow.schema.names if name not in (*HIDDEN.names, HASH))
        copies = None
        if step.grouping is not None:
            flow = self._grouped(flow, step)
            copies = step.grouping.tasks if step.grouping.kind == "everyone" else None
        if self.retrying:
            flow = self._with_letters(flow, step)
        returns = pa.schema(
            [pa.field(column.name, arrow_type(column.type or "string"), column.nullable) for column in step.schema]
        )
        what = (step.name, step.function, columns, returns, step.on_error, copies, step.event_time)
        timed_at = step.at if goes_by_time_below(self.topology, step.name) else None
        stage = RowBolt(*what) if isinstance(step, Bolt) else BatchBolt(*what, timed_at)
        self._give(step, flow.then(stage, pa.schema([*returns, *HIDDEN])))

    def _with_letters(self, flow: Flow, step: Bolt | ArrowBolt | Process) -> Flow:
        """What flows into a step, and after it the rows on which it failed before: as they were for the one task of
        its grouping, after they were brought to tasks.
        """
        schema = flow.schema.append(pa.field(LETTER_ID, pa.int64()))
        return flow.then(AlsoLetters(ReadRowLetters(step.name, schema, step.on_error)), schema)

    def _grouped(self, flow: Flow, step: Bolt | ArrowBolt) -> Flow:
        """Bring tuples to tasks. One task needs no bringing; only `everyone` changes what a bolt sees."""
        grouping = step.grouping
        assert grouping is not None
        count = grouping.tasks or self.tasks
        if grouping.kind == "everyone":
            copied = flow.then(CopyToAll(count), pa.schema([*flow.schema, (TASK, pa.int32())]))
            return copied if self.tasks == 1 else copied.over(copied.dataframe().repartition(count, TASK))
        if self.tasks == 1:
            return flow
        df = flow.dataframe()
        if grouping.kind == "fields":
            return flow.over(df.repartition(count, *(quoted(name) for name in grouping.names)))
        return flow.over(df.repartition(count))

    def _sql(self, step: Sql) -> None:
        source = step.inputs[0]
        flow = self._seen_by(step).named(step.name)
        flow.dataframe().createOrReplaceTempView(quoted(source))
        df = self.spark.sql(carry_columns(step.query, HIDDEN.names))
        self.spark.catalog.dropTempView(source)
        self._give(step, flow.over(df).needing(of_sql(step.name)))

    def _where(self, step: Where) -> None:
        def wanted(flow: Flow) -> Flow:
            if step.is_table:
                return wanted_changes(flow, step, self._times(step)).named(step.name)
            wanted = [(step.predicate, pa.bool_())]
            found = in_arrow(wanted, flow.schema) if flow.stages else None
            if found is not None:
                return flow.then(KeepWhere(*found)).named(step.name)
            kept = flow.over(flow.dataframe().where(step.predicate)).named(step.name)
            return kept.needing(*why_not(step.name, wanted, flow))

        self._give_mapped(step, wanted)

    def _select(self, step: Select) -> None:
        def mapped(flow: Flow) -> Flow:
            if step.is_table:
                return selected_changes(flow, step, self._times(step)).named(step.name)
            made = [f"{text} AS {quoted(name)}" for name, text in step.expressions.items()]
            selected = flow.over(flow.dataframe().selectExpr(*made, *HIDDEN.names)).named(step.name)
            types = [selected.schema.field(name).type for name in step.expressions]
            wanted = list(zip(step.expressions.values(), types, strict=True))
            found = in_arrow(wanted, flow.schema) if flow.stages else None
            if found is None:
                return selected.needing(*why_not(step.name, wanted, flow))
            stage = ComputeColumns(tuple(step.expressions), found, tuple(HIDDEN.names))
            return flow.then(stage, selected.schema).named(step.name)

        self._give_mapped(step, mapped)

    def _give_mapped(self, step: Where | Select, mapped: Callable[[Flow], Flow]) -> None:
        source = step.inputs[0]
        whole = self.steps[source].whole
        self._give(step, mapped(self.rows_of(source)), None if whole is None else lambda: mapped(whole()))

    def _union(self, step: Union) -> None:
        columns = [*step.schema.names, *HIDDEN.names]
        first = self.rows_of(step.inputs[0])
        if self.tasks == 1:
            schema = pa.schema([first.schema.field(name) for name in columns])
            run = tuple(name for name in step.inputs if self.beginning is None or self.beginning.runs(name))
            self._give(step, self.left_by(run or step.inputs, schema, 1).named(step.name))
            return
        df = first.dataframe().select(*map(quoted, columns))
        for name in step.inputs[1:]:
            df = df.unionByName(self.rows_of(name).dataframe().select(*map(quoted, columns)))
        flows = [self.rows_of(source) for source in step.inputs]
        reads = tuple(dict.fromkeys(name for flow in flows for name in flow.reads))
        earlier = tuple(stages for flow in flows for stages in flow.passes)
        self._give(step, replace(first.over(df), name=step.name, reads=reads, earlier=earlier))

    def _output(self, step: Output) -> None:
        schema = self.outputs[step.name]
        rows = pa.schema([*schema, *HIDDEN])
        self.steps[step.name] = CompiledStep(schema, lambda tasks: self.left_by((step.name,), rows, tasks))

    def _sink(self, step: Sink) -> None:
        source = self.steps[step.inputs[0]]
        filled = partial(self._whole, step) if step.is_table else None
        self.steps[step.name] = replace(source, shape=None, rejects=None, refill=None, fills_outbox=filled)

    def _whole(self, sink: Sink) -> Job:
        """All rows of the sink's table, as inserts, into its outbox."""
        source = sink.inputs[0]
        whole = self.steps[source].whole
        assert whole is not None, source
        return whole().then(Deliver(source, (sink.name,))).ended()
