"""Flows: a DataFrame and the Python stages that wait to be run on it.

Stages are collected until Spark itself has to do something; then they become one `mapInArrow`. So consecutive
Python steps cost one pass, and a branch that ends in Python ends in the same pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from hailstorm.columns import OWNER, quoted, shown
from hailstorm.engine.plan.needs import Need, of_expressions
from hailstorm.engine.stages.chain import Line, Pass, Stage
from hailstorm.engine.stages.expressions import in_arrow
from hailstorm.engine.stages.order import Inbox
from hailstorm.engine.stages.rows import FromSpark, Prune

DONE = "done INT"  # what a branch that has written everything gives back: no rows


@dataclass(frozen=True)
class Job:
    """What is run at once, for what it writes: a DataFrame without rows.

    `alone` is the pass that is all of it, where it needs nothing of the JVM. Whoever has that pass can run the job
    without Spark.
    """

    frame: DataFrame
    alone: Pass | None = None


@dataclass(frozen=True)
class Flow:
    """What flows out of a step, hidden columns included."""

    name: str
    base: DataFrame
    stages: tuple[Stage, ...]
    schema: pa.Schema
    reads: tuple[str, ...]  # the steps whose rows it finds where they were left
    inbox: Inbox
    needs_jvm: bool = False  # Spark has done something since the leaf
    earlier: tuple[tuple[Stage, ...], ...] = ()  # the passes before that; for those who read a plan
    needs: tuple[Need, ...] = ()  # why Spark had to; for those who read a plan, too

    @property
    def passes(self) -> tuple[tuple[Stage, ...], ...]:
        """The stages of each Python pass, in order. Between two of them is Spark."""
        return (*self.earlier, self.stages) if self.stages else self.earlier

    def then(self, stage: Stage, schema: pa.Schema | None = None) -> Flow:
        """The flow after one more Python stage."""
        return replace(self, stages=(*self.stages, stage), schema=self.schema if schema is None else schema)

    def dataframe(self, columns: tuple[str, ...] | None = None) -> DataFrame:
        """The flow as a DataFrame, of these columns only when they are known to be all that is wanted."""
        if columns is None or not self.stages:
            return self._mapped(from_arrow_schema(self.schema)).frame if self.stages else self.base
        pruned = self.then(Prune(columns), pa.schema([self.schema.field(name) for name in columns]))
        return pruned.dataframe()

    def over(self, base: DataFrame) -> Flow:
        """The flow after Spark has done something: nothing waits any more."""
        return replace(self, base=base, stages=(), schema=_seen(base), needs_jvm=True, earlier=self.passes)

    def needing(self, *needs: Need) -> Flow:
        """The flow with reasons why it needs the JVM."""
        return replace(self, needs=(*self.needs, *needs))

    def ended(self) -> Job:
        """The whole branch as a job: running it is what matters."""
        return self._mapped(DONE, ends=True)

    def named(self, name: str) -> Flow:
        return replace(self, name=name)

    def _mapped(self, schema: StructType | str, ends: bool = False) -> Job:
        names, base, stages = self.base.columns, self.base, self.stages
        if any(shown(name) != name for name in names):
            # pyspark asks for each column by its bare name, which for `a.b` is a field of `a`.
            base = base.toDF(*(f"_{i}" for i in range(len(names))))
        if self.needs_jvm:
            stages = (FromSpark(_seen(self.base), _places(self.base)), *stages)
        line = Line(self.name, stages)
        waiting = Pass(self.inbox.slot(self.name), (line,), 1, self.inbox.accumulator, ends=ends)
        return Job(base.mapInArrow(waiting, schema), None if self.needs_jvm else waiting)


def why_not(step: str, wanted: Iterable[tuple[str, pa.DataType]], flow: Flow) -> tuple[Need, ...]:
    """Why a step's expressions cannot stay in the pass of this flow. No reason of theirs, where there is no pass."""
    texts = [text for text, type_ in wanted if in_arrow([(text, type_)], flow.schema) is None]
    return (of_expressions(step, texts),) if texts and flow.stages else ()


def _places(df: DataFrame) -> tuple[int, ...]:
    """The columns that stages see: by the others, Spark only knows where rows are."""
    return tuple(place for place, name in enumerate(df.columns) if name != OWNER)


def _seen(df: DataFrame) -> pa.Schema:
    schema = arrow_schema(df)
    return pa.schema([schema.field(place) for place in _places(df)])


def arrow_schema(df: DataFrame) -> pa.Schema:
    """The columns of a DataFrame as Arrow's, with everything in them nullable. Spark may know better, and may find
    out only while it optimizes: what it sends is brought to these types (FromSpark). Raises where a struct has two
    fields of one name: Spark sends none of those, and would say so only in a job."""
    nullable = StructType([StructField(field.name, _nullable(field.dataType)) for field in df.schema])
    return to_arrow_schema(nullable, timezone="UTC", error_on_duplicated_field_names_in_struct=True)


def type_text(type_: DataType) -> str:
    """Spark's simple string as SQL and our own parser read it: names of fields are quoted."""
    if isinstance(type_, StructType):
        return f"struct<{','.join(f'{quoted(field.name)}:{type_text(field.dataType)}' for field in type_)}>"
    if isinstance(type_, ArrayType):
        return f"array<{type_text(type_.elementType)}>"
    if isinstance(type_, MapType):
        return f"map<{type_text(type_.keyType)},{type_text(type_.valueType)}>"
    return type_.simpleString()


def _nullable(type_: DataType) -> DataType:
    if isinstance(type_, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in type_])
    if isinstance(type_, ArrayType):
        return ArrayType(_nullable(type_.elementType))
    if isinstance(type_, MapType):
        return MapType(_nullable(type_.keyType), _nullable(type_.valueType))
    return type_
