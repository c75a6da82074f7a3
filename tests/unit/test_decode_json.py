"""JSON decoding: the bulk way agrees with one record at a time, whatever the records hold."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hailstorm.errors import TopologyError
from hailstorm.spouts.decode import Decoded, decoder
from hailstorm.spouts.decode.json_lines import JsonDecoder
from hailstorm.spouts.decode.json_suspects import Suspicion
from tests.length import examples


def records(values: list[bytes | None]) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.binary())], names=["value"])


def decoded(schema: list[tuple[str, str]], *values: bytes | None) -> Decoded:
    return decoder("json", schema)(records(list(values)))


def one(type_: str, value: str) -> Any:
    """A field's value, or the reason why the record is bad."""
    result = decoded([("a", type_)], b'{"a":' + value.encode() + b"}")
    return result.bad[0][1] if result.bad else result.rows.column("a")[0].as_py()


COLUMNS = [("a", "bigint"), ("s", "string"), ("t", "timestamp"), ("d", "decimal(6,2)"), ("l", "array<int>")]

# Records that try to be two, none, or half of another; and what is nearly right.
ADVERSARIAL = [
    b'{"a":1} {"a":2}',
    b'{"a":1}{"a":',
    b"2}",
    b'{"a":1}\n{"a":2}',
    b'{"a":1},{"a":2}',
    b'{"a":1} null {"a":2}',
    b"null",
    b"",
    b" \t\r\n",
    b"\n",
    b"{}",
    b"{",
    b"}",
    b"{}}",
    b"{{}",
    b"}{",
    b'{"s":"x',
    b'"}',
    b'{"s":"\n"}',
    b'{"s":"}',
    b'{"s":"{"}',
    b'{"s":"}\n{"}',
    b'{"s":"\\"}',
    b'{"s":"\\\\"}',
    b"[]",
    b"[{}]",
    b"1",
    b'"x"',
    b"true",
    b"\x00",
    b'{"a":1}\x00',
    b'{"a":1}\x00{"a":2}',
    b'{"a":1\x00}',
    b'{"s":"\x00"}',
    b'{"s":"\\u0000"}',
    b'\xef\xbb\xbf{"a":1}',
    b'{"s":"\xff"}',
    b'{"\xff":1}',
    b'{"s":"\\ud800"}',
    b'{"a":1,"a":2}',
    b'{"z":1,"z":2}',
    b'{"a":1.0}',
    b'{"a":1e2}',
    b'{"a":"1"}',
    b'{"a":9223372036854775808}',
    b'{"a":-9223372036854775808}',
    b'{"a":NaN}',
    b'{"z":NaN}',
    b'{"z":Inf}',
    b'{"z":-Infinity}',
    b'{"z":1e999}',
    b'{"a":01}',
    b"{'a':1}",
    b'{"a":1,}',
    b'{"a":1} //',
    b'{"a":1 /* x */}',
    b'{"d":1.255}',
    b'{"d":"1.25"}',
    b'{"d":99999}',
    b'{"d":1e1}',
    b'{"d":1.10000}',
    b'{"t":"2024-01-01"}',
    b'{"t":"2024-13-01T00:00:00Z"}',
    b'{"t":"2024-01-01T00:00:00.123456789+02:00"}',
    b'{"t":12}',
    b'{"l":[1,null]}',
    b'{"l":[1,"x"]}',
    b'{"l":{}}',
    b'{"l":[1.5]}',
    b"  {} \r\n",
]

texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**66), 2**66) | st.floats() | texts | st.datetimes().map(str),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("aslz"), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from([*"astdlz", "é"]), values, max_size=5).map(lambda o: json.dumps(o).encode())
pieces = st.lists(
    st.sampled_from([b"{", b"}", b'"', b":", b",", b"\n", b" ", b'"a"', b"1", b"null", b"[", b"]", b"\\"])
)
any_record = st.sampled_from(ADVERSARIAL) | objects | pieces.map(b"".join) | st.binary(max_size=12) | st.none()


