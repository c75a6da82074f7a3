"""The compiler: walks the steps of a topology and makes the plan (plan.py), one small method a kind of step.

Folds are in fold_plan.py, expressions that need no Spark in expressions.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from hailstorm.engine.expressions import in_arrow
from hailstorm.engine.flow import Flow, arrow_schema
from hailstorm.engine.fold_plan import FoldPlan, TableFoldPlan
from hailstorm.engine.order import Inbox
from hailstorm.engine.plan import Branch, Plan, Refill
from hailstorm.engine.shipping import ship_by_value
from hailstorm.engine.stages.bolt import BatchBolt, RowBolt
from hailstorm.engine.stages.chain import Fan, Stage
from hailstorm.engine.stages.compute import ComputeColumns, KeepWhere
from hailstorm.engine.stages.deposit import Deposit
from hailstorm.engine.stages.read import HIDDEN, ReadChanges, ReadLetters, ReadLog, ReadScratch
from hailstorm.engine.stages.top import KeepTop
from hailstorm.engine.table_sql import selected_changes, wanted_changes
from hailstorm.errors import TopologyError
from hailstorm.ledger.runs import HASH
from hailstorm.spouts.decode import decoder
from hailstorm.topology.arrow_types import arrow_type, spark_name
from hailstorm.topology.query import carry_columns
from hailstorm.topology.step import ArrowBolt, Bolt, Fold, Select, Sink, Spout, Sql, Step, Top, Union, Where
from hailstorm.topology.topology import Topology


def compile_topology(spark: SparkSession, topology: Topology, tasks: int, retrying: bool = False) -> Plan:
    """Compile for so many tasks. Asks Spark for types, which takes a while, but runs no job.

    `retrying` gives a plan that reads no log: dead letters enter each step at which they failed.
    """
    ship_by_value(topology.folder)
    return Compiler(spark, topology, tasks, retrying).plan()


@dataclass
class Compiler:
    spark: SparkSession
    topology: Topology
    tasks: int
    retrying: bool = False
    branches: list[Branch] = field(default_factory=list)
    outputs: dict[str, Callable[[int], Flow]] = field(default_factory=dict)
    states: dict[str, Callable[[], Flow]] = field(default_factory=dict)  # a table's whole state, as inserts
    rejects: dict[str, DataFrame] = field(default_factory=dict)
    refills: dict[str, Refill] = field(default_factory=dict)
    schemas: dict[str, pa.Schema] = field(default_factory=dict)
    stateful: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.spark.sparkContext)
        self.spark.conf.set("spark.sql.shuffle.partitions", str(self.tasks))

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
            Top: self._top,
            Sink: lambda step: None,
        }
        for step in self.topology.steps:
            try:
                kinds[type(step)](step)
            except (AnalysisException, ParseException) as error:
                first = str(error).partition("\n")[0].partition(" SQLSTATE")[0]
                raise TopologyError(90, f"Spark refuses step '{step.name}': {first}", at=step.at) from error
        return Plan(
            self.tasks,
            self._fused() if self.tasks == 1 else tuple(self.branches),
            self.rejects,
            self.refills,
            self.schemas,
            self.stateful,
            self.inbox,
        )

    # Leaves

    def _leaf(self, name: str, wave: int, stage: Any, schema: pa.Schema, tasks: int) -> Flow:
        base = self.spark.range(0, tasks, 1, tasks)
        return Flow(name, base, (stage,), schema, wave, self.inbox)

    def _spout(self, step: Spout) -> None:
        columns = [(column.name, column.type or "string") for column in step.schema]
        schema = pa.schema([(name, arrow_type(type_)) for name, type_ in columns])
        required = [column.name for column in step.schema if not column.nullable]
        decode = decoder(step.decode, columns, required) if step.source.columns is None else None
        read: Any = ReadLog(step.name, step.source, decode, tuple(schema.names), step.event_time, step.on_error)
        if self.retrying:
            again = decode or decoder("json", columns)
            read = ReadLetters(step.name, again, tuple(schema.names), step.event_time, step.on_error)
        self._publish(step, self._leaf(step.name, 0, read, pa.schema([*schema, *HIDDEN]), self.tasks))

    def flow_of(self, name: str, tasks: int | None = None) -> Flow:
        return self.outputs[name](tasks or self.tasks)

    # Stateless steps

    def _bolt(self, step: Bolt | ArrowBolt) -> None:
        flow = self.flow_of(step.inputs[0]).named(step.name)
        columns = tuple(name for name in flow.schema.names if name not in (*HIDDEN.names, HASH))
        if self.retrying:
            flow = self._with_letters(flow, step, columns)
        copies = None
        if step.grouping is not None:
            flow = self._grouped(flow, step)
            copies = step.grouping.tasks if step.grouping.kind == "everyone" else None
        returns = pa.schema(
            [pa.field(column.name, arrow_type(column.type or "string"), column.nullable) for column in step.schema]
        )
        kind = RowBolt if isinstance(step, Bolt) else BatchBolt
        stage = kind(step.name, step.function, columns, returns, step.on_error, copies)
        self._publish(step, flow.then(stage, pa.schema([*returns, *HIDDEN])))

    def _with_letters(self, flow: Flow, step: Bolt | ArrowBolt, columns: tuple[str, ...]) -> Flow:
        """What flows into a step, and beside it the rows on which it failed before."""
        public = pa.schema([flow.schema.field(name) for name in columns])
        typed = [(field.name, spark_name(field.type)) for field in (*public, HIDDEN.field("_time"))]
        read = ReadLetters(step.name, decoder("json", typed), columns, "_time", step.on_error)
        letters = self._leaf(f"{step.name}!letters", flow.wave, read, pa.schema([*public, *HIDDEN]), 1)
        names = [_quoted(name) for name in letters.schema.names]
        return flow.over(flow.dataframe().select(*names).unionAll(letters.dataframe()).coalesce(1))

    def _grouped(self, flow: Flow, step: Bolt | ArrowBolt) -> Flow:
        """Bring tuples to tasks. One task needs no bringing; only `everyone` changes what a bolt sees."""
        grouping = step.grouping
        assert grouping is not None
        count = grouping.tasks or self.tasks
        if grouping.kind == "everyone":
            df = flow.dataframe().selectExpr("*", f"explode(sequence(0, {count - 1})) AS _task")
            return flow.over(df if self.tasks == 1 else df.repartition(count, "_task"))
        if self.tasks == 1:
            return flow
        df = flow.dataframe()
        if grouping.kind == "fields":
            return flow.over(df.repartition(count, *(_quoted(name) for name in grouping.names)))
        return flow.over(df.repartition(count))

    def _sql(self, step: Sql) -> None:
        source = step.inputs[0]
        flow = self.flow_of(source).named(step.name)
        flow.dataframe().createOrReplaceTempView(_quoted(source))
        df = self.spark.sql(carry_columns(step.query, HIDDEN.names))
        self.spark.catalog.dropTempView(source)
        self._publish(step, flow.over(df))

    def _where(self, step: Where) -> None:
        def wanted(flow: Flow) -> Flow:
            df = flow.dataframe()
            if step.is_table:
                return flow.over(wanted_changes(df, step, self._values(step))).named(step.name)
            kept = flow.over(df.where(step.predicate))
            found = in_arrow([(step.predicate, pa.bool_())], flow.schema) if flow.stages else None
            return (kept if found is None else flow.then(KeepWhere(*found))).named(step.name)

        self._publish_mapped(step, wanted)

    def _select(self, step: Select) -> None:
        def mapped(flow: Flow) -> Flow:
            df = flow.dataframe()
            if step.is_table:
                upstream = self.topology.step(step.inputs[0])
                return flow.over(selected_changes(df, step, self._values(upstream))).named(step.name)
            made = [f"{text} AS {_quoted(name)}" for name, text in step.expressions.items()]
            selected = flow.over(df.selectExpr(*made, *HIDDEN.names)).named(step.name)
            types = [selected.schema.field(name).type for name in step.expressions]
            wanted = zip(step.expressions.values(), types, strict=True)
            found = in_arrow(wanted, flow.schema) if flow.stages else None
            if found is None:
                return selected
            stage = ComputeColumns(tuple(step.expressions), found, tuple(HIDDEN.names))
            return flow.then(stage, selected.schema).named(step.name)

        self._publish_mapped(step, mapped)

    def _publish_mapped(self, step: Where | Select, mapped: Callable[[Flow], Flow]) -> None:
        source = step.inputs[0]
        if step.is_table:
            self.states[step.name] = lambda: mapped(self.states[source]())
        self._publish(step, mapped(self.flow_of(source)))

    def _union(self, step: Union) -> None:
        flows = [self.flow_of(name) for name in step.inputs]
        columns = [*step.schema.names, *HIDDEN.names]
        df = flows[0].dataframe().select(*map(_quoted, columns))
        for flow in flows[1:]:
            df = df.unionByName(flow.dataframe().select(*map(_quoted, columns)))
        if self.tasks == 1:
            df = df.coalesce(1)  # one partition again, or the next fold would need a shuffle
        wave = max(flow.wave for flow in flows)
        schema = arrow_schema(df)
        self._publish(step, Flow(step.name, df, (), schema, wave, self.inbox))

    def _publish(self, step: Step, flow: Flow) -> None:
        """Decide how a stateless step's rows reach its consumers: inline, through outboxes, or through scratch."""
        sinks, readers = self._consumers(step)
        hidden = (*HIDDEN.names, HASH, "_kind", "_old")
        self.schemas[step.name] = pa.schema([f for f in flow.schema if f.name not in hidden])
        if not sinks and len(readers) == 1:
            self.outputs[step.name] = lambda tasks: flow
            return
        if len(readers) == 1 and not step.is_table:
            forwarding = flow.then(Deposit(step.name, sinks, feeds=False, forwards=True))
            self.outputs[step.name] = lambda tasks: forwarding
            return
        end = flow.then(Deposit(step.name, sinks, feeds=bool(readers), forwards=False))
        self.branches.append(Branch(step.name, end))
        names = tuple(flow.schema.names)
        self.outputs[step.name] = lambda tasks: self._leaf(
            f"{step.name}>", flow.wave + 1, ReadScratch(step.name, names, tasks), flow.schema, tasks
        )

    # Stateful steps

    def _fold(self, step: Fold) -> None:
        source = self.topology.step(step.inputs[0])
        flow = self.flow_of(source.name).named(step.name)
        sinks, readers = self._consumers(step)
        kind = TableFoldPlan if source.is_table else FoldPlan
        # With one task the only reader can go on in the same pass: that saves a wave.
        forwards = self.tasks == 1 and len(readers) == 1
        fold = kind(step, source, flow, self.tasks, sinks, bool(readers) and not forwards, forwards)
        written, values, rejects = fold.compiled()
        if rejects is not None:
            self.rejects[step.name] = rejects
        key = pa.schema([fold.key_field(name) for name in step.key])
        changes = self._publish_table(step, key, values, flow.wave)
        if forwards:
            self.outputs[step.name] = lambda tasks: replace(written, schema=changes)
        else:
            self.branches.append(Branch(step.name, written))

    def _top(self, step: Top) -> None:
        source = self.topology.step(step.inputs[0])

        def in_one_task(flow: Flow) -> Flow:
            if step.by not in flow.schema.names:
                flow = flow.over(flow.dataframe().selectExpr("*", f"{step.by} AS _by"))
            if not flow.stages and self.tasks > 1:
                flow = flow.over(flow.base.repartition(1))
            return flow.named(step.name)

        flow = in_one_task(self.flow_of(source.name, tasks=1))
        by = step.by if step.by in flow.schema.names else "_by"
        values = pa.schema([flow.schema.field(n) for n in self.schemas[source.name].names if n not in step.key])
        key = pa.schema([flow.schema.field(name) for name in step.key])
        sinks, readers = self._consumers(step)
        root = self._root_table(source)
        stage = KeepTop(
            step=step.name,
            table=root,
            n=step.n,
            by=by,
            key=step.key,
            values=tuple(values.names),
            schema=pa.schema([*key, *values, ("_by", flow.schema.field(by).type), (HASH, pa.int64())]),
            sinks=sinks,
            feeds=bool(readers),
        )
        self.branches.append(Branch(step.name, flow.then(stage)))
        again = in_one_task(self.states[source.name]())
        self.refills[step.name] = Refill(root, again.then(stage).ended())
        self._publish_table(step, key, pa.schema([*values, ("rank", pa.int32())]), flow.wave)

    def _publish_table(self, step: Step, key: pa.Schema, values: pa.Schema, wave: int) -> pa.Schema:
        """Let later waves read the table's changes, and a refill its whole state. The schema of the changes."""
        self.schemas[step.name] = pa.schema([*key, *values])
        self.stateful[step.name] = tuple(values.names)
        schema = pa.schema(
            [*key, *values, ("_kind", pa.string()), ("_old", pa.struct(list(values))), *HIDDEN, (HASH, pa.int64())]
        )
        columns, key_names, value_names = tuple(schema.names), tuple(key.names), tuple(values.names)

        def leaf(tasks: int) -> Flow:
            read = ReadChanges(step.name, columns, tasks, key_names, value_names, schema)
            return self._leaf(f"{step.name}>", wave + 1, read, schema, tasks)

        self.outputs[step.name], self.states[step.name] = leaf, lambda: leaf(1)
        return schema

    def _fused(self) -> tuple[Branch, ...]:
        """With one task, a branch that only reads what another one leaves goes on in its pass: a pass costs more than
        a small fold. What all readers get in this way is left for nobody.
        """

        def whole(branch: Branch) -> Flow:
            chains = tuple(whole(reader).stages[1:] for reader in self.branches if reader.reads == branch.step)
            if not chains:
                return branch.flow
            *before, deposit = branch.flow.stages
            assert isinstance(deposit, Deposit)
            _, readers = self._consumers(self.topology.step(branch.step))
            feeding = replace(deposit, feeds=len(chains) < len(readers), forwards=True)
            fan = Fan(
                side_by_side=tuple(chain for chain in chains if not _calls_users(chain)),
                in_turn=tuple(chain for chain in chains if _calls_users(chain)),
                threads=self.spark.sparkContext.defaultParallelism,
            )
            return replace(branch.flow, stages=(*before, feeding, fan))

        return tuple(Branch(branch.step, whole(branch)) for branch in self.branches if branch.reads is None)

    # Of the graph

    def _consumers(self, step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the sinks, and of the other steps, that read this step."""
        found = self.topology.consumers(step.name)
        sinks = tuple(consumer.name for consumer in found if isinstance(consumer, Sink))
        # A union may read a step twice: then there are two readers, and the step must run once all the same.
        readers = [(consumer.name, consumer.inputs) for consumer in found if not isinstance(consumer, Sink)]
        return sinks, tuple(name for name, inputs in readers for _ in range(inputs.count(step.name)))

    def _values(self, step: Step) -> tuple[str, ...]:
        schema = self.schemas.get(step.name) or self.schemas[step.inputs[0]]
        return tuple(name for name in schema.names if name not in step.key)

    def _root_table(self, step: Step) -> str:
        """The stateful step whose rows a table's rows are made of, one to one."""
        while not isinstance(step, Fold | Top):
            step = self.topology.step(step.inputs[0])
        return step.name


def _calls_users(stages: Iterable[Stage]) -> bool:
    """Whether functions of users run in these stages.

    Folds with monoids of their own are not fused: the JVM groups their rows.
    """
    return any(isinstance(stage, RowBolt | BatchBolt) or (isinstance(stage, Fan) and stage.in_turn) for stage in stages)


def _quoted(name: str) -> str:
    return f"`{name}`"
