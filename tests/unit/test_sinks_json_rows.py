"""Rows as JSON by columns are what Python's own writer makes of them one by one."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as some

from hailstorm.sinks.json_rows import json_rows

COLUMNS = {
    "n": (pa.int64(), some.integers(-(2**63), 2**63 - 1)),
    'a "name"': (pa.string(), some.text()),
    "yes": (pa.bool_(), some.booleans()),
    "ratio": (pa.float64(), some.floats()),
    "price": (pa.decimal128(20, 4), some.decimals(-(10**9), 10**9, places=4)),
    "at": (pa.timestamp("us", tz="UTC"), some.datetimes(datetime(1900, 1, 1), timezones=some.just(UTC))),
    "local": (pa.timestamp("us"), some.datetimes(datetime(1900, 1, 1))),
    "day": (pa.date32(), some.dates(date(1900, 1, 1))),
    "took": (pa.duration("us"), some.timedeltas(timedelta(-(10**5)), timedelta(10**5))),
    "raw": (pa.binary(), some.binary()),
    "tags": (pa.list_(pa.string()), some.lists(some.none() | some.text())),
    "place": (pa.struct([("x", pa.int32())]), some.fixed_dictionaries({"x": some.none() | some.integers(0, 9)})),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])
ROW = some.fixed_dictionaries({name: some.none() | values for name, (_, values) in COLUMNS.items()})


@settings(deadline=None)
@given(some.lists(ROW, max_size=5))
def test_every_row_is_what_it_would_be_alone(rows: list[dict[str, object]]) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    assert [json.loads(text) for text in json_rows(table).to_pylist()] == [_plain(row) for row in table.to_pylist()]


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case list():
            return [_plain(one) for one in value]
        case datetime():
            return value.replace(tzinfo=None).isoformat(timespec="microseconds") + ("Z" if value.tzinfo else "")
        case date():
            return value.isoformat()
        case Decimal():
            return format(value, "f")
        case bytes():
            return base64.b64encode(value).decode()
        case timedelta():
            return value // timedelta(microseconds=1)
        case float() if not math.isfinite(value):
            return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[repr(value)]
    return value


def test_several_chunks_no_columns_and_decimals() -> None:
    part = pa.table({"p": pa.array([Decimal("1.50")], pa.decimal128(5, 2))})
    assert json_rows(pa.concat_tables([part, part])).to_pylist() == ['{"p":"1.50"}'] * 2
    assert json_rows(part.select([])).to_pylist() == ["{}"]
