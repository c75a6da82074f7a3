"""CSV, text, bytes, and one's own function."""

from __future__ import annotations

import csv
import io
import pickle
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hailstorm.errors import TopologyError
from hailstorm.spouts.decode import Decoded, decoder


def decoded(decode: Any, schema: list[tuple[str, str]], *values: bytes | None) -> Decoded:
    return decoder(decode, schema)(pa.record_batch([pa.array(values, pa.binary())], names=["value"]))


def test_csv_fields_get_their_types_and_empty_ones_are_null() -> None:
    schema = [
        ("n", "int"),
        ("s", "string"),
        ("d", "decimal(6,2)"),
        ("t", "timestamp"),
        ("day", "date"),
        ("x", "double"),
    ]
    result = decoded("csv", schema, b"1,a b,1.5,2024-01-02T03:04:05Z,2024-01-02,0.5", b",,,,,")
    assert result.bad == []
    assert result.rows.to_pylist() == [
        {
            "n": 1,
            "s": "a b",
            "d": Decimal("1.50"),
            "t": datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
            "day": date(2024, 1, 2),
            "x": 0.5,
        },
        dict.fromkeys("nsdtx") | {"day": None},
    ]


def test_bad_csv_records_say_why() -> None:
    lines = [b"1,a", b"x,a", b"1", b"1,a,b", b'1,"a', b"", None, b"1,\xff", b"1,a\n2,b", b'"1","a,""b"""', b"0x1F,a"]
    result = decoded("csv", [("n", "int"), ("s", "string")], *lines)
    assert result.rows.to_pylist() == [{"n": 1, "s": "a"}, {"n": 1, "s": 'a,"b"'}]
    assert result.origin.tolist() == [0, 9]
    assert result.bad == [
        (1, "field 'n' is not INT: 'x'"),
        (2, "has 1 fields, the schema has 2"),
        (3, "has 3 fields, the schema has 2"),
        (4, "is not CSV: unexpected end of data"),
        (5, "is empty"),
        (6, "is null"),
        (7, "is not UTF-8"),
        (8, "is more than one line"),
        (10, "field 'n' is not INT: '0x1F'"),
    ]


fields = st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(fields, fields), min_size=1, max_size=10))
def test_what_pythons_csv_writes_is_read_back(rows: list[tuple[str, str]]) -> None:
    lines = []
    for row in rows:
        out = io.StringIO()
        csv.writer(out, lineterminator="").writerow(row)
        lines.append(out.getvalue().encode())
    result = decoded("csv", [("a", "string"), ("b", "string")], *lines)
    assert result.bad == []
    assert [(r["a"] or "", r["b"] or "") for r in result.rows.to_pylist()] == rows


def test_a_csv_field_cannot_be_nested() -> None:
    with pytest.raises(TopologyError, match="cannot hold ARRAY<INT>, the type of 'a'"):
        decoder("csv", [("a", "array<int>")])


def test_text_is_one_string_column_and_must_be_utf8() -> None:
    result = decoded("text", [("line", "string")], b"a", b"\xff", "é".encode(), None, b"")
    assert result.rows.to_pylist() == [{"line": "a"}, {"line": "é"}, {"line": None}, {"line": ""}]
    assert result.origin.tolist() == [0, 2, 3, 4]
    assert result.bad == [(1, "is not UTF-8")]


def test_bytes_are_one_binary_column_as_they_are() -> None:
    assert decoded("bytes", [("body", "binary")], b"\xff", None).rows.column("body").to_pylist() == [b"\xff", None]


@pytest.mark.parametrize(
    ("decode", "schema"), [("text", [("a", "int")]), ("bytes", [("a", "binary"), ("b", "binary")])]
)
def test_text_and_bytes_need_a_schema_of_one_column(decode: str, schema: list[tuple[str, str]]) -> None:
    with pytest.raises(TopologyError, match="one column"):
        decoder(decode, schema)


def test_an_unknown_decoder_is_refused_with_a_suggestion() -> None:
    with pytest.raises(TopologyError, match="Did you mean 'json'"):
        decoder("jsn", [("a", "int")])


def by_commas(value: bytes) -> Any:
    text = value.decode()
    if text == "skip":
        return None
    if text == "boom":
        raise ValueError("went wrong")
    if text == "typo":
        return {"wrod": "x"}
    if text == "number":
        return {"word": 5}
    if text == "tuple":
        return ("a", "b")
    return [{"word": word, "n": len(word)} for word in text.split(",")]


def test_ones_own_function_gives_none_one_or_several_rows() -> None:
    result = decoded(
        by_commas, [("word", "string"), ("n", "bigint")], b"a,bb", b"skip", b"boom", b"typo", b"number", b"c"
    )
    assert result.rows.to_pylist() == [{"word": "a", "n": 1}, {"word": "bb", "n": 2}, {"word": "c", "n": 1}]
    assert result.origin.tolist() == [0, 0, 5]
    assert result.bad == [
        (2, "ValueError: went wrong"),
        (3, "ValueError: the schema has no column 'wrod'. Did you mean 'word'?"),
        (4, "'word' is STRING, which does not hold 5 (int)"),
    ]


def test_a_function_that_gives_no_dict_makes_the_record_bad() -> None:
    assert "gave str, not a dict" in decoded(by_commas, [("word", "string"), ("n", "int")], b"tuple").bad[0][1]


def test_one_bad_row_of_several_makes_its_record_bad() -> None:
    result = decoded(by_commas, [("word", "string"), ("n", "tinyint")], b"a," + b"x" * 200, b"ok")
    assert result.rows.to_pylist() == [{"word": "ok", "n": 2}]
    assert result.bad == [(0, "'n' is TINYINT, which does not hold 200 (int)")]


@pytest.mark.parametrize("decode", ["csv", "text", "bytes", by_commas])
def test_decoders_survive_pickling(decode: Any) -> None:
    type_ = "binary" if decode == "bytes" else "string"
    name = "word"
    original = decoder(decode, [(name, type_), ("n", "int")] if callable(decode) else [(name, type_)])
    batch = pa.record_batch([pa.array([b"a", b"b"])], names=["value"])
    assert pickle.loads(pickle.dumps(original))(batch).rows.equals(original(batch).rows)
