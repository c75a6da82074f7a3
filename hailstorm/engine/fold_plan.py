"""How a fold becomes DataFrames: aggregate in the JVM, look up and merge, write.

A fold of a stream aggregates this tick's rows and merges them with what was. A fold of a table gets rows that come
and go. Where every monoid has an inverse, a row that goes is subtracted; otherwise the group is folded again from
its members.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField

from hailstorm.algebra.monoid import AnyMonoid, Monoid, Pieces, SqlMonoid, TypeRefused
from hailstorm.engine.expressions import Column, Expression, in_arrow
from hailstorm.engine.flow import Flow, arrow_schema
from hailstorm.engine.own import OwnMerge, OwnPresent
from hailstorm.engine.stages.compute import ComputeColumns
from hailstorm.engine.stages.deposit import RefuseNullKeys
from hailstorm.engine.stages.fold import FOUND, MEMBERS, OLD, PRIOR, STATE, Cell, FoldShape, LookUp, WriteFold
from hailstorm.engine.stages.group import GroupRows, Lifted, can_reduce
from hailstorm.engine.stages.members import SIGN, ReplaceMembers
from hailstorm.engine.stages.read import HIDDEN, TIME
from hailstorm.errors import TopologyError
from hailstorm.ledger.hashing import can_hash
from hailstorm.ledger.runs import HASH
from hailstorm.topology.step import Fold, Step


@dataclass(frozen=True)
class Bound:
    """A monoid with its pieces for the types it meets here."""

    name: str
    monoid: AnyMonoid
    pieces: Pieces
    cell: Cell
    input_types: tuple[pa.DataType, ...]  # what Spark gives to the monoid's inputs


@dataclass
class FoldPlan:
    """A fold of a stream."""

    step: Fold
    source: Step
    flow: Flow
    tasks: int
    sinks: tuple[str, ...]
    feeds: bool
    forwards: bool

    replaces = False
    counts_members = False

    def compiled(self) -> tuple[Flow, pa.Schema, DataFrame | None]:
        """The flow that writes the fold, its value columns, and the rows with null keys where Spark must find them."""
        rows = self.rows()
        bound = self._bound(rows)
        shape = FoldShape(
            step=self.step.name,
            key=self.step.key,
            cells=tuple(b.cell for b in bound),
            replaces=self.replaces,
            counts_members=self.counts_members,
            sinks=self.sinks,
            feeds=self.feeds,
            forwards=self.forwards,
        )
        self.keys = {name: arrow_schema(rows).field(name) for name in self.step.key}
        values = pa.schema([(b.name, b.cell.value_type) for b in bound])
        grouped = self._grouped_in_arrow(bound)
        if grouped is not None:
            return self._written(grouped, bound, shape), values, None
        delta = self.flow.over(self._aggregated(rows, bound))
        return self._written(delta, bound, shape), values, self._rejects(rows)

    def key_field(self, name: str) -> pa.Field:
        return self.keys[name]

    def rows(self) -> DataFrame:
        """The rows to fold, as a DataFrame."""
        return self.flow.dataframe()

    def lift(self, pieces: Pieces) -> str:
        return pieces.lift

    def extra(self) -> list[Any]:
        """Aggregates beside the monoids."""
        return []

    def _aggregated(self, rows: DataFrame, bound: list[Bound]) -> DataFrame:
        lifts = [F.expr(self.lift(b.pieces)).alias(STATE + b.name) for b in bound]
        extra = [F.max("_time").alias("_time"), *self.extra()]
        if not self.step.key:
            # A global aggregate gives a row even when there is nothing to aggregate.
            counted = rows.agg(*lifts, *extra, F.count(F.lit(1)).alias("_rows")).where("_rows > 0").drop("_rows")
            return counted.withColumn(HASH, F.lit(0).cast("bigint"))
        key = [f"`{name}`" for name in self.step.key]
        if self.tasks > 1 and any(b.cell.state_type == pa.binary() for b in bound):
            # A sketch costs more to write, send and merge than the few rows it stands for: send the rows instead.
            rows = rows.repartition(self.tasks, *key)
        return rows.groupBy(*key).agg(*lifts, *extra).withColumn(HASH, F.xxhash64(*key))

    def _grouped_in_arrow(self, bound: list[Bound]) -> Flow | None:
        """Aggregate in the pass that holds the rows; None when the JVM has to.

        One task holds all rows of a key. Inputs must be expressions that Arrow computes as Spark does, and of types
        whose order and equality are the same in both.
        """
        flow, types = self.flow, self.flow.schema
        if self.tasks > 1 or not flow.stages or not all(can_hash(types.field(name).type) for name in self.step.key):
            return None
        lifts, computed = [], dict[str, Expression]()
        for b in bound:
            lift = b.pieces.arrow.lift if b.pieces.arrow else None
            inputs = in_arrow(zip(b.monoid.inputs, b.input_types, strict=True), types)
            if lift is None or b.cell.merge is None or inputs is None:
                return None
            extreme = any(function in ("min", "max") for _, function in lift.aggregates)
            if extreme and not can_reduce(b.input_types):
                return None
            computed |= {f"_in_{one.text}": one for one in inputs if not isinstance(one.node, Column)}
            names = (one.node.name if isinstance(one.node, Column) else f"_in_{one.text}" for one in inputs)
            lifts.append(Lifted(b.name, tuple(names), lift))
        if self.step.key:
            flow = flow.then(RefuseNullKeys(self.step.name, self.step.key))
        if computed:
            flow = flow.then(ComputeColumns(tuple(computed), tuple(computed.values())))
        return flow.then(GroupRows(self.step.key, tuple(lifts)))

    def _written(self, delta: Flow, bound: list[Bound], shape: FoldShape) -> Flow:
        flow = delta.then(LookUp(shape), self._looked_up_schema(bound))
        if any(b.cell.merge is None for b in bound):
            kept = [name for name in flow.schema.names if not name.startswith(PRIOR)]
            merged = flow.dataframe().selectExpr(*(self._merged(name, bound) for name in kept))
            presented = [
                f"{b.pieces.present.replace('{s}', f'`{STATE}{b.name}`')} AS `{b.name}`"
                for b in bound
                if b.cell.own_state and b.cell.present is None
            ]
            flow = flow.over(merged.selectExpr("*", *presented))
        return flow.then(WriteFold(shape))

    def _merged(self, column: str, bound: list[Bound]) -> str:
        for b in bound:
            if column == STATE + b.name and b.cell.merge is None and not self.replaces:
                prior, delta = f"`{PRIOR}{b.name}`", f"`{STATE}{b.name}`"
                both = b.pieces.merge.replace("{a}", prior).replace("{b}", delta)
                one = f"WHEN {prior} IS NULL THEN {delta} WHEN {delta} IS NULL THEN {prior}"
                return f"CASE {one} ELSE {both} END AS {delta}"
        return f"`{column}`"

    def _looked_up_schema(self, bound: list[Bound]) -> pa.Schema:
        fields: list[Any] = [*self.keys.values(), (HASH, pa.int64())]
        for b in bound:
            fields.append((STATE + b.name, b.cell.state_type))
            if b.cell.merge is None and not self.replaces:
                fields.append((PRIOR + b.name, b.cell.state_type))
            if b.cell.present is not None:
                fields.append((b.name, b.cell.value_type))
            fields.append((OLD + b.name, b.cell.value_type))
        if self.counts_members:
            fields.append((MEMBERS, pa.int64()))
        return pa.schema([*fields, (FOUND, pa.bool_()), ("_time", TIME)])

    def _rejects(self, rows: DataFrame) -> DataFrame | None:
        if not self.step.key:
            return None
        null = " OR ".join(f"`{name}` IS NULL" for name in self.step.key)
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
        if isinstance(monoid, Monoid):
            pieces = self._own_pieces(monoid)
            state, value = (self._arrow_type(rows, t) for t in (pieces.state_type, pieces.value_type))
            # The value of one's own monoid is always stored beside the state: only Python can present it.
            merge = OwnMerge(monoid, state, f"step '{self.step.name}', column '{name}',")
            cell = Cell(name, state, value, True, merge, OwnPresent(monoid, value))
            return Bound(name, monoid, pieces, cell, input_types)
        assert isinstance(monoid, SqlMonoid)
        try:
            pieces = monoid.pieces(tuple(field.dataType.simpleString() for field in inputs))
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
        cell = Cell(name, state, value, own_state, arrow.merge if arrow else None, arrow.present if arrow else None)
        return Bound(name, monoid, pieces, cell, input_types)

    def _own_pieces(self, monoid: Monoid) -> Pieces:
        fields = ", ".join(f"'_{i}', {text}" for i, text in enumerate(monoid.inputs))
        return Pieces(monoid.state, monoid.value or monoid.state, f"collect_list(named_struct({fields}))", "")

    def _arrow_type(self, rows: DataFrame, ddl: str) -> pa.DataType:
        parsed = rows.sparkSession.sql(f"SELECT CAST(NULL AS {ddl}) AS t").schema.fields[0].dataType
        return to_arrow_type(parsed, timezone="UTC")


@dataclass
class TableFoldPlan(FoldPlan):
    """A fold of a table: rows come and go."""

    counts_members = True

    def compiled(self) -> tuple[Flow, pa.Schema, DataFrame | None]:
        bound = self._bound(self._signed())
        self.replaces = any(isinstance(b.monoid, Monoid) or b.pieces.retract is None for b in bound)
        return super().compiled()

    def rows(self) -> DataFrame:
        return self._members(self._signed()) if self.replaces else self._signed()

    def lift(self, pieces: Pieces) -> str:
        if self.replaces or pieces.retract is None:
            return pieces.lift
        return pieces.retract.replace("{sign}", f"`{SIGN}`")

    def extra(self) -> list[Any]:
        counted = F.expr("sum(IF(_live, 1L, 0L))") if self.replaces else F.sum(F.expr(f"CAST({SIGN} AS BIGINT)"))
        return [counted.alias(MEMBERS)]

    def _grouped_in_arrow(self, bound: list[Bound]) -> Flow | None:
        return None  # rows that go are the JVM's to subtract

    def _signed(self) -> DataFrame:
        """Each change as the row that goes (-1) and the row that comes (+1)."""
        df = self.flow.dataframe()
        columns = self._columns()
        new = ", ".join(f"'{name}', `{name}`" for name in columns)
        old = ", ".join(
            f"'{name}', " + (f"`{name}`" if name in self.source.key else f"_old.`{name}`") for name in columns
        )
        hidden = ", ".join(f"'{name}', {name}" for name in HIDDEN.names)
        came = f"IF(_kind <> 'delete', named_struct({new}, '{SIGN}', 1, {hidden}), NULL)"
        went = f"IF(_kind <> 'insert', named_struct({old}, '{SIGN}', -1, {hidden}), NULL)"
        return df.selectExpr(f"inline(filter(array({came}, {went}), x -> x IS NOT NULL))")

    def _members(self, signed: DataFrame) -> DataFrame:
        key = [f"`{name}`" for name in self.step.key]
        hashed = signed.withColumn(HASH, F.xxhash64(*key) if key else F.lit(0).cast("bigint"))
        if self.tasks > 1:
            hashed = hashed.repartition(self.tasks, *key) if key else hashed.repartition(1)
        columns = self._columns()
        flow = self.flow.over(hashed).named(f"{self.step.name}.members")
        fields = [flow.schema.field(name) for name in (*columns, HASH)]
        stage = ReplaceMembers(self.step.name, self.step.key, self.source.key, columns)
        df = flow.then(stage, pa.schema([*fields, ("_time", TIME), ("_live", pa.bool_())])).dataframe()
        nothing = [
            F.lit(None).cast(t).alias(n)
            for n, t in (("_spout", "string"), ("_partition", "int"), ("_offset", "bigint"))
        ]
        return df.select("*", *nothing)

    def _rejects(self, rows: DataFrame) -> DataFrame | None:
        # A row that goes from a null key was refused when it came.
        return super()._rejects(self._signed().where(f"{SIGN} > 0").drop(SIGN))

    def _columns(self) -> tuple[str, ...]:
        hidden = (*HIDDEN.names, HASH, "_kind", "_old")
        return tuple(name for name in self.flow.schema.names if name not in hidden)
