"""What users' Python gives back: held exactly by the declared type, or refused with column, value and type."""

from __future__ import annotations

from collections import OrderedDict, deque, namedtuple
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from hailstorm.topology.arrow_types import arrow_type
from hailstorm.topology.exact_values import Misfit, exact_array, exact_cast

MOMENT = datetime(2024, 5, 6, 7, 8, 9, 10, tzinfo=UTC)
IN_INDIA = MOMENT.astimezone(timezone(timedelta(hours=5, minutes=30)))
NAIVE = MOMENT.replace(tzinfo=None)
Point = namedtuple("Point", "a b")
Swapped = namedtuple("Swapped", "b a")


class Level(IntEnum):
    HIGH = 3


class Word(StrEnum):
    YES = "yes"


STRUCT, MAP = "struct<a:int,b:string>", "map<string,bigint>"

HELD: list[tuple[str, Any, Any]] = [
    ("boolean", True, True),
    ("boolean", np.bool_(False), False),
    ("tinyint", -128, -128),
    ("int", 2**31 - 1, 2**31 - 1),
    ("int", np.int64(7), 7),
    ("int", Level.HIGH, 3),
    ("bigint", -(2**63), -(2**63)),
    ("double", 5, 5.0),
    ("double", 2**60, float(2**60)),  # more than 53 bits, and held all the same
    ("double", np.float32(0.5), 0.5),
    ("double", float("inf"), float("inf")),
    ("float", 0.1, float(np.float32(0.1))),
    ("float", 2**24, float(2**24)),
    ("float", float("-inf"), float("-inf")),
    ("decimal(5,2)", Decimal("1.1000"), Decimal("1.10")),
    ("decimal(5,2)", 12, Decimal("12.00")),
    ("decimal(38,0)", Decimal("9" * 38), Decimal("9" * 38)),
    ("string", "ü", "ü"),
    ("string", "", ""),
    ("string", Word.YES, "yes"),
    ("binary", b"\xff", b"\xff"),
    ("binary", bytearray(b"x"), b"x"),
    ("binary", memoryview(b"x"), b"x"),
    ("date", date(2024, 5, 6), date(2024, 5, 6)),
    ("timestamp", MOMENT, MOMENT),
    ("timestamp", IN_INDIA, MOMENT),
    ("timestamp", date(2024, 5, 6), datetime(2024, 5, 6, tzinfo=UTC)),
    ("timestamp", pd.Timestamp(MOMENT), MOMENT),
    ("timestamp_ntz", NAIVE, NAIVE),
    ("timestamp_ntz", date(2024, 5, 6), datetime(2024, 5, 6)),
    ("array<int>", [1, None], [1, None]),
    ("array<int>", (1, 2), [1, 2]),
    ("array<int>", deque([1]), [1]),
    ("array<double>", np.array([1.5]), [1.5]),
    ("array<array<string>>", [["x"], None, []], [["x"], None, []]),
    (MAP, {"x": 1}, [("x", 1)]),
    (MAP, [("x", 1), ["y", None]], [("x", 1), ("y", None)]),
    (MAP, {}, []),
    ("map<boolean,int>", {True: 1}, [(True, 1)]),
    ("map<date,array<int>>", {date(2024, 1, 1): [1]}, [(date(2024, 1, 1), [1])]),
    (STRUCT, {"a": 1, "b": "x"}, {"a": 1, "b": "x"}),
    (STRUCT, {"b": "x"}, {"a": None, "b": "x"}),
    (STRUCT, (1, "x"), {"a": 1, "b": "x"}),
    (STRUCT, Point(1, "x"), {"a": 1, "b": "x"}),
    (STRUCT, Swapped("x", 1), {"a": 1, "b": "x"}),
    (STRUCT, OrderedDict(a=1), {"a": 1, "b": None}),
    ("array<struct<a:int,b:string>>", [{"a": 1}, (2, "x")], [{"a": 1, "b": None}, {"a": 2, "b": "x"}]),
]

