"""Spark's types as Arrow's."""

from __future__ import annotations

import pyarrow as pa
import pytest

from hailstorm.errors import TopologyError
from hailstorm.topology.arrow_types import arrow_type, spark_name


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("tinyint", pa.int8()),
        ("smallint", pa.int16()),
        ("INT", pa.int32()),
        (" bigint ", pa.int64()),
        ("float", pa.float32()),
        ("double", pa.float64()),
        ("boolean", pa.bool_()),
        ("string", pa.string()),
        ("varchar(10)", pa.string()),
        ("binary", pa.binary()),
        ("date", pa.date32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestamp_ntz", pa.timestamp("us")),
        ("decimal", pa.decimal128(10, 0)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("decimal(10, 2)", pa.decimal128(10, 2)),
        ("array<array<int>>", pa.list_(pa.list_(pa.int32()))),
        ("map<string,decimal(10,2)>", pa.map_(pa.string(), pa.decimal128(10, 2))),
        ("struct<a:int,B: string>", pa.struct([("a", pa.int32()), ("B", pa.string())])),
        ("struct<`a b`:int,`c``d`:int>", pa.struct([("a b", pa.int32()), ("c`d", pa.int32())])),
        ("STRUCT<a: INT NOT NULL, b: ARRAY<DATE>>", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.date32()))])),
        ("struct<>", pa.struct([])),
    ],
)
def test_a_type_is_read(text: str, type_: pa.DataType) -> None:
    assert arrow_type(text) == type_


@pytest.mark.parametrize(
    "text",
    [
        *("", "strng", "array", "array<", "array<int", "array<int>>", "map<int>", "decimal(39,2)", "decimal(5,6)"),
        *("decimal(1,2,3)", "struct<a>", "struct<a:int b:int>", "int int", "interval day", "int;"),
        "struct<a:int NOT x>",
    ],
)
def test_what_is_not_a_type_is_refused(text: str) -> None:
    with pytest.raises(TopologyError, match="cannot read the type"):
        arrow_type(text)


@pytest.mark.parametrize(
    "text", ["BIGINT", "DECIMAL(10,2)", "MAP<STRING, ARRAY<DATE>>", "STRUCT<a: INT, b: TIMESTAMP_NTZ>"]
)
def test_a_type_is_spoken_as_it_is_written(text: str) -> None:
    assert spark_name(arrow_type(text)) == text
