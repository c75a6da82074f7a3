"""Values: Arrow to the plain values of text and SQLite."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.sinks.values import json_text, plain_rows, plain_values


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
    ],
)
def test_plain_values_are_exact(values: list[Any], kind: pa.DataType, expected: list[Any]) -> None:
    assert plain_values(pa.chunked_array([pa.array(values, kind)])) == expected


def test_the_order_of_timestamp_texts_is_the_order_of_times() -> None:
    moments = [datetime(2024, 1, 1, 0, 0, second, micro, UTC) for second in (0, 9, 10) for micro in (0, 1, 100000)]
    texts = plain_values(pa.chunked_array([pa.array(moments, pa.timestamp("us", "UTC"))]))
    assert texts == sorted(texts)


def test_rows_keep_nested_values_and_json_takes_them() -> None:
    rows = pa.table({"tags": [["a"]], "at": pa.array([datetime(2024, 1, 1)], pa.timestamp("us", "UTC"))})
    assert json_text(plain_rows(rows)) == '[{"tags":["a"],"at":"2024-01-01T00:00:00.000000Z"}]'
    assert plain_rows(rows.slice(0, 0)) == []
