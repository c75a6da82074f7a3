"""What Arrow computes is what Spark computes: the same expressions on the same rows, in both."""

from __future__ import annotations

import itertools
from datetime import UTC, date, datetime

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from hailstorm.engine.stages.expressions import in_arrow
from hailstorm.errors import RunError

LONGS = [None, 0, 1, -1, 7, -7, 2**62, -(2**62), 2**31]
INTS = [None, 0, 1, -1, 5, -5, 2**31 - 1, -(2**31), 3]
DOUBLES = [None, 0.0, -0.0, 1.5, -1.5, float("nan"), float("inf"), float("-inf"), 7.0]
STRINGS = [None, "", "a", "A", "ä", "b", "it's", "7", "\U0001f600"]
TIMES = [
    None,
    datetime(2026, 1, 1, 12, 34, 56, 789, tzinfo=UTC),
    datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(1970, 1, 1, tzinfo=UTC),
]
BOOLEANS = [None, True, False]

COLUMNS = pa.schema(
    [
        ("l", pa.int64()),
        ("i", pa.int32()),
        ("s", pa.int16()),
        ("d", pa.float64()),
        ("e", pa.float64()),
        ("t", pa.string()),
        ("u", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("day", pa.date32()),
        ("p", pa.bool_()),
        ("q", pa.bool_()),
    ]
)

EXPRESSIONS = [
    "l", "`l`", "7", "-7", "'x'", "TRUE", "l + i", "i % 5 + s", "s * s", "l - 1", "i * 0", "d + 1", "d * e", "d - l",
    "l % 7", "i % 5", "s % 3", "l = i", "l <> 7", "l != i", "l > 0", "l >= i", "i < s", "i <= 5", "d = e", "d <> e",
    "d > e", "d >= e", "d < e", "d <= e", "d > 0", "d = l", "t = u", "t < u", "t >= 'a'", "at < at",
    "day = day", "p = q", "p = (q < p)", "p AND q", "p OR q", "NOT p", "p AND l > 0", "l > 0 OR d > 0 AND NOT q",
    "(l > 0 OR d > 0) AND q", "l IS NULL", "t IS NOT NULL", "l IN (1, 7, -7)", "l NOT IN (1, 7)", "t IN ('a', 'b')",
    "NOT t IN ('a')", "l BETWEEN -1 AND 7", "l NOT BETWEEN i AND 7", "coalesce(l, 0L)", "coalesce(t, u, 'none')",
    "if(l > 0, t, u)", "CASE WHEN p THEN 1 WHEN q THEN 2 ELSE 3 END", "CASE WHEN p THEN t END", "CAST(i AS BIGINT)",
    "CAST(l AS STRING)", "CAST(i AS DOUBLE)", "CAST(l AS DOUBLE)", "date_trunc('hour', at)",
    "date_trunc('MINUTE', at)", "date_trunc('day', at)", "date_trunc('second', at)", "l % 1000 = 7", "1L",
]  # fmt: skip

SPARKS = [
    "lower(t)", "l / 2", "l div 2", "l % i", "l % 0", "l % -1", "1.5", "l > 1.5", "t = 7", "CAST(l AS INT)",
    "CAST(t AS BIGINT)", "coalesce(l, 0)", "if(p, l, i)", "p AND l + 1 > 0", "if(p, l + 1, 0L)", "'a\\nb'",
    "at > '2026-01-01'", "date_trunc('week', at)", "rand()", "x.l", "l <=> i", "p IS TRUE", "sum(l)", "no_such",
    "CASE l WHEN 1 THEN 2 END", "9223372036854775808", "p = q < q", "p <> q IN (FALSE)", "p = q BETWEEN FALSE AND q",
]  # fmt: skip


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    cross = list(itertools.product(range(9), range(9)))
    pick = lambda values, place: [values[pair[place] % len(values)] for pair in cross]  # noqa: E731
    small = [None if v is None else max(-9, min(9, v)) for v in INTS]
    days = [None, date(2026, 1, 1), date(1969, 12, 31)]
    columns = [
        pick(LONGS, 0), pick(INTS, 1), pick(small, 0), pick(DOUBLES, 0), pick(DOUBLES, 1), pick(STRINGS, 0),
        pick(STRINGS, 1), pick(TIMES, 0), pick(days, 1), pick(BOOLEANS, 0), pick(BOOLEANS, 1),
    ]  # fmt: skip
    return pa.table([pa.array(c, f.type) for c, f in zip(columns, COLUMNS, strict=True)], schema=COLUMNS)


def test_every_expression_gives_what_spark_gives(spark: SparkSession, rows: pa.Table) -> None:
    (batch,) = rows.combine_chunks().to_batches()
    wanted = spark.createDataFrame(rows).coalesce(1).selectExpr(*(f"{e} AS _{i}" for i, e in enumerate(EXPRESSIONS)))
    for index, (text, expected) in enumerate(zip(EXPRESSIONS, wanted.toArrow().columns, strict=True)):
        expressions = in_arrow([(text, expected.type)], COLUMNS)
        assert expressions is not None, text
        found = expressions[0](batch)
        assert found.type == expected.type, text
        # As text, because NaN equals nothing, and -0.0 equals 0.0.
        assert repr(found.to_pylist()) == repr(expected.to_pylist()), (index, text)


@pytest.mark.parametrize("text", SPARKS)
def test_what_arrow_computes_otherwise_is_left_to_spark(text: str) -> None:
    types = (*COLUMNS.types, pa.decimal128(2, 1), pa.list_(pa.int64()))
    assert all(in_arrow([(text, type_)], COLUMNS) is None for type_ in types)


def test_one_expression_that_is_sparks_leaves_all_of_them_to_spark() -> None:
    assert in_arrow([("l", pa.int64()), ("i", pa.int32())], COLUMNS) is not None
    assert in_arrow([("l", pa.int64()), ("lower(t)", pa.string())], COLUMNS) is None
    assert in_arrow([("l", pa.int32())], COLUMNS) is None  # Spark says another type than we think


def test_an_overflow_is_an_error_as_in_spark() -> None:
    expressions = in_arrow([("l + 1", pa.int64())], COLUMNS)
    assert expressions is not None
    batch = pa.RecordBatch.from_pydict({"l": pa.array([2**63 - 1])})
    with pytest.raises(RunError, match=r"overflow.*In: l \+ 1"):
        expressions[0](batch)
