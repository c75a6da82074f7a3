"""How the inputs of joins and look-ups become the sides of one stage, under the names of the result.

The columns of `on` have the left's names on both sides, and a type that holds the values of both.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from hailstorm.columns import EVENT_TIME, HIDDEN, KIND, OWN_HASH, SIGN, TIME
from hailstorm.engine.plan.flow import Flow
from hailstorm.engine.plan.sides import Input, together
from hailstorm.engine.stages.foreign_join import JoinByForeignKey, SplitMoved
from hailstorm.engine.stages.key_join import JoinOnKeys
from hailstorm.engine.stages.sides import Side
from hailstorm.errors import TopologyError
from hailstorm.ledger.keyed_state import Layout
from hailstorm.topology.arrow_types import spark_name
from hailstorm.topology.two_sided import TableJoin, TwoSided


@dataclass(frozen=True)
class JoinedColumns:
    """The columns of both sides of a step, as Spark has resolved their types."""

    step: TwoSided
    left_columns: pa.Schema
    right_columns: pa.Schema

    @property
    def on(self) -> tuple[str, ...]:
        return tuple(mine for mine, _ in self.step.on)

    @cached_property
    def common(self) -> dict[str, pa.Field]:
        """The columns of `on`, by the left's names."""
        return {
            mine: pa.field(mine, self._common(mine, self.left_columns.field(mine), self.right_columns.field(theirs)))
            for mine, theirs in self.step.on
        }

    @property
    def left(self) -> tuple[tuple[str, pa.Field], ...]:
        """Every column of the left, and what it is in the result."""
        return tuple((field.name, self.common.get(field.name, field)) for field in self.left_columns)

    @property
    def right(self) -> tuple[tuple[str, pa.Field], ...]:
        """Every column of the right, and what it is in the result."""
        on = {theirs: self.common[mine] for mine, theirs in self.step.on}
        keys = ((theirs, field) for theirs, field in on.items())
        others = ((name, self.right_columns.field(name).with_name(new)) for name, new in self.step.names.items())
        return (*keys, *others)

    @property
    def others(self) -> pa.Schema:
        """The right's columns beside those of `on`."""
        return pa.schema([field for _, field in self.right if field.name not in self.on])

    @property
    def of_rows(self) -> pa.Schema:
        """The left's columns in the result."""
        return pa.schema([field for _, field in self.left])

    @property
    def both(self) -> pa.Schema:
        """The columns of both sides in the result."""
        return pa.schema([*self.of_rows, *self.others])

    def of_left(self, *hidden: tuple[str, pa.Field]) -> Side:
        return Side((*self.left, *hidden), self.on)

    def of_right(self, *hidden: tuple[str, pa.Field]) -> Side:
        return Side((*self.right, *hidden), self.on)

    def _common(self, name: str, one: pa.Field, two: pa.Field) -> pa.DataType:
        if one.type == two.type:
            return one.type
        if pa.types.is_signed_integer(one.type) and pa.types.is_signed_integer(two.type):
            return max(one.type, two.type, key=lambda type_: type_.bit_width)
        raise TopologyError(
            92,
            f"step '{self.step.name}' joins on '{name}', which is {spark_name(one.type)} on its left and "
            f"{spark_name(two.type)} on its right",
            at=self.step.at,
            hint="Make them equal before, with CAST(... AS ...) in a .select.",
        )


CHANGE = ((KIND, pa.field(KIND, pa.string())), (EVENT_TIME, pa.field(EVENT_TIME, TIME)))
RECORD = tuple((field.name, field) for field in HIDDEN)


@dataclass(frozen=True)
class TableJoinPlan:
    """A join of two tables."""

    step: TableJoin
    columns: JoinedColumns
    flows: tuple[Flow, Flow]
    tasks: int
    sinks: tuple[str, ...]
    feeds: bool
    times: bool  # the times of its rows matter to those who read it

    @property
    def key(self) -> pa.Schema:
        return pa.schema([self.columns.of_rows.field(name) for name in self.step.key])

    @property
    def left_values(self) -> pa.Schema:
        return pa.schema([field for field in self.columns.of_rows if field.name not in self.step.key])

    @property
    def values(self) -> pa.Schema:
        return pa.schema([*self.left_values, *self.columns.others])

    def compiled(self) -> tuple[Flow, tuple[Layout, ...]]:
        """The flow that writes the view, and its tables of state."""
        return self._by_foreign_key() if self.step.foreign else self._on_keys()

    def _on_keys(self) -> tuple[Flow, tuple[Layout, ...]]:
        sides = (self.columns.of_left(*CHANGE), self.columns.of_right(*CHANGE))
        stage = JoinOnKeys(
            step=self.step.name,
            key=self.step.key,
            values=(self.left_values, self.columns.others),
            how=self.step.how,
            sides=sides,
            sinks=self.sinks,
            feeds=self.feeds,
            times=self.times,
        )
        inputs = [Input(flow, side) for flow, side in zip(self.flows, sides, strict=True)]
        return together(self.step.name, inputs, self.tasks).then(stage), (stage.layout,)

    def _by_foreign_key(self) -> tuple[Flow, tuple[Layout, ...]]:
        split = (
            *CHANGE,
            (SIGN, pa.field(SIGN, pa.int8())),
            (OWN_HASH, pa.field(OWN_HASH, pa.int64())),
        )
        sides = (self.columns.of_left(*split), self.columns.of_right(*CHANGE))
        before = self.columns.left_columns
        stage = JoinByForeignKey(
            step=self.step.name,
            key=self.key,
            values=self.left_values,
            others=self.columns.others,
            on=self.columns.on,
            how=self.step.how,
            rehashed=any(before.field(field.name).type != field.type for field in self.key),
            sides=sides,
            sinks=self.sinks,
            feeds=self.feeds,
            times=self.times,
        )
        left, right = self.flows
        schema = pa.schema([*before, *(field for _, field in split)])
        moved = left.then(SplitMoved(self.step.key, tuple(self.left_values.names)), schema)
        inputs = [Input(moved, sides[0]), Input(right, sides[1])]
        flow = together(self.step.name, inputs, self.tasks).then(stage)
        return flow, (stage.layout, stage.pointing, stage.pointed_at)
