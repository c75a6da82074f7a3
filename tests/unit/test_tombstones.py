"""Records without a value: rows of a table that remove their key, which is read from the record's key."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from hailstorm.spouts.decode import decoder
from hailstorm.spouts.decode.tombstones import TombstoneDecoder
from hailstorm.spouts.source import RECORD

TIME = datetime(2026, 1, 1, tzinfo=UTC)


def decoded(key_type: str, records: list[tuple[bytes | None, bytes | None]], *key: str) -> tuple[list[object], object]:
    columns = (("id", key_type), ("region", "string"), ("name", "string"), ("at", "timestamp"))
    rows = [{"offset": i, "time": TIME, "key": k, "value": v} for i, (k, v) in enumerate(records)]
    inner = decoder("json", columns, key)
    found = TombstoneDecoder(inner, columns, key, "at")(pa.RecordBatch.from_pylist(rows, schema=RECORD))
    assert found.origin.tolist() == sorted(found.origin.tolist())
    shown = [(row["id"], row["name"], row["_gone"], row["at"]) for row in found.rows.to_pylist()]
    return list(zip(found.origin.tolist(), shown, strict=True)), found.bad


@pytest.mark.parametrize(
    ("type_", "key", "id_"),
    [
        ("bigint", b"7", 7),
        ("bigint", b'{"id": 7}', 7),
        ("string", b"seven", "seven"),
        ("string", b'"seven"', "seven"),
        ("string", b'{"id": "seven", "other": 1}', "seven"),
    ],
)
def test_a_key_is_an_object_or_the_one_value(type_: str, key: bytes, id_: object) -> None:
    first = b'{"id": 1, "name": "a"}' if type_ == "bigint" else b'{"id": "1", "name": "a"}'
    rows, bad = decoded(type_, [(None, first), (key, None), (None, first)], "id")
    one = 1 if type_ == "bigint" else "1"
    assert rows == [(0, (one, "a", False, None)), (1, (id_, None, True, TIME)), (2, (one, "a", False, None))]
    assert bad == []


def test_a_key_of_several_columns_is_an_object_with_all_of_them() -> None:
    rows, bad = decoded("bigint", [(b'{"id": 7, "region": "x"}', None), (b'{"id": 7}', None)], "id", "region")
    assert rows == [(0, (7, None, True, TIME))]
    assert bad == [(1, "has no value, and its key: field 'region' is NOT NULL, and is null or missing")]


def test_a_record_without_value_and_key_is_bad() -> None:
    rows, bad = decoded("bigint", [(None, None), (b"x", None)], "id")
    assert rows == []
    assert isinstance(bad, list) and [index for index, _ in bad] == [0, 1]
    assert bad[0][1] == "has no value, and its key: is null"