@pytest.mark.slow
@settings(max_examples=examples(60, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(any_record, max_size=30))
def test_a_batch_decodes_like_its_records_one_by_one(batch: list[bytes | None]) -> None:
    together = decoded(COLUMNS, *batch)
    rows = together.rows.to_pylist()
    where = {int(index): rows[place] for place, index in enumerate(together.origin)}
    reasons = dict(together.bad)
    assert len(where) == len(rows) and len(reasons) == len(together.bad)
    assert sorted([*where, *reasons]) == list(range(len(batch)))
    for index, record in enumerate(batch):
        alone = decoded(COLUMNS, record)
        assert [where[index]] == alone.rows.to_pylist() if index in where else alone.bad
    together.rows.validate(full=True)


@pytest.mark.slow
@settings(max_examples=examples(100, 300), deadline=None)
@given(objects | pieces.map(lambda p: b"{" + b"".join(p) + b"}") | st.sampled_from(ADVERSARIAL))
def test_a_record_is_only_accused_when_the_reader_refuses_it(record: bytes) -> None:
    decoder_ = JsonDecoder(tuple(COLUMNS))
    try:
        record.decode()
    except UnicodeDecodeError:
        return  # found before
    text = record.strip(b" \t\r\n")
    if not (text.startswith(b"{") and text.endswith(b"}")):
        return
    if Suspicion(decoder_.told, decoder_.schema).of(record):
        assert decoder_(records([record])).bad


@pytest.mark.parametrize("record", ADVERSARIAL)
def test_a_strange_record_does_not_shift_its_neighbours(record: bytes) -> None:
    batch = [b'{"a":%d}' % number for number in range(20)]
    batch[7] = record
    result = decoded(COLUMNS, *batch)
    for row, index in zip(result.rows.to_pylist(), result.origin, strict=True):
        assert index == 7 or row["a"] == index
    assert len(result.origin) + len(result.bad) == 20


def test_two_values_in_a_record_are_bad_even_when_another_record_is_short_of_one() -> None:
    result = decoded(COLUMNS, b'{"a":1} {"a":2}', b'{"a":3}', b"{}")
    assert result.bad == [(0, "is not valid JSON: Extra data: line 1 column 9 (char 8)")]
    assert result.origin.tolist() == [1, 2]


def test_a_missing_field_is_null_and_an_unknown_one_is_ignored() -> None:
    assert decoded([("a", "int"), ("b", "string")], b'{"a":1,"c":{"d":[]}}').rows.to_pylist() == [{"a": 1, "b": None}]


@pytest.mark.parametrize(
    ("type_", "value", "is_"),
    [
        ("bigint", "9223372036854775807", 9223372036854775807),
        ("bigint", "9223372036854775808", "field 'a' is not BIGINT: 9223372036854775808"),
        ("tinyint", "128", "field 'a' is not TINYINT: 128"),
        ("int", "1.0", "field 'a' is not INT: 1.0"),
        ("int", '"1"', "field 'a' must be number, not string"),
        ("boolean", "true", True),
        ("boolean", "1", "field 'a' must be boolean, not number"),
        ("string", "1", "field 'a' must be string, not number"),
        ("string", '"\\ud83d\\ude00"', "😀"),
        ("double", "1", 1.0),
        ("double", "0.1", 0.1),
        ("decimal(38,18)", "0.100000000000000001", Decimal("0.100000000000000001")),
        ("decimal(38,0)", "99999999999999999999999999999999999999", Decimal("9" * 38)),
        ("decimal(10,2)", '"1.25"', Decimal("1.25")),
        ("decimal(10,2)", "1.255", "field 'a' is not DECIMAL(10,2): 1.255"),
        ("decimal(6,2)", "-9999.99", Decimal("-9999.99")),
        ("decimal(6,2)", "99999", "field 'a' is not DECIMAL(6,2): Decimal('99999.00')"),
        ("decimal(38,2)", "9" * 37, f"field 'a' is not DECIMAL(38,2): {'9' * 37}"),
        ("array<decimal(3,1)>", "[1.5,100]", "field 'a[]' is not DECIMAL(3,1): Decimal('100.0')"),
        ("date", '"2024-02-29"', date(2024, 2, 29)),
        ("date", '"2023-02-29"', "field 'a' is not DATE: '2023-02-29'"),
        ("timestamp", '"2024-01-02T03:04:05Z"', datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("timestamp", '"2024-01-02T03:04:05+02:00"', datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("timestamp", '"2024-01-02 03:04:05.5"', datetime(2024, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("timestamp", '"2024-01-02T03:04:05.123456789Z"', datetime(2024, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
        ("timestamp", '"2024-01-02"', datetime(2024, 1, 2, tzinfo=UTC)),
        ("timestamp", "1704164645", "field 'a' must be string, not number"),
        ("timestamp", '"soon"', "field 'a' is not TIMESTAMP: 'soon'"),
        ("timestamp_ntz", '"2024-01-02T03:04:05"', datetime(2024, 1, 2, 3, 4, 5)),
        ("timestamp_ntz", '"2024-01-02T03:04:05Z"', "field 'a' is not TIMESTAMP_NTZ: '2024-01-02T03:04:05Z'"),
        ("binary", '"aGk="', b"hi"),
        ("binary", '"?"', "field 'a' is not BINARY: '?'"),
        ("array<date>", '["2024-01-01",null]', [date(2024, 1, 1), None]),
        ("array<date>", '["2024-01-01","x"]', "field 'a[]' is not DATE: 'x'"),
        ("struct<x:int,y:array<timestamp>>", '{"x":1,"z":2}', {"x": 1, "y": None}),
        ("struct<x:int>", '{"x":"1"}', "field 'a.x' must be number, not string"),
        ("struct<x:date>", "null", None),
        ("map<string,bigint>", '{"k":1,"l":null}', [("k", 1), ("l", None)]),
        ("map<int,date>", '{"7":"2024-01-01"}', [(7, date(2024, 1, 1))]),
        ("map<string,map<string,array<date>>>", '{"k":{"l":["2024-01-01"]}}', [("k", [("l", [date(2024, 1, 1)])])]),
        ("array<map<string,int>>", '[{"k":1},null,{}]', [[("k", 1)], None, []]),
        ("map<string,int>", "null", None),
    ],
)
def test_a_value_fits_its_type_exactly_or_the_record_is_bad(type_: str, value: str, is_: Any) -> None:
    assert one(type_, value) == is_


@pytest.mark.parametrize("value", ['[{"key":"k","value":1}]', "[]", "1", '"x"', '{"k":"x"}', '{"k":1.5}'])
def test_what_is_not_a_map_is_bad(value: str) -> None:
    assert "field 'a" in one("map<string,int>", value)


@pytest.mark.parametrize("key", ["x", "1.5", "01", '1,\\"value\\":2},{\\"key\\":3', "99999999999"])
def test_a_map_key_that_is_not_the_integer_it_should_be_is_bad(key: str) -> None:
    assert "field 'a" in one("map<int,int>", f'{{"{key}":1}}')


def test_mixed_forms_of_time_in_one_batch_are_all_read() -> None:
    forms = [
        "2024-01-02T03:04:05Z",
        "2024-01-02 03:04:05",
        "2024-01-02T03:04:05.0000000001Z",
        "2024-01-02T05:04:05+0200",
    ]
    result = decoded([("a", "timestamp")], *(b'{"a":"%s"}' % form.encode() for form in forms))
    assert set(result.rows.column("a").to_pylist()) == {datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)}


@pytest.mark.slow
def test_values_of_ten_megabytes_are_read() -> None:
    long = "x" * 10_000_000
    result = decoded([("s", "string")], *[b'{"s":"%s"}' % long.encode()] * 8, b'{"s":1}')
    assert result.rows.column("s").to_pylist() == [long] * 8
    assert [index for index, _ in result.bad] == [8]


@pytest.mark.parametrize("schema", [[("a", "bigint")], [("a", "bigint"), ("m", "map<string,int>")]])
def test_deep_nesting_is_no_exception(schema: list[tuple[str, str]]) -> None:
    deep = b"[" * 200_000 + b"]" * 200_000
    result = decoded(schema, b'{"z":' + deep + b',"a":1}', b'{"a":' + deep + b"}", b'{"a":2}')
    assert 1 in dict(result.bad)
    assert result.rows.column("a").to_pylist()[-1] == 2


def test_few_and_many_bad_records_are_found_in_a_large_batch() -> None:
    batch = [b'{"a":%d,"s":"text","t":"2024-01-01T00:00:00Z"}' % number for number in range(5000)]
    for every, broken in (1250, b'{"a":"x"}'), (10, b'{"a":1.5}'), (7, b'{"t":"x"}'), (9, b'{"a":1,"a":2}'), (3, b"{"):
        mixed = [broken if number % every == 0 else record for number, record in enumerate(batch)]
        result = decoded(COLUMNS, *mixed)
        assert [index for index, _ in result.bad] == list(range(0, 5000, every))
        assert result.rows.column("a").to_pylist() == result.origin.tolist()


def test_a_slice_of_a_batch_decodes_as_itself() -> None:
    batch = records([b'{"a":%d}' % number for number in range(10)]).slice(3, 4)
    assert decoder("json", [("a", "int")])(batch).rows.column("a").to_pylist() == [3, 4, 5, 6]


def test_no_records_give_no_rows() -> None:
    result = decoded([("a", "int"), ("t", "timestamp"), ("m", "map<string,int>")])
    assert len(result.rows) == 0 and result.bad == [] and result.origin.dtype == np.int64


def test_a_decoder_survives_pickling() -> None:
    original = decoder("json", COLUMNS)
    batch = records([b'{"a":1,"t":"2024-01-01T00:00:00Z"}', b"x"])
    copy = pickle.loads(pickle.dumps(original))
    assert copy(batch).rows.equals(original(batch).rows)
    assert copy(batch).bad == original(batch).bad == [(1, "is not a JSON object")]


def test_a_map_with_keys_that_json_cannot_have_is_refused_when_the_topology_is_checked() -> None:
    with pytest.raises(TopologyError, match="keys that are one value"):
        decoder("json", [("a", "map<array<int>,int>")])


@pytest.mark.parametrize("records", [1, 400])
@pytest.mark.parametrize(
    ("type_", "value", "reason"),
    [
        ("map<string,int>", "5", "field 'm' must be object, not number"),
        ("map<string,int>", "[1]", "field 'm' must be object, not array"),
        ("array<map<string,int>>", '["x"]', "field 'm[]' must be object, not string"),
        (
            "struct<a.b:map<string,int>>".replace("a.b", "`a.b`"),
            '{"a.b": [1]}',
            "field 'm.a.b' must be object, not array",
        ),
        ("map<string,map<string,int>>", '{"k": [1]}', "field 'm.*' must be object, not array"),
        ("map<string,array<int>>", '{"k": {"a": 1}}', "field 'm.*' must be array, not object"),
        ("array<int>", '{"a": 1}', "field 'm' must be array, not object"),
    ],
)
def test_a_value_that_is_no_map_is_told_in_the_words_of_the_record(
    type_: str, value: str, reason: str, records: int
) -> None:
    """Alone, by the reader; among many, by suspicion."""
    found = decoder("json", [("m", type_)]).decode(pa.array([f'{{"m": {value}}}'.encode()] * records, pa.binary()))
    assert {why for _, why in found.bad} == {reason}
