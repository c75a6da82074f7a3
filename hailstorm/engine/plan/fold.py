"""How a fold becomes DataFrames: aggregate, look up and merge, write.

Rows are aggregated in the pass that holds them, where Arrow can do that, and else in the JVM. Of several tasks each
aggregates what it has; then Spark brings the parts of a key to the task that owns it.

A fold of a stream aggregates this tick's rows and merges them with what was. Folds of tables build on it
(table_fold.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField

from hailstorm.algebra.monoid import AnyMonoid, ArrowLift, Monoid, Pieces, SqlMonoid, TypeRefused
from hailstorm.columns import (
    EVENT_TIME,
    FOUND,
    HASH,
    MEMBERS,
    OLD_VALUE,
    PRIOR,
    STATE,
    TIME,
    quoted,
)
from hailstorm.engine.plan.flow import Flow, Job, arrow_schema, type_text, why_not
from hailstorm.engine.plan.needs import Need, of_keys, of_monoids
from hailstorm.engine.plan.ranges import PACKED, at_owners, numbers, owned
from hailstorm.engine.spark.session import is_on_this_machine
from hailstorm.engine.stages.chain import Stage
from hailstorm.engine.stages.compute import ComputeColumns
from hailstorm.engine.stages.deposit import RefuseNullKeys
from hailstorm.engine.stages.due import ReadDue
from hailstorm.engine.stages.exchange import LeaveParts, PackParts, ReadParts, UnpackParts, part_names
from hailstorm.engine.stages.expressions import Column, Expression, in_arrow
from hailstorm.engine.stages.fold import Cell, FoldShape, LookUp, WriteFold
from hailstorm.engine.stages.group import GroupRows, Lifted, can_reduce
from hailstorm.engine.stages.own import ORIGIN, OwnMerge, OwnPresent
from hailstorm.engine.stages.reduce import ReduceStates, can_combine
from hailstorm.engine.stages.waiting import CLOSED, DUE, Waiting
from hailstorm.errors import TopologyError
from hailstorm.ledger.hashing import can_hash
from hailstorm.ledger.keyed_state import Layout
from hailstorm.topology.stateful import Fold
from hailstorm.topology.step import Step


@dataclass(frozen=True)
class Bound:
    """A monoid with its pieces for the types it meets here."""

    name: str
    monoid: AnyMonoid
    pieces: Pieces
    cell: Cell
    input_types: tuple[pa.DataType, ...]  # what Spark gives to the monoid's inputs
    sql_types: tuple[str, ...]  # the same, as Spark writes them

    @property
    def inputs(self) -> list[tuple[str, pa.DataType]]:
        """What it folds, as text, and the types of that."""
        return list(zip(self.monoid.inputs, self.input_types, strict=True))

    @property
    def lift(self) -> ArrowLift | None:
        """How Arrow folds rows of these types, where it folds them as Spark does."""
        lift = self.pieces.arrow.lift if self.pieces.arrow else None
        if lift is None or self.cell.merge is None:
            return None
        extreme = any(function in ("min", "max") for _, function in lift.aggregates)
        return None if extreme and not can_reduce(self.input_types) else lift


@dataclass
class FoldPlan:
    """A fold of a stream."""

    step: Fold
    source: Step
    flow: Flow
    tasks: int
    sinks: tuple[str, ...]
    feeds: bool
    times: bool  # the times of its rows matter to those who read it
    leaf: Callable[[str, Stage, pa.Schema, int, tuple[str, ...]], Flow]
    waiting: Waiting | None = None
    parts: Flow | None = None  # what leaves the parts of keys for those who own them, where that is a wave of its own

    replaces = False
    counts_members = False
    in_parts = True  # several tasks may each group what they have of a key

    @property
    def weight(self) -> str:
        """The column that says how often a row counts; none: once."""
        return ""

    @property
    def hashed(self) -> tuple[str, ...] | None:
        """What the `_hash` of rows that are grouped in Arrow is of; None: the key."""
        return None

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Its tables of state, the one that is shown first."""
        own = Layout(self.step.name, self.step.key)
        return (own, *self.waiting.agendas) if self.waiting is not None else (own,)

    def compiled(self) -> tuple[Flow, pa.Schema, Job | None]:
        """The flow that writes the fold, its value columns, and the rows with null keys where Spark must find them."""
        rows = self.rows()
        bound = self._bound(rows)
        shape = self._shape(bound, self.waiting)
        self.keys = self.key_fields(rows)
        values = pa.schema([(b.name, b.cell.value_type) for b in bound])
        grouped = self._grouped_in_arrow(bound)
        if grouped is not None:
            whole = grouped if self.tasks == 1 else self._owned(grouped, shape.cells)
            return self._written(whole, bound, shape), values, None
        delta = replace(self.flow.over(self._aggregated(rows, bound)), earlier=self.passes())
        delta = self._with_due(delta.needing(*self._why_not(bound)))
        return self._written(delta, bound, shape), values, self._rejects(rows)

    def _shape(self, bound: list[Bound], waiting: Waiting | None) -> FoldShape:
        return FoldShape(
            step=self.step.name,
            key=self.step.key,
            cells=tuple(b.cell for b in bound),
            replaces=self.replaces,
            counts_members=self.counts_members,
            sinks=self.sinks,
            feeds=self.feeds,
            times=self.times,
            waiting=waiting,
        )

    def key_fields(self, rows: DataFrame) -> dict[str, pa.Field]:
        return {name: arrow_schema(rows).field(name) for name in self.step.key}

    def key_field(self, name: str) -> pa.Field:
        return self.keys[name]

    def rows(self) -> DataFrame:
        """The rows to fold, as a DataFrame."""
        return self.flow.dataframe()

    def passes(self) -> tuple[tuple[Stage, ...], ...]:
        """The Python passes behind `rows`."""
        return self.flow.passes

    def lift(self, pieces: Pieces) -> str:
        return pieces.lift

    def extra(self) -> list[Any]:
        """Aggregates beside the monoids."""
        return []

    def _aggregated(self, rows: DataFrame, bound: list[Bound]) -> DataFrame:
        lifts = [F.expr(self.lift(b.pieces)).alias(STATE + b.name) for b in bound]
        extra = [F.max(EVENT_TIME).alias(EVENT_TIME), *self.extra()]
        if not self.step.key:
            # A global aggregate gives a row even when there is nothing to aggregate.
            counted = rows.agg(*lifts, *extra, F.count(F.lit(1)).alias("_rows")).where("_rows > 0").drop("_rows")
            return counted.withColumn(HASH, F.lit(0).cast("bigint"))
        key = [quoted(name) for name in self.step.key]
        if self.tasks > 1 and any(b.cell.state_type == pa.binary() for b in bound):
            # A sketch costs more to write, send and merge than the few rows it stands for: send the rows instead.
            rows = rows.repartition(self.tasks, *key)
        return rows.groupBy(*key).agg(*lifts, *extra).withColumn(HASH, F.xxhash64(*key))

    def _with_due(self, delta: Flow) -> Flow:
        """Of several tasks, each must get what is due of its keys. One task finds it all by itself (LookUp)."""
        if self.tasks == 1:
            return delta
        if self.waiting is not None:
            return self.brought_with_due(delta, self.step.key)
        # Spark spreads groups over tasks as it likes. On one machine that costs nothing: tasks share copies of runs.
        is_near = is_on_this_machine(delta.base.sparkSession) or not self.step.key
        return delta if is_near else delta.over(owned(delta.base, self.tasks))

    def brought_with_due(self, delta: Flow, by: tuple[str, ...]) -> Flow:
        """The rows and what is due, which has no time, at the tasks of these columns."""
        assert self.waiting is not None
        both = delta.base.unionByName(self.due(delta.schema).dataframe())
        return delta.over(owned(both, self.tasks, by) if by else both.repartition(1))

    def due(self, schema: pa.Schema) -> Flow:
        """What is due, as rows with this schema."""
        assert self.waiting is not None
        return self.leaf(f"{self.step.name}!due", ReadDue(self.waiting.agendas, schema), schema, 1, ())

    def _owned(self, parts: Flow, cells: tuple[Cell, ...]) -> Flow:
        """One row per key out of what the tasks have grouped, and what is due, at the task that owns the key."""
        if not is_on_this_machine(parts.base.sparkSession):
            # What is due comes from one task, in rows that Spark sends to their owners.
            waits = self.waiting is not None
            return self.brought_together(parts, self.step.key, cells) if waits else self._packed(parts, cells)
        step, tasks, names = self.step.name, self.tasks, part_names(self.step.name, self.tasks)
        self.parts = parts.named(f"{step}!parts").then(LeaveParts(step, tasks))
        agendas = self.waiting.agendas if self.waiting is not None else ()
        whole = self.leaf(step, ReadParts(step, parts.schema, tasks, agendas), parts.schema, tasks, names)
        return whole.then(ReduceStates(self.step.key, cells, beside_due=bool(agendas)))

    def _packed(self, parts: Flow, cells: tuple[Cell, ...]) -> Flow:
        """The same through Spark's shuffle, which sees bytes and no rows."""
        packed = parts.then(PackParts(numbers(self.tasks), PACKED), PACKED)
        sent = packed.over(at_owners(packed.dataframe(), self.tasks))
        return sent.then(UnpackParts(), parts.schema).then(ReduceStates(self.step.key, cells))

    def brought_together(self, parts: Flow, by: tuple[str, ...], cells: tuple[Cell, ...]) -> Flow:
        """The same through Spark, at the task that owns these columns."""
        sent = parts.over(parts.dataframe())
        waits = self.waiting is not None
        whole = self.brought_with_due(sent, by) if waits else sent.over(owned(sent.base, self.tasks))
        return whole.then(ReduceStates(self.step.key, cells, beside_due=waits))

    def _grouped_in_arrow(self, bound: list[Bound]) -> Flow | None:
        """Aggregate in the pass that holds the rows; None when the JVM has to.

        Inputs must be expressions that Arrow computes as Spark does, and of types whose order and equality are the
        same in both. Where one task holds all rows of a key, that is all; of several tasks, these are parts.
        """
        flow, alone = self.flow, self.tasks == 1
        if not flow.stages or self._why_not(bound):
            return None
        if not alone and not (self.in_parts and can_combine([b.cell for b in bound])):
            return None
        lifts, computed = [], dict[str, Expression]()
        for b in bound:
            lift, inputs = b.lift, in_arrow(b.inputs, flow.schema)
            assert lift is not None
            assert inputs is not None
            computed |= {f"_in_{one.text}": one for one in inputs if not isinstance(one.node, Column)}
            names = (one.node.name if isinstance(one.node, Column) else f"_in_{one.text}" for one in inputs)
            lifts.append(Lifted(b.name, tuple(names), lift))
        flow = self._keyed_in_arrow(flow)
        if computed:
            flow = flow.then(ComputeColumns(tuple(computed), tuple(computed.values())))
        states = [(STATE + b.name, b.cell.state_type) for b in bound]
        schema = pa.schema([*self.keys.values(), *states, (EVENT_TIME, TIME), (HASH, pa.int64())])
        parts = None if alone else schema
        return flow.then(GroupRows(self.step.key, tuple(lifts), self.weight, parts, self.hashed), schema)

    def _why_not(self, bound: list[Bound]) -> tuple[Need, ...]:
        """Why Arrow cannot aggregate the rows of a pass. There is no reason of its own where Spark has them."""
        flow, step = self.flow, self.step.name
        keys = [name for name in self.step.key if not can_hash(flow.schema.field(name).type)]
        monoids = [b.name for b in bound if b.lift is None]
        inputs = [one for b in bound if b.lift is not None for one in b.inputs]
        found = [*([of_keys(step, keys)] if keys else ()), *([of_monoids(step, monoids)] if monoids else ())]
        return (*found, *why_not(step, inputs, flow)) if flow.stages else ()

    def _keyed_in_arrow(self, flow: Flow) -> Flow:
        """The rows to group: those that have a key."""
        return flow.then(RefuseNullKeys(self.step.name, self.step.key)) if self.step.key else flow

    def _written(self, delta: Flow, bound: list[Bound], shape: FoldShape) -> Flow:
        flow = delta.then(LookUp(shape), self._looked_up_schema(bound))
        if any(b.cell.merge is None for b in bound):
            kept = [name for name in flow.schema.names if not name.startswith(PRIOR)]
            merged = flow.dataframe().selectExpr(*(self._merged(name, bound) for name in kept))
            presented = [
                f"{b.pieces.present.replace('{s}', quoted(STATE + b.name))} AS {quoted(b.name)}"
                for b in bound
                if b.cell.own_state and b.cell.present is None
            ]
            flow = flow.over(merged.selectExpr("*", *presented))
        return flow.then(WriteFold(shape))

    def _merged(self, column: str, bound: list[Bound]) -> str:
        for b in bound:
            if column == STATE + b.name and b.cell.merge is None and not self.replaces:
                prior, delta = quoted(PRIOR + b.name), quoted(STATE + b.name)
                both = b.pieces.merge.replace("{a}", prior).replace("{b}", delta)
                one = f"WHEN {prior} IS NULL THEN {delta} WHEN {delta} IS NULL THEN {prior}"
                return f"CASE {one} ELSE {both} END AS {delta}"
        return quoted(column)

    def _looked_up_schema(self, bound: list[Bound]) -> pa.Schema:
        fields: list[Any] = [*self.keys.values(), (HASH, pa.int64())]
        for b in bound:
            fields.append((STATE + b.name, b.cell.state_type))
            if b.cell.merge is None and not self.replaces:
                fields.append((PRIOR + b.name, b.cell.state_type))
            if b.cell.present is not None:
                fields.append((b.name, b.cell.value_type))
            fields.append((OLD_VALUE + b.name, b.cell.value_type))
        if self.counts_members:
            fields.append((MEMBERS, pa.int64()))
        waiting = [(DUE, pa.bool_()), (CLOSED, pa.bool_())] if self.waiting is not None else []
        return pa.schema([*fields, (FOUND, pa.bool_()), (EVENT_TIME, TIME), *waiting])

    def _rejects(self, rows: DataFrame) -> Job | None:
        if not self.step.key:
            return None
        null = " OR ".join(f"{quoted(name)} IS NULL" for name in self.step.key)
        flow = self.flow.over(rows.where(null)).named(f"{self.step.name}!null")
        return flow.then(RefuseNullKeys(self.step.name, self.step.key)).ended()

    def _bound(self, rows: DataFrame) -> list[Bound]:
        """Ask Spark for the types of all inputs at once, then bind each monoid."""
        texts = [text for monoid in self.step.monoids.values() for text in monoid.inputs]
        asked = rows.selectExpr(*(f"({text}) AS _{i}" for i, text in enumerate(texts))) if texts else None
        types = iter(asked.schema.fields if asked is not None else ())
        return [self._bind(rows, n, m, tuple(next(types) for _ in m.inputs)) for n, m in self.step.monoids.items()]

    def _bind(self, rows: DataFrame, name: str, monoid: AnyMonoid, inputs: tuple[StructField, ...]) -> Bound:
        input_types = tuple(to_arrow_type(field.dataType, timezone="UTC") for field in inputs)
        sql_types = tuple(type_text(field.dataType) for field in inputs)
        if isinstance(monoid, Monoid):
            pieces = self._own_pieces(monoid)
            state, value = (self._arrow_type(rows, t) for t in (pieces.state_type, pieces.value_type))
            # The value of one's own monoid is always stored beside the state: only Python can present it.
            own = OwnMerge(monoid, state, value, f"step '{self.step.name}', column '{name}',")
            cell = Cell(name, state, value, True, own, OwnPresent(monoid, value), own.combined)
            return Bound(name, monoid, pieces, cell, input_types, sql_types)
        assert isinstance(monoid, SqlMonoid)
        try:
            pieces = monoid.pieces(sql_types)
        except TypeRefused as error:
            raise TopologyError(
                91,
                f"step '{self.step.name}' cannot fold '{name}': {error}",
                at=self.step.at,
                hint=f"'{self.source.name}' has: {self.source.schema}",
            ) from error
        own_state = pieces.present != "{s}"
        arrow = pieces.arrow if pieces.arrow and bool(pieces.arrow.present) == own_state else None
        state, value = (self._arrow_type(rows, t) for t in (pieces.state_type, pieces.value_type))
        merge, present = (arrow.merge, arrow.present) if arrow else (None, None)
        cell = Cell(name, state, value, own_state, merge, present, merge)
        return Bound(name, monoid, pieces, cell, input_types, sql_types)

    def _own_pieces(self, monoid: Monoid) -> Pieces:
        own = [f"'_{i}', {text}" for i, text in enumerate(monoid.inputs)]
        fields = ", ".join([*own, *(f"'{name}', {name}" for name in ORIGIN)])
        return Pieces(monoid.state, monoid.value or monoid.state, f"collect_list(named_struct({fields}))", "")

    def _arrow_type(self, rows: DataFrame, ddl: str) -> pa.DataType:
        parsed = rows.sparkSession.sql(f"SELECT CAST(NULL AS {ddl}) AS t").schema.fields[0].dataType
        return to_arrow_type(parsed, timezone="UTC")
