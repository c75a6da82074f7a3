"""Every type survives the way from a dict through a log to decoded columns."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.spouts import Log
from hailstorm.spouts.decode import decoder
from hailstorm.topology.arrow_types import arrow_schema

NAN, INF = float("nan"), float("inf")
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)

VALUES: list[tuple[str, list[Any]]] = [
    ("boolean", [True, False, None]),
    ("tinyint", [-128, 127, None]),
    ("bigint", [-(2**63), 2**63 - 1]),
    ("float", [NAN, INF, -INF, -0.0, 1.5, None]),
    ("double", [NAN, INF, -INF, -0.0, 5e-324, 1.7976931348623157e308, None]),
    ("string", ["", "NaN", "Infinity", '"\\ NaN', "ü😀", "\x00", None]),
    ("binary", [b"", b"\xff\x00", None]),
    ("decimal(38,10)", [Decimal("1234567890123456789012345678.0123456789"), Decimal("-0.0000000001"), None]),
    ("date", [date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), None]),
    ("timestamp", [FIRST, LAST, datetime(1969, 12, 31, 23, 59, 59, 1, tzinfo=UTC), None]),
    ("timestamp_ntz", [FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None), None]),
    ("array<double>", [[NAN, None, -INF], [], None]),
    ("struct<a:double,b:struct<c:float>>", [{"a": NAN, "b": {"c": INF}}, {"a": None, "b": None}, None]),
    ("map<string,double>", [{"NaN": NAN, "a": INF, "": None}, {}, None]),
    ("map<string,string>", [{"hailstorm-0-NaN": "NaN", "x": '"hailstorm-0-Inf"'}]),
    ("map<int,map<string,double>>", [{1: {"a": NAN}, -2: {}}]),
    ("map<boolean,int>", [{True: 1, False: 0}]),
    ("map<double,int>", [{1.5: 1, INF: 2, -INF: 3, 1e300: 4}]),
    ("map<decimal(10,2),int>", [{Decimal("1.50"): 1}]),
    ("map<date,timestamp>", [{date(1, 1, 1): FIRST, date(9999, 12, 31): LAST}]),
    ("map<timestamp,binary>", [{FIRST: b"\xff", LAST: None}]),
    ("map<binary,int>", [{b"\xff": 1}]),
    ("array<map<string,array<double>>>", [[{"a": [NAN, 1.0]}, None]]),
]


def same(found: Any, wanted: Any) -> bool:
    """With NaN equal to itself, and zeros told apart."""
    if isinstance(wanted, float):
        return isinstance(found, float) and repr(found) == repr(wanted)
    if isinstance(wanted, dict):
        pairs = found.items() if isinstance(found, dict) else dict(found or ()).items()
        return [key for key, _ in pairs] == list(wanted) and all(same(item, wanted[key]) for key, item in pairs)
    if isinstance(wanted, list):
        return isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)


@pytest.mark.parametrize(("type_", "values"), VALUES, ids=[type_ for type_, _ in VALUES])
def test_what_is_appended_is_decoded(tmp_path: Path, type_: str, values: list[Any]) -> None:
    log = Log(tmp_path / "log")
    log.append([{"before": NAN, "v": value, "after": -INF} for value in values])
    (records,) = log.read(0, 0, len(values))
    columns = [("before", "double"), ("v", type_), ("after", "double")]
    decoded = decoder("json", columns)(records)
    assert decoded.bad == []
    assert decoded.rows.schema.equals(arrow_schema(columns))
    rows = decoded.rows.to_pylist()
    assert all(math.isnan(row["before"]) and row["after"] == -INF for row in rows)
    for row, wanted in zip(rows, values, strict=True):
        assert same(row["v"], wanted), (row["v"], wanted)


def test_a_name_of_a_number_is_no_integer_and_no_text() -> None:
    records = pa.record_batch({"value": pa.array([b'{"n": NaN}', b'{"n": 1}', b'{"n": Infinity}'], pa.binary())})
    for type_ in ("int", "string", "decimal(10,2)", "boolean", "map<string,int>", "map<string,string>"):
        bad = decoder("json", [("n", type_)])(records).bad
        assert {0, 2} <= {index for index, _ in bad}, type_
    nested = pa.record_batch({"value": pa.array([b'{"n": {"a": NaN}}'], pa.binary())})
    assert decoder("json", [("n", "map<string,int>")])(nested).bad


def test_a_key_of_a_map_that_is_not_of_its_type_makes_the_record_bad() -> None:
    records = pa.record_batch({"value": pa.array([b'{"n": {"x": 1}}', b'{"n": {"": 1}}'], pa.binary())})
    for type_ in ("int", "double", "boolean", "date", "timestamp", "decimal(10,2)"):
        assert [index for index, _ in decoder("json", [("n", f"map<{type_},int>")])(records).bad] == [0, 1], type_
