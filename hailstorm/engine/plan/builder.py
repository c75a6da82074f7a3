"""What all kinds of steps need of the compiler: leaves, how rows reach who reads a step, and questions to the graph.

compiler.py and stateless.py build on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa
from pyspark.sql import SparkSession

from hailstorm.columns import HASH, HIDDEN, KIND, OLD
from hailstorm.engine.plan.flow import Flow, Job
from hailstorm.engine.plan.plan import Branch, CompiledStep
from hailstorm.engine.stages.chain import Stage
from hailstorm.engine.stages.deposit import Deliver, GiveErrors, Leave, Outlet
from hailstorm.engine.stages.marks import MarkRows, Unmark
from hailstorm.engine.stages.order import Inbox
from hailstorm.engine.stages.read import KeepCovered
from hailstorm.engine.stages.rows import AsVersions, ReadNothing, ReadRows, ReadWhole
from hailstorm.engine.stages.table_changes import SeenChanges
from hailstorm.ledger.commit import PanesShape, StepShape
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.letters import LETTER
from hailstorm.topology.arrow_types import spark_name
from hailstorm.topology.ends import Sink
from hailstorm.topology.stateful import WindowedFold
from hailstorm.topology.stateless import Output
from hailstorm.topology.step import Step
from hailstorm.topology.times import times_matter
from hailstorm.topology.topology import Topology


@dataclass(frozen=True)
class Beginning:
    """A plan for steps that are new to tables that have rows: it brings them these rows, and runs nothing else."""

    steps: frozenset[str]  # that are run: those that begin, and all below them
    readers: frozenset[str]  # that begin with the whole of the tables that they read

    def runs(self, branch: str) -> bool:
        return branch.partition(".")[0] in self.steps


@dataclass
class Builder:
    spark: SparkSession
    topology: Topology
    tasks: int
    retrying: bool = False
    beginning: Beginning | None = None
    marking: bool = False  # rows say which rows of the steps above they were made of (stages/marks.py)
    branches: list[Branch] = field(default_factory=list)
    steps: dict[str, CompiledStep] = field(default_factory=dict)
    outputs: dict[str, pa.Schema] = field(default_factory=dict)  # public columns of named outputs, by whole name
    versions: dict[str, Callable[[int], Flow]] = field(default_factory=dict)  # of tables: every record that they got

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.spark.sparkContext)
        self.spark.conf.set("spark.sql.shuffle.partitions", str(self.tasks))

    def leaf(self, name: str, stage: Stage, schema: pa.Schema, tasks: int, reads: tuple[str, ...] = ()) -> Flow:
        return Flow(name, self.spark.range(0, tasks, 1, tasks), (stage,), schema, reads, self.inbox)

    def left_by(self, names: tuple[str, ...], schema: pa.Schema, tasks: int) -> Flow:
        """What branches leave under these names. One task reads them where they are, and one after the other."""
        reads = tuple(dict.fromkeys(names))
        return self.leaf(f"{names[0]}>", ReadRows(names, tuple(schema.names), tasks), schema, tasks, reads)

    def rows_of(self, name: str, tasks: int | None = None, reader: str = "") -> Flow:
        """What a step gives in a tick. At a beginning steps that are not run give nothing; but the tables of a
        `reader` that begins give all their rows."""
        given = self.steps[name]
        if self.beginning is None or self.beginning.runs(name):
            return given.rows(tasks or self.tasks)
        if given.whole is not None and reader in self.beginning.readers:
            return given.whole()
        return self.leaf(f"{name}-", ReadNothing(), given.rows(1).schema, 1)

    def versions_of(self, table: str, reader: str) -> Flow:
        """Every record that a table gets in a tick. At a beginning, what it holds: newest versions."""
        records = self.versions[table](self.tasks)
        if self.beginning is None or self.beginning.runs(table):
            return records
        return self.rows_of(table, reader=reader).then(AsVersions(records.schema), records.schema)

    def _seen_by(self, step: Step) -> Flow:
        """What a bolt reads. Of a table, no changes that are of the time alone."""
        source = self.topology.step(step.inputs[0])
        flow = self.rows_of(source.name)
        seen = flow.then(SeenChanges()) if self._times(source) else flow
        if self.marking and step.keeps_state:
            return seen.then(Unmark())
        return seen.then(MarkRows(source.name)) if self.marking and source.is_table else seen

    def _given_rows(self, step: Step, name: str) -> Flow:
        """The rows of a stream for a stateful step; of retried ones, those that it was given before."""
        flow = self.rows_of(name)
        if self.marking:
            flow = flow.then(Unmark())
        return flow.then(KeepCovered(step.name)) if self.retrying else flow

    def _start(self, step: Step) -> Flow:
        """Where one task begins that reads what is due for a step."""
        return Flow(f"{step.name}.due", self.spark.range(0, 1, 1, 1), (), pa.schema([]), (), self.inbox)

    def _give(self, step: Step, flow: Flow, whole: Callable[[], Flow] | None = None) -> None:
        """Decide how a stateless step's rows reach those who read it: in the same flow, or where they are left."""
        sinks, readers = self.consumers(step)
        hidden = (*HIDDEN.names, HASH, KIND, OLD)
        schema = pa.schema([f for f in flow.schema if f.name not in hidden])
        errors = self.outlet(step, "errors", LETTER) if step.gives_errors else None
        if errors is not None:
            flow = flow.then(GiveErrors(step.name, errors))
        if sinks:
            flow = flow.then(Deliver(step.name, sinks, self._times(step)))
        alone = len(readers) == 1 and (self.tasks > 1 or len(self.topology.step(readers[0]).inputs) == 1)
        if alone and errors is None:
            self.steps[step.name] = CompiledStep(schema, lambda tasks: flow, whole)
            return
        outputs = () if errors is None else (errors.name,)
        self.branches.append(Branch(step.name, flow.then(Leave(step.name)) if readers else flow, outputs=outputs))
        self.steps[step.name] = CompiledStep(
            schema, lambda tasks: self.left_by((step.name,), flow.schema, tasks), whole
        )

    def _give_stream(
        self, step: Step, flow: Flow, schema: pa.Schema, layouts: tuple[Layout, ...], late: Outlet | None
    ) -> None:
        """Let others read what a stateful step leaves, which is no table."""
        self.branches.append(Branch(step.name, flow, outputs=() if late is None else (late.name,)))
        self._give_rows(step, schema, shape_of_stream(step, schema, layouts))

    def _give_rows(self, step: Step, schema: pa.Schema, shape: StepShape) -> None:
        rows = pa.schema([*schema, *HIDDEN])
        self.steps[step.name] = CompiledStep(schema, partial(self.left_by, (step.name,), rows), shape=shape)

    def _give_table(
        self,
        step: Step,
        key: pa.Schema,
        values: pa.Schema,
        layouts: tuple[Layout, ...],
        *,
        rejects: Job | None = None,
        refill: Job | None = None,
        waits: str = "",
        hashed: tuple[str, ...] | None = None,
        panes: PanesShape | None = None,
    ) -> None:
        """Let others read the table's changes, or its whole state. `waits`: rows without this are not shown."""
        changes = pa.schema(
            [*key, *values, (KIND, pa.string()), (OLD, pa.struct(list(values))), *HIDDEN, (HASH, pa.int64())]
        )
        self.steps[step.name] = CompiledStep(
            pa.schema([*key, *values]),
            rows=lambda tasks: self.left_by((step.name,), changes, tasks),
            whole=lambda: self.leaf(f"{step.name}*", ReadWhole(layouts[0], changes, waits), changes, 1),
            shape=shape_of(step, key, values, layouts, waits, hashed, panes),
            rejects=rejects,
            refill=refill,
        )

    def outlet(self, step: Step, output: str, schema: pa.Schema) -> Outlet | None:
        """Where the rows of a named output go, with these public columns; None when nobody wants them."""
        name = f"{step.name}.{output}"
        self.outputs[name] = schema
        declared = next((one for one in self.topology.steps if one.name == name), None)
        if declared is None:
            return None
        sinks, readers = self.consumers(declared)
        # A dead letter knows its record.
        return Outlet(name, sinks, bool(readers), self.marking and output != "errors")

    def _outlet_of(self, step: Step) -> Outlet:
        """Where the rows of a stateful step go that is no table."""
        sinks, readers = self.consumers(step)
        return Outlet(step.name, sinks, bool(readers), self.marking)

    def consumers(self, step: Step) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The names of the sinks, and of the other steps, that read this step."""
        found = self.topology.consumers(step.name)
        sinks = tuple(consumer.name for consumer in found if not consumer.gives_rows)
        # A union may read a step twice: then there are two readers, and the step must run once all the same.
        # A named output reads nothing of the step's own rows.
        readers = [(consumer.name, consumer.inputs) for consumer in found if not isinstance(consumer, Sink | Output)]
        return sinks, tuple(name for name, inputs in readers for _ in range(inputs.count(step.name)))

    def _times(self, step: Step) -> bool:
        """Whether this is a table whose changes may be of the time alone."""
        return step.is_table and times_matter(self.topology, step.name)

    def _times_of_keys(self, step: Step) -> bool:
        """Whether the time of a table's row is a matter of its key alone: a window's last moment."""
        while step.is_table and step.has_keys_of_input:
            step = self.topology.step(step.inputs[0])
        return isinstance(step, WindowedFold)

    def _root_table(self, step: Step) -> str:
        """The stateful step whose rows a table's rows are made of, one to one."""
        source = step.inputs[0]
        while self.steps[source].shape is None:
            source = self.topology.step(source).inputs[0]
        return source


def public_columns(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if field.name not in (*HIDDEN.names, HASH)])


def shape_of(
    step: Step,
    key: pa.Schema,
    values: pa.Schema,
    layouts: tuple[Layout, ...],
    waits: str = "",
    hashed: tuple[str, ...] | None = None,
    panes: PanesShape | None = None,
) -> StepShape:
    return StepShape(
        kind=step.kind,
        key=tuple(key.names),
        values=tuple(values.names),
        key_types=tuple(spark_name(field.type) for field in key),
        value_types=tuple(step.value_types[name] for name in values.names) if step.value_types else (),
        tables={layout.table: layout.key for layout in layouts},
        waits=waits,
        order=(waits,) if waits in values.names else (),
        hashed=hashed,
        agendas={layout.table: layout.clock for layout in layouts if layout.clock},
        panes=panes,
    )


def shape_of_stream(step: Step, schema: pa.Schema, layouts: tuple[Layout, ...]) -> StepShape:
    """Of a step that keeps state, and gives rows of a stream."""
    return StepShape(
        kind=step.kind,
        key=(),
        values=tuple(schema.names),
        tables={layout.table: layout.key for layout in layouts},
        agendas={layout.table: layout.clock for layout in layouts if layout.clock},
    )