REFUSED: list[tuple[str, Any, str]] = [
    ("boolean", 1, "'x' is BOOLEAN, which does not hold 1 (int)"),
    ("int", 0.5, "'x' is INT, which does not hold 0.5 (float)"),
    ("int", 2.0, "(float)"),
    ("int", np.float64(0.5), "(float)"),
    ("int", True, "(bool)"),
    ("int", np.bool_(True), "(bool)"),
    ("int", 2**31, "2147483648"),
    ("int", Decimal(1), "(Decimal)"),
    ("int", "1", "(str)"),
    ("double", 2**53 + 1, "'x' is DOUBLE, which does not hold 9007199254740993 (int)"),
    ("double", 10**400, "(int)"),
    ("double", True, "(bool)"),
    ("double", Decimal("0.5"), "(Decimal)"),
    ("double", "0.5", "(str)"),
    ("float", 1e300, "'x' is FLOAT, which does not hold 1e+300 (float)"),
    ("float", 2**24 + 1, "(int)"),
    ("decimal(5,2)", Decimal("1.123"), "'x' is DECIMAL(5,2), which does not hold Decimal('1.123') (Decimal)"),
    ("decimal(5,2)", 1234, "(int)"),
    ("decimal(5,2)", 0.5, "(float)"),
    ("decimal(5,2)", Decimal("NaN"), "Decimal('NaN')"),
    ("decimal(5,2)", True, "(bool)"),
    ("string", b"x", "'x' is STRING, which does not hold b'x' (bytes)"),
    ("string", 5, "(int)"),
    ("string", "\ud800", "(str)"),
    ("binary", "x", "'x' is BINARY, which does not hold 'x' (str)"),
    ("date", MOMENT, "(datetime)"),
    ("date", 5, "(int)"),
    ("timestamp", 1_700_000_000, "'x' is TIMESTAMP, which does not hold 1700000000 (int)"),
    ("timestamp", 1.5, "(float)"),
    ("timestamp", "2024-01-01", "(str)"),
    ("timestamp", NAIVE, "(datetime without a zone)"),
    ("timestamp", pd.Timestamp(1, unit="ns", tz="UTC"), "(Timestamp with a zone)"),
    ("timestamp_ntz", MOMENT, "(datetime with a zone)"),
    ("array<int>", [1, 0.5], "'x[1]' is INT, which does not hold 0.5 (float)"),
    ("array<int>", {1, 2}, "(set)"),
    ("array<string>", "ab", "(str)"),
    ("array<float>", [1e300], "'x[0]' is FLOAT"),
    ("array<int>", np.array([1.5]), "'x[0]' is INT, which does not hold 1.5 (float)"),
    (MAP, {"x": "1"}, "'x['x']' is BIGINT, which does not hold '1' (str)"),
    (MAP, {1: 1}, "'a key of x' is STRING"),
    (MAP, {None: 1}, "a key is null"),
    (MAP, [("x", 1), ("x", 2)], "a key is there twice"),
    (MAP, [("x", 1, 2)], "(list)"),
    (MAP, 3, "'x' is MAP<STRING, BIGINT>, which does not hold 3 (int)"),
    (STRUCT, {"a": 0.5}, "'x.a' is INT, which does not hold 0.5 (float)"),
    (STRUCT, {"z": 1}, "which has no field 'z'"),
    (STRUCT, (1,), "(tuple)"),
    (STRUCT, Point(0.5, "x"), "'x.a' is INT"),
    (STRUCT, "ab", "(str)"),
]


@pytest.mark.parametrize(("type_", "value", "expected"), HELD)
def test_a_value_that_its_type_holds_is_that_value(type_: str, value: Any, expected: Any) -> None:
    made = exact_array([None, value, value], arrow_type(type_), "x")
    assert made.type == arrow_type(type_)
    assert made.to_pylist() == [None, expected, expected]
    assert made.null_count == 1


@pytest.mark.parametrize(("type_", "value", "reason"), REFUSED)
@pytest.mark.parametrize("before", [[], [None]])
def test_a_value_that_its_type_does_not_hold_is_refused(type_: str, value: Any, reason: str, before: list[Any]) -> None:
    with pytest.raises(Misfit) as misfit:
        exact_array([*before, value], arrow_type(type_), "x")
    assert reason in str(misfit.value)


