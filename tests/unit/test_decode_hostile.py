"""Whatever a record holds: it becomes rows or a bad record, and never an exception."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from hailstorm.spouts import Files
from hailstorm.spouts.decode import decoder
from hailstorm.spouts.source import RECORD

LONG = 300_000
HOSTILE: list[bytes | None] = [
    *(None, b"", b" ", b"\n", b"\r\n", b"\x00", b"\xff", b"\xff\xfe{}", b"null", b"[]", b"{", b"{}", b"{'a':1}"),
    *(b'"', b'","', b",,", b'"a', b'a"b', b'a,"b\nc"', b"1,2", b"\xef\xbb\xbf1,2", b'"' + b"y" * LONG + b'",2'),
    *(b"x" * LONG, b'{"a":"' + b"x" * LONG + b'"}', b'{"a":{"' + b"k" * LONG + b'":1}}'),
    b'{"a":' + b"[" * LONG + b"]" * LONG + b"}",
    *(
        b'{"a":"\xff"}',
        b'{"a":"\\ud800"}',
        b'{"a":"\\u0000"}',
        b'{"\\ud800":1}',
        b'{"a":1}\n{"a":2}',
        b'{"a":1}{"a":2}',
    ),
    *(
        b'{"a":1e999}',
        b'{"a":%s}' % (b"9" * 5000),
        b'{"a":NaN}',
        b'{"a":-Inf}',
        b'{"a":{"x":NaN}}',
        b'{"a":{"x":1,"x":2}}',
    ),
    *(
        b'{"a":"%s"}' % at
        for at in (b"0000-00-00", b"10000-01-01", b"-0001-01-01", b"2024-02-30", b"2024-01-01T24:00:00")
    ),
    *(b'{"a":"%s"}' % at for at in (b"9999-12-31T23:59:59.999999-14:00", b"0001-01-01T00:00:00+14:00")),
    *(b'{"a":true}', b'{"A":1}', b'{"a":"===="}', b'{"a":0x1}', b'{"a":01}', b'{"a":+1}', b'{"a":.5}', b'{"a":1,}'),
]
SIMPLE = [
    *("int", "double", "float", "string", "binary", "boolean", "date", "timestamp", "timestamp_ntz", "decimal(10,2)"),
]
NESTED = ["array<int>", "struct<x:int>", "map<string,double>", "map<timestamp,int>", "array<map<string,int>>"]


def records(values: list[bytes | None]) -> pa.RecordBatch:
    count = len(values)
    keys = pa.array([(None, b"\xff", b"", b"k")[index % 4] for index in range(count)], pa.binary())
    times = pa.nulls(count, RECORD.field("time").type)
    return pa.record_batch([pa.array(range(count), pa.int64()), times, keys, pa.array(values, pa.binary())], RECORD)


def check(decode: str, columns: list[tuple[str, str]]) -> None:
    made = decoder(decode, columns)
    together = made(records(HOSTILE))
    together.rows.validate(full=True)
    bad = {index for index, _ in together.bad}
    assert bad | set(together.origin.tolist()) == set(range(len(HOSTILE)))
    together.rows.to_pylist()  # nothing that Python cannot hold
    for index in range(0, len(HOSTILE), 5):
        alone = made(records(HOSTILE)[index : index + 1])
        assert bool(alone.bad) == (index in bad), "a record's fate does not depend on its neighbours"


@pytest.mark.parametrize("type_", [*SIMPLE, *NESTED])
def test_json(type_: str) -> None:
    check("json", [("a", type_)])


@pytest.mark.parametrize("type_", SIMPLE)
def test_csv(type_: str) -> None:
    check("csv", [("a", type_)])
    check("csv", [("a", type_), ("b", "int")])


def test_text_and_bytes_and_keys() -> None:
    check("text", [("a", "string")])
    check("bytes", [("a", "binary")])
    check("json", [("a", "int"), ("kafka_key", "string")])


def test_a_long_field_in_quotes_is_a_field() -> None:
    found = decoder("csv", [("a", "string"), ("b", "int")])(records([b'"' + b"y" * LONG + b'",2']))
    assert found.rows.to_pylist() == [{"a": "y" * LONG, "b": 2}]


def test_a_time_that_an_offset_pushes_out_of_the_years_is_bad() -> None:
    found = decoder("json", [("a", "timestamp")])(
        records([b'{"a":"9999-12-31T23:59:59.999999-14:00"}', b'{"a":"9999-12-31T23:59:59.999999Z"}'])
    )
    assert [index for index, _ in found.bad] == [0]


def test_a_line_of_many_chunks_is_one_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hailstorm.spouts.lines.CHUNK_BYTES", 1000)
    lines = [b"short", b"x" * 100_500, b"", b"y" * 999, b"z" * 1000, b"last"]
    (tmp_path / "a.txt").write_bytes(b"\n".join(lines))
    source = Files(str(tmp_path), format="text", grows=False)
    assert source.latest() == {0: len(lines)}
    found = [value for batch in source.read(0, 0, len(lines)) for value in batch.column("value").to_pylist()]
    assert found == lines
