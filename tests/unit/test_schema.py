"""Schemas are read without Spark, and a mistake in one points at the word."""

from __future__ import annotations

import pytest

from hailstorm.errors import TopologyError
from hailstorm.topology.schema import Column, Schema


def types(text: str) -> list[str | None]:
    return [column.type for column in Schema.parse(text)]


def test_columns_have_names_types_and_may_refuse_nulls() -> None:
    schema = Schema.parse("user STRING, at TIMESTAMP NOT NULL COMMENT 'when, in UTC'")
    assert schema.columns == (Column("user", "string"), Column("at", "timestamp", nullable=False))


def test_types_nest() -> None:
    assert types("tags ARRAY<STRUCT<a: INT, b: DECIMAL(10, 2)>>, m MAP<STRING, ARRAY<LONG>>") == [
        "array<struct<a:int,b:decimal(10,2)>>",
        "map<string,array<bigint>>",
    ]


@pytest.mark.parametrize(
    ("written", "simple"),
    [
        ("integer", "int"),
        ("LONG", "bigint"),
        ("Short", "smallint"),
        ("BYTE", "tinyint"),
        ("REAL", "float"),
        ("VARCHAR(20)", "string"),
        ("CHAR(3)", "string"),
        ("varchar", "string"),
        ("NUMERIC(5)", "decimal(5,0)"),
        ("DEC", "decimal(10,0)"),
        ("timestamp_ltz", "timestamp"),
        ("STRUCT<>", "struct<>"),
        ("STRUCT<`odd name`: INT, x STRING NOT NULL COMMENT 'y'>", "struct<`odd name`:int,x:string>"),
    ],
)
def test_synonyms_become_sparks_simple_strings(written: str, simple: str) -> None:
    assert types(f"a {written}") == [simple]


def test_names_may_be_in_backquotes_and_followed_by_a_colon() -> None:
    assert Schema.parse("`two words`: INT, `a``b` STRING").names == ("two words", "a`b")


def test_a_schema_reads_itself_again() -> None:
    schema = Schema.parse("`two words` INT NOT NULL, s STRUCT<lower: ARRAY<MAP<STRING,DATE>>, d: DECIMAL(4,1)>")
    assert Schema.parse(str(schema)) == schema
    assert "STRUCT<lower:ARRAY<MAP<STRING,DATE>>,d:DECIMAL(4,1)>" in str(schema)


@pytest.mark.parametrize(
    ("text", "says", "at"),
    [
        ("user STRNG", "'STRNG' is not a type", "STRNG"),
        ("user", "column 'user' has no type", "user"),
        ("user STRING,", "a column name is missing", ""),
        ("", "it has no columns", ""),
        ("user STRING at DATE", "'at' stands where a comma", "at"),
        ("a INT, a STRING", "column 'a' is declared twice", "a STRING"),
        ("a ARRAY<INT", "the end stands where > to close ARRAY<", ""),
        ("a ARRAY INT", "'INT' stands where < after ARRAY", "INT"),
        ("a MAP<INT>", "'>' stands where a comma", ">"),
        ("a DECIMAL(50,2)", "out of range", "(50,2)"),
        ("a DECIMAL(x)", "a number belongs here", "x)"),
        ("a DECIMAL(1,2,3)", "one number too many", "3)"),
        ("a INT COMMENT b", "a comment is text in quotes", "b"),
        ("'a' INT", "is not a name", "'a'"),
        ("`` INT", "a column name is empty", "``"),
    ],
)
def test_a_mistake_points_at_the_word(text: str, says: str, at: str) -> None:
    with pytest.raises(TopologyError) as caught:
        Schema.parse(text)
    assert caught.value.code == "HS-TOP-011"
    assert says in caught.value.what
    line, carets = caught.value.hint.splitlines()[:2]
    assert line == text
    assert line[carets.index("^") :].startswith(at)


@pytest.mark.parametrize(("wrong", "right"), [("STRNG", "STRING"), ("str", "STRING"), ("int64", "BIGINT")])
def test_a_wrong_type_comes_with_the_right_one(wrong: str, right: str) -> None:
    with pytest.raises(TopologyError, match=f"Did you mean '{right}'"):
        Schema.parse(f"a {wrong}")


def test_names_that_start_with_an_underscore_are_taken() -> None:
    with pytest.raises(TopologyError, match="HS-TOP-012"):
        Schema.parse("_time TIMESTAMP")


def test_fields_inside_a_struct_may_start_with_an_underscore() -> None:
    assert types("s STRUCT<_id: INT>") == ["struct<_id:int>"]


def test_streams_fit_when_names_order_and_known_types_agree() -> None:
    one = Schema.parse("a INT, b STRING")
    assert one.fits(Schema.parse("a INTEGER, b VARCHAR(2)"))
    assert one.fits(Schema((Column("a", None), Column("b", "string"))))
    assert not one.fits(Schema.parse("b STRING, a INT"))
    assert not one.fits(Schema.parse("a BIGINT, b STRING"))
    assert not one.fits(Schema.parse("a INT"))