def test_rows_may_give_the_same_column_in_different_ways() -> None:
    made = exact_array([{"a": 1}, (2, "x"), None, Point(3, "y")], arrow_type(STRUCT), "x")
    assert made.to_pylist() == [{"a": 1, "b": None}, {"a": 2, "b": "x"}, None, {"a": 3, "b": "y"}]
    assert exact_array([{"x": 1}, [("y", 2)]], arrow_type(MAP), "x").to_pylist() == [[("x", 1)], [("y", 2)]]
    numbers = exact_array([1, 0.5, np.float32(2.5), 2**60], pa.float64(), "x")
    assert numbers.to_pylist() == [1.0, 0.5, 2.5, float(2**60)]


def test_a_bool_among_numbers_is_refused() -> None:
    for values, type_ in [([1.0, True], "double"), ([1, np.bool_(True)], "bigint"), ([1, True], "decimal(5,0)")]:
        with pytest.raises(Misfit, match=r"\(bool\)"):
            exact_array(values, arrow_type(type_), "x")


def test_a_value_whose_repr_fails_is_refused_like_others() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError

    with pytest.raises(Misfit, match="does not hold a Odd"):
        exact_array([Odd()], pa.int64(), "x")


CASTS: list[tuple[pa.Array, str, Any]] = [
    (pa.array([1], pa.int8()), "bigint", 1),
    (pa.array([1], pa.int64()), "int", 1),
    (pa.array([1], pa.uint64()), "bigint", 1),
    (pa.array([1], pa.int32()), "double", 1.0),
    (pa.array([5], pa.int32()), "decimal(5,2)", Decimal("5.00")),
    (pa.array([0.5], pa.float32()), "double", 0.5),
    (pa.array([0.1]), "float", float(np.float32(0.1))),
    (pa.array([Decimal("1.10")]), "decimal(10,4)", Decimal("1.1000")),
    (pa.array(["x"], pa.large_string()), "string", "x"),
    (pa.array(["x"]).dictionary_encode(), "string", "x"),
    (pa.array([b"x"], pa.large_binary()), "binary", b"x"),
    (pa.array([date(2024, 5, 6)]), "timestamp", datetime(2024, 5, 6, tzinfo=UTC)),
    (pa.array([MOMENT], pa.timestamp("ns", tz="Asia/Tokyo")), "timestamp", MOMENT),
    (pa.array([[1]], pa.large_list(pa.int64())), "array<int>", [1]),
    (pa.array([{"a": 1, "b": "x"}]), STRUCT, {"a": 1, "b": "x"}),
    (pa.nulls(1), "timestamp", None),
]
MISCASTS: list[tuple[pa.Array, str]] = [
    (pa.array([2.0]), "int"),
    (pa.array([2**31]), "int"),
    (pa.array([True]), "int"),
    (pa.array(["1"]), "int"),
    (pa.array([2**53 + 1]), "double"),
    (pa.array([1e300]), "float"),
    (pa.array([[1e300]]), "array<float>"),
    (pa.array([Decimal("1.123")]), "decimal(5,2)"),
    (pa.array([1234]), "decimal(5,2)"),
    (pa.array(["x"]), "binary"),
    (pa.array([b"x"]), "string"),
    (pa.array([1_700_000_000]), "timestamp"),
    (pa.array(["2024-01-01"]), "timestamp"),
    (pa.array([NAIVE]), "timestamp"),
    (pa.array([MOMENT]), "timestamp_ntz"),
    (pa.array([1], pa.timestamp("ns", tz="UTC")), "timestamp"),
    (pa.array([MOMENT]), "date"),
    (pa.array([[0.5]]), "array<int>"),
    (pa.array([{"a": 1}]), STRUCT),
]


@pytest.mark.parametrize(("column", "type_", "expected"), CASTS)
def test_an_arrow_column_of_another_type_is_widened_where_it_is_harmless(
    column: pa.Array, type_: str, expected: Any
) -> None:
    made = exact_cast(column, arrow_type(type_), "x")
    assert made.type == arrow_type(type_)
    assert made.to_pylist() == [expected]


@pytest.mark.parametrize(("column", "type_"), MISCASTS)
def test_an_arrow_column_that_would_change_is_refused(column: pa.Array, type_: str) -> None:
    with pytest.raises(Misfit, match="'x' is "):
        exact_cast(column, arrow_type(type_), "x")
