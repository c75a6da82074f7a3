"""Values: Arrow to the plain values of text and SQLite."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.ledger.json_value import Beyond
from hailstorm.sinks.json_rows import bare_values, json_rows, json_values
from hailstorm.sinks.values import plain_rows, plain_values, python_rows


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([Decimal("0"), Decimal("-1.5"), None], pa.decimal128(38, 10), ["0.0000000000", "-1.5000000000", None]),
        (
            [datetime(2024, 1, 2, 3, 4, 5, 6, UTC), None],
            pa.timestamp("us", "UTC"),
            ["2024-01-02T03:04:05.000006Z", None],
        ),
        ([datetime(2024, 7, 1, tzinfo=UTC)], pa.timestamp("ms", "Europe/Berlin"), ["2024-07-01T00:00:00.000000Z"]),
        ([datetime(1900, 1, 1)], pa.timestamp("us"), ["1900-01-01T00:00:00.000000"]),
        ([date(2024, 2, 29), None], pa.date32(), ["2024-02-29", None]),
        ([timedelta(seconds=1)], pa.duration("us"), [1_000_000]),
        ([[1, None], None, []], pa.list_(pa.int64()), ["[1,null]", None, "[]"]),
        ([[("a", 1)]], pa.map_(pa.string(), pa.int64()), ['{"a":1}']),
        ([b"\x00", None], pa.binary(), [b"\x00", None]),
        ([float("nan"), float("-inf"), None], pa.float64(), ["NaN", float("-inf"), None]),
        ([253402300800000000, None], pa.timestamp("us", "UTC"), ["+10000-01-01T00:00:00.000000Z", None]),
        ([2**63 - 1, -(2**63)], pa.timestamp("us"), ["+294247-01-10T04:00:54.775807", "-290308-12-21T19:59:05.224192"]),
        ([-719_529, 2**31 - 1], pa.date32(), ["-0001-12-31", "+5881580-07-11"]),
    ],
)
def test_plain_values_are_exact(values: list[Any], kind: pa.DataType, expected: list[Any]) -> None:
    assert plain_values(pa.chunked_array([pa.array(values, kind)])) == expected


def test_the_order_of_timestamp_texts_is_the_order_of_times() -> None:
    moments = [datetime(2024, 1, 1, 0, 0, second, micro, UTC) for second in (0, 9, 10) for micro in (0, 1, 100000)]
    texts = plain_values(pa.chunked_array([pa.array(moments, pa.timestamp("us", "UTC"))]))
    assert texts == sorted(texts)


def test_a_column_of_several_chunks_and_slices_is_one_column() -> None:
    column = pa.array([[1, 2], None, [3], [4, None]], pa.list_(pa.int32()))
    cut = pa.chunked_array([column.slice(1, 2), column.slice(3, 1)])
    assert plain_values(cut) == [None, "[3]", "[4,null]"]
    assert json_values(cut).to_pylist() == ["null", "[3]", "[4,null]"]
    assert plain_rows(pa.table({"tags": cut}).slice(0, 0)) == []


def test_texts_and_bytes_are_bare_and_nested_values_are_json() -> None:
    column = pa.array([{"x": float("nan")}, None], pa.struct([("x", pa.float64())]))
    assert bare_values(column).to_pylist() == [b'{"x":"NaN"}', None]
    assert bare_values(pa.array(["a", b"\xff", None], pa.binary())).to_pylist() == [b"a", b"\xff", None]
    assert bare_values(pa.array([True, None])).to_pylist() == [b"true", None]


def test_numbers_without_digits_have_names_in_json_and_a_sign_of_zero_is_kept() -> None:
    numbers = pa.table({"n": [float("nan"), float("inf"), -float("inf"), -0.0, 1.0, None]})
    names = ['"NaN"', '"Infinity"', '"-Infinity"', "-0.0", "1.0", "null"]
    assert json_rows(numbers).to_pylist() == [f'{{"n":{name}}}' for name in names]


def test_what_python_has_no_date_for_is_told_from_the_rest() -> None:
    days = pa.array([[0], [2_932_897], None], pa.list_(pa.date32()))
    rows = list(python_rows(pa.table({"days": days})))
    assert rows == [{"days": [date(1970, 1, 1)]}, {"days": '["+10000-01-01"]'}, {"days": None}]
    assert isinstance(rows[1]["days"], Beyond)


def test_a_map_with_nested_keys_is_a_list_of_pairs() -> None:
    kind = pa.map_(pa.struct([("x", pa.int32())]), pa.int32())
    rows = pa.table(
        {"by": pa.array([[({"x": 1}, 2)]], kind), "to": pa.array([[(True, 2)]], pa.map_(pa.bool_(), pa.int32()))}
    )
    assert list(python_rows(rows)) == [{"by": [({"x": 1}, 2)], "to": {True: 2}}]
