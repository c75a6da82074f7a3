"""Types are read from text in one place, and written so that they can be read again."""

from __future__ import annotations

import re

import pytest

import hailstorm as hs
from hailstorm.algebra.types import decimal_of, is_orderable
from hailstorm.types import Misread, Type, read_type, spark_type
from tests.unit.test_house import MODULES, PACKAGE


@pytest.mark.parametrize(
    "text",
    [
        "bigint",
        "decimal(10,2)",
        "array<map<string,decimal(38,0)>>",
        "struct<a:int,`two words`:string,`größe`:int,`a``b`:array<date>,`map<`:int>",
        "struct<>",
    ],
)
def test_a_type_is_written_as_it_is_read(text: str) -> None:
    assert str(read_type(text)) == str(spark_type(text)) == text
    assert str(read_type(read_type(text).shouted)) == text


def test_what_only_spark_knows_is_read_where_spark_says_it() -> None:
    text = "struct<a:interval day to second,b:string collate UTF8_LCASE,c:array<void>>"
    assert [part.word for part in spark_type(text).inside] == [
        "interval day to second",
        "string collate UTF8_LCASE",
        "array",
    ]
    with pytest.raises(Misread):
        read_type("interval day")


@pytest.mark.parametrize(
    ("text", "orderable"),
    [
        ("struct<`map<`:int,variant:int,void:string>", True),  # names, not types
        ("interval day to second", True),
        ("array<struct<a:map<int,int>>>", False),
        ("interval", False),
        ("struct<a:variant>", False),
        ("array<void>", False),
        ("struct<a:string collate UTF8_LCASE>", False),
    ],
)
def test_what_can_be_ordered_is_told_by_types_and_not_by_names(text: str, orderable: bool) -> None:
    assert is_orderable(text) is orderable


def test_a_decimal_and_the_fields_of_a_struct() -> None:
    assert decimal_of("decimal(12,3)") == (12, 3)
    assert decimal_of("struct<decimal:int>") is None
    assert read_type("struct<a: INT, `b c`: DATE NOT NULL>").fields == {"a": Type("int"), "b c": Type("date")}
    assert read_type("array<int>").fields == {}


def test_a_key_may_be_called_like_a_type_that_cannot_be_one() -> None:
    rows = hs.Topology("t").spout("rows", hs.Log("x"), schema="s STRUCT<variant: INT, `map<`: INT>")
    assert rows.fold("counts", by="s", n=hs.count()).key == ("s",)


def test_no_other_module_takes_types_apart() -> None:
    apart = re.compile(r"""startswith\(["'](struct|map|array|decimal)[<(]|["']map<["'] in|decimal\\\(""")
    found = [str(file.relative_to(PACKAGE)) for file in MODULES if apart.search(file.read_text())]
    assert found == []
