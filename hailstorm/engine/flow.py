"""Flows: a DataFrame and the Python stages that wait to be run on it.

Stages are collected until Spark itself has to do something; then they become one `mapInArrow`. So consecutive
Python steps cost one pass, and a branch that ends in Python ends in the same pass.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from hailstorm.engine.order import Inbox
from hailstorm.engine.stages.chain import Chain, Stage
from hailstorm.engine.stages.read import Prune

DONE = "done INT"  # what a branch that has written everything gives back: no rows


@dataclass(frozen=True)
class Flow:
    """What flows out of a step, hidden columns included. `wave` is the first in which it can be computed."""

    name: str
    base: DataFrame
    stages: tuple[Stage, ...]
    schema: pa.Schema
    wave: int
    inbox: Inbox

    def then(self, stage: Stage, schema: pa.Schema | None = None) -> Flow:
        """The flow after one more Python stage."""
        return replace(self, stages=(*self.stages, stage), schema=self.schema if schema is None else schema)

    def dataframe(self, columns: tuple[str, ...] | None = None) -> DataFrame:
        """The flow as a DataFrame, of these columns only when they are known to be all that is wanted."""
        if columns is None or not self.stages:
            return self.base.mapInArrow(self._chain(), from_arrow_schema(self.schema)) if self.stages else self.base
        pruned = self.then(Prune(columns), pa.schema([self.schema.field(name) for name in columns]))
        return pruned.dataframe()

    def over(self, base: DataFrame) -> Flow:
        """The flow after Spark has done something: nothing waits any more."""
        return replace(self, base=base, stages=(), schema=arrow_schema(base))

    def ended(self) -> DataFrame:
        """The whole branch as a DataFrame without rows: running it is what matters."""
        return self.base.mapInArrow(self._chain(), DONE)

    def named(self, name: str) -> Flow:
        return replace(self, name=name)

    def _chain(self) -> Any:
        return Chain(self.inbox.slot(self.name), self.stages, self.inbox.accumulator)


def arrow_schema(df: DataFrame) -> pa.Schema:
    return to_arrow_schema(df.schema, timezone="UTC")
