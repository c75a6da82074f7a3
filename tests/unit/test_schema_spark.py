"""Our reading of DDL is Spark's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hailstorm.topology.schema import Schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXTS = [
    "a INT, b integer, c LONG, d byte, e SHORT, f REAL, g DOUBLE, h boolean, i BINARY, j DATE, k TIMESTAMP_NTZ",
    "tags ARRAY<STRUCT<a: INT, b: DECIMAL(10,2)>>, at TIMESTAMP NOT NULL COMMENT 'x', n NUMERIC, m DEC(5)",
    "`two words` MAP<STRING, ARRAY<LONG>>, s: STRUCT<x: INT COMMENT 'y', z STRING NOT NULL>, v VARIANT",
    "t TIMESTAMP_LTZ, e STRUCT<>",
]


@pytest.mark.parametrize("text", TEXTS)
def test_names_types_and_nulls_are_those_that_spark_reads(spark: SparkSession, text: str) -> None:
    from pyspark.sql.types import StructType

    theirs = StructType.fromDDL(text)
    ours = Schema.parse(text)
    assert [(c.name, c.type, c.nullable) for c in ours] == [
        (f.name, f.dataType.simpleString(), f.nullable) for f in theirs.fields
    ]
