"""How a fold of a table becomes DataFrames: its rows come and go.

Where every monoid has an inverse, a row that goes is subtracted; otherwise the group is folded again from its members.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hailstorm.algebra.monoid import Monoid, Pieces
from hailstorm.columns import (
    EVENT_TIME,
    HASH,
    HIDDEN,
    KIND,
    MEMBERS,
    OFFSET,
    OLD,
    PARTITION,
    SIGN,
    SPOUT,
    TIME,
    quoted,
    struct_of,
)
from hailstorm.engine.plan.flow import Flow, Job
from hailstorm.engine.plan.fold import FoldPlan
from hailstorm.engine.plan.ranges import owned
from hailstorm.engine.stages.chain import Stage
from hailstorm.engine.stages.members import LIVE, HashGroups, RecallTimes, ReplaceMembers, SignRows, inner_name
from hailstorm.engine.stages.table_sessions import ReplaceSessions
from hailstorm.ledger.keyed_state import Layout


@dataclass
class TableFoldPlan(FoldPlan):
    """A fold of a table: rows come and go. Of windows, what flows in is signed already (plan/sessions.py)."""

    counts_members = True
    in_parts = False

    @property
    def _is_signed(self) -> bool:
        return SIGN in self.flow.schema.names

    def compiled(self) -> tuple[Flow, pa.Schema, Job | None]:
        bound = self._bound(self._signed())
        no_inverse = any(isinstance(b.monoid, Monoid) or b.pieces.retract is None for b in bound)
        self.replaces = self.replaces or self.times or no_inverse
        if self.waiting is not None and self.replaces:
            self.waiting = replace(self.waiting, members=self._members_stage().members)
        return super().compiled()

    def rows(self) -> DataFrame:
        return self._members(self._signed()) if self.replaces else self._signed()

    def passes(self) -> tuple[tuple[Stage, ...], ...]:
        return (*super().passes(), (self._members_stage(),)) if self.replaces else super().passes()

    def lift(self, pieces: Pieces) -> str:
        if self.replaces or pieces.retract is None:
            return pieces.lift
        return pieces.retract.replace("{sign}", f"`{SIGN}`")

    def extra(self) -> list[Any]:
        counted = F.expr(f"sum(IF({LIVE}, 1L, 0L))") if self.replaces else F.sum(F.expr(f"CAST({SIGN} AS BIGINT)"))
        return [counted.alias(MEMBERS)]

    def _own_pieces(self, monoid: Monoid) -> Pieces:
        pieces = super()._own_pieces(monoid)
        # A row of a group that is empty is there to say so: it holds nothing to fold.
        return replace(pieces, lift=f"{pieces.lift} FILTER (WHERE {LIVE})") if self.replaces else pieces

    @property
    def weight(self) -> str:
        return LIVE if self.replaces else SIGN

    @property
    def layouts(self) -> tuple[Layout, ...]:
        recalled = tuple(stage.layout for stage in self.flow.stages if isinstance(stage, RecallTimes))
        members = (self._members_stage().members.layout,) if self.replaces else ()
        return (*super().layouts, *members, *recalled)

    def _keyed_in_arrow(self, flow: Flow) -> Flow:
        signed = flow if self._is_signed else flow.then(SignRows(self.source.key, self.columns()))
        flow = super()._keyed_in_arrow(signed)
        return flow.then(HashGroups(self.members_by)).then(self._members_stage()) if self.replaces else flow

    @property
    def members_by(self) -> tuple[str, ...]:
        """The columns by which members are kept, and brought together."""
        return self.step.key

    @property
    def identity(self) -> tuple[str, ...]:
        """The key of the table that members are of."""
        return tuple(map(inner_name, self.source.key)) if self._is_signed else self.source.key

    def _members_stage(self) -> ReplaceMembers | ReplaceSessions:
        return ReplaceMembers(self.step.name, self.members_by, self.identity, self.columns())

    def _signed(self) -> DataFrame:
        """Each change as the row that goes (-1) and the row that comes (+1)."""
        df = self.flow.dataframe()
        if self._is_signed:
            return df
        columns = self.columns()
        hidden = {name: name for name in HIDDEN.names}
        new = {name: quoted(name) for name in columns}
        old = {name: quoted(name) if name in self.source.key else f"_old.{quoted(name)}" for name in columns}
        came = f"IF(_kind <> 'delete', {struct_of(new | {SIGN: '1'} | hidden)}, NULL)"
        went = f"IF(_kind <> 'insert', {struct_of(old | {SIGN: '-1'} | hidden)}, NULL)"
        return df.selectExpr(f"inline(filter(array({came}, {went}), x -> x IS NOT NULL))")

    def _members(self, signed: DataFrame) -> DataFrame:
        key = [quoted(name) for name in self.members_by]
        hashed = signed.withColumn(HASH, F.xxhash64(*key) if key else F.lit(0).cast("bigint"))
        if self.tasks > 1:
            hashed = owned(hashed, self.tasks) if key else hashed.repartition(1)
        columns = self.columns()
        flow = self.flow.over(hashed).named(f"{self.step.name}.members")
        fields = [flow.schema.field(name) for name in (*columns, HASH)]
        df = flow.then(self._members_stage(), pa.schema([*fields, (EVENT_TIME, TIME), (LIVE, pa.bool_())])).dataframe()
        nothing = [F.lit(None).cast(t).alias(n) for n, t in ((SPOUT, "string"), (PARTITION, "int"), (OFFSET, "bigint"))]
        return df.select("*", *nothing)

    def _rejects(self, rows: DataFrame) -> Job | None:
        # A row that goes from a null key was refused when it came.
        return super()._rejects(self._signed().where(f"{SIGN} > 0").drop(SIGN))

    def columns(self) -> tuple[str, ...]:
        """What a row to fold has."""
        hidden = (*HIDDEN.names, HASH, KIND, OLD, SIGN)
        return tuple(name for name in self.flow.schema.names if name not in hidden)
