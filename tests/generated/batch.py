"""The batch side: plain Spark queries over rows that are all there, for the oracles of steps.

A row of a stream is a dict of its columns and the hidden ones, a row of a table a dict of its columns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr

from hailstorm.engine.plan.flow import type_text
from tests.generated.expressions import Column, Columns
from tests.generated.values import BIGINT, INT, STRING, Type, quoted

if TYPE_CHECKING:
    from tests.generated.ticks import Ticks

Row = dict[str, Any]
HIDDEN: Columns = (
    Column("_spout", STRING),
    Column("_partition", INT),
    Column("_offset", BIGINT),
    Column("_time", Type("timestamp")),
)
HIDDEN_NAMES = tuple(column.name for column in HIDDEN)


@dataclass(frozen=True)
class Letter:
    """A row that a step must refuse; None for rows of tables, and for records that do not decode."""

    step: str
    row: Row | None


@dataclass(frozen=True)
class Input:
    """What a step reads, in an oracle."""

    columns: Columns
    key: tuple[str, ...] | None
    rows: list[Row]


@cache
def interpreting(spark: SparkSession) -> SparkSession:
    """A session for oracles. Each of their queries is another one, and small: compiling costs more than it gains."""
    session = spark.newSession()
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    return session


@dataclass
class Batch:
    spark: SparkSession
    ticks: Ticks
    table_after: Callable[[str, int], list[Row]] = lambda table, tick: []  # of a table over a stream
    letters: list[Letter] = field(default_factory=list)
    behind: Callable[[str], list[Row]] = lambda table: []  # the rows of a stream that a table has got

    def frame(self, source: Input) -> DataFrame:
        columns = source.columns if source.key is not None else (*source.columns, *HIDDEN)
        arrays = [pa.array([_shown(row[c.name]) for row in source.rows], c.type.arrow) for c in columns]
        table: Any = pa.table(arrays, names=[column.name for column in columns])
        # The types are said: pyspark takes a nested time without a zone for one that has it.
        return self.spark.createDataFrame(table, ", ".join(column.ddl for column in columns))

    def select(
        self, source: Input, expressions: Mapping[str, str], where: str = "true", carried: Iterable[str] = ()
    ) -> list[Row]:
        """A projection of the rows for which `where` is true, with some columns as they are."""
        chosen = [
            *(quoted(name) for name in carried),
            *(f"{text} AS {quoted(name)}" for name, text in expressions.items()),
        ]
        return rows_of(self.frame(source).where(where).selectExpr(*chosen))

    def aggregate(self, source: Input, key: Sequence[str], aggregates: Mapping[str, str]) -> list[Row]:
        frame = self.frame(source)
        columns = [expr(text).alias(name) for name, text in aggregates.items()]
        return rows_of(frame.coalesce(1).groupBy(*(quoted(name) for name in key)).agg(*columns))


def rows_of(frame: DataFrame) -> list[Row]:
    """pyspark does not collect a null struct whose fields Spark knows to be never null. In a type that text names, each
    field may be null."""
    types = {field.name: type_text(field.dataType) for field in frame.schema}
    nested = {name for name, type_ in types.items() if "<" in type_}
    chosen = [
        expr(f"cast({quoted(name)} AS {type_})").alias(name) if name in nested else expr(quoted(name)).alias(name)
        for name, type_ in types.items()
    ]
    rows: list[Row] = (frame.select(*chosen) if nested else frame).toArrow().to_pylist()
    return rows


def _shown(value: Any) -> Any:
    """A value that is near, as what it is near: it is passed on and never computed from."""
    return getattr(value, "value", None) if hasattr(value, "fits") else value
