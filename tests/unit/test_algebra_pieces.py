"""Native monoids as values: what they take, what they refuse, and how they describe themselves."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

import hailstorm.algebra as hs
from hailstorm.algebra.monoid import Pieces, SqlMonoid, TypeRefused

EVERY = {
    "count": hs.count(),
    "sum": hs.sum("x"),
    "mean": hs.mean("x"),
    "variance": hs.variance("x"),
    "stddev": hs.stddev("x"),
    "min": hs.min("x"),
    "max": hs.max("x"),
    "latest": hs.latest("x", by="at"),
    "earliest": hs.earliest("x"),
    "count_distinct": hs.count_distinct("x"),
    "quantiles": hs.quantiles("x", 0.5, 0.99),
    "frequent": hs.frequent("x", 10),
    "top": hs.top(3, "x"),
    "set": hs.set("x"),
    "map_sum": hs.map_sum("k", "x"),
    "any": hs.any("x > 1"),
    "all": hs.all("x > 1"),
    "histogram": hs.histogram("x", 1, 10),
    "bitmap": hs.bitmap("x"),
}


def bound(monoid: SqlMonoid) -> Pieces:
    types = {"x": "bigint", "at": "timestamp", "k": "string", "x > 1": "boolean"}
    return monoid.pieces(tuple(types[text] for text in monoid.inputs))


def test_every_monoid_of_the_design_is_here_and_nothing_else() -> None:
    assert {*EVERY, "Monoid"} == set(hs.__all__)


@pytest.mark.parametrize("word", EVERY)
def test_a_monoid_is_a_value(word: str) -> None:
    monoid = EVERY[word]
    again = pickle.loads(pickle.dumps(monoid))
    assert again == monoid and hash(again) == hash(monoid)
    pickle.dumps(bound(monoid))  # the tasks get the pieces


@pytest.mark.parametrize("word", EVERY)
def test_a_description_is_json_with_its_name_and_arguments(word: str) -> None:
    description = EVERY[word].describe()
    assert description["monoid"] == word
    assert json.loads(json.dumps(description)) == description


def test_other_arguments_give_another_description() -> None:
    assert hs.quantiles("x", 0.5).describe() == {"monoid": "quantiles", "of": "x", "ranks": [0.5], "k": 200}
    assert hs.quantiles("x", 0.5).describe() != hs.quantiles("x", 0.9).describe()
    assert hs.latest("x").describe() != hs.latest("x", by="at").describe()


@pytest.mark.parametrize("word", EVERY)
def test_places_are_only_where_the_contract_has_them(word: str) -> None:
    pieces = bound(EVERY[word])
    texts = {name: getattr(pieces, name) or "" for name in ("lift", "merge", "present", "retract")}
    places = {name: set(re.findall(r"\{(\w*)\}", text)) for name, text in texts.items()}
    assert places["lift"] == set() and places["merge"] == {"a", "b"} and places["present"] == {"s"}
    assert places["retract"] == ({"sign"} if pieces.retract else set())


def test_braces_in_an_expression_stay_as_they_are() -> None:
    pieces = hs.sum("cast(split(s, '{')[0] as int)").pieces(("int",))
    assert "'{'" in pieces.lift and "'{'" in (pieces.retract or "")


@pytest.mark.parametrize(
    ("monoid", "types", "state", "value"),
    [
        (hs.count(), (), "bigint", "bigint"),
        (hs.sum("x"), ("tinyint",), "struct<sum:decimal(37,0),n:bigint>", "bigint"),
        (hs.sum("x"), ("decimal(10,2)",), "struct<sum:decimal(37,2),n:bigint>", "decimal(20,2)"),
        (hs.sum("x"), ("float",), "double", "double"),
        (hs.mean("x"), ("decimal(10,2)",), "struct<sum:decimal(37,2),n:bigint>", "decimal(14,6)"),
        (hs.max("x"), ("string",), "string", "string"),
        (hs.max("x"), ("interval day to second",), "interval day to second", "interval day to second"),
        (hs.min("x"), ("struct<variant:int,map:int>",), "struct<variant:int,map:int>", "struct<variant:int,map:int>"),
        (hs.top(2, "x"), ("int",), "array<int>", "array<int>"),
        (hs.map_sum("k", "x"), ("int", "int"), "array<struct<key:int,sum:decimal(37,0),n:bigint>>", "map<int,bigint>"),
        (hs.quantiles("x", 0.5), ("decimal(10,2)",), "binary", "array<double>"),
    ],
)  # fmt: skip
def test_types_of_state_and_value(monoid: SqlMonoid, types: tuple[str, ...], state: str, value: str) -> None:
    pieces = monoid.pieces(types)
    assert (pieces.state_type, pieces.value_type) == (state, value)


@pytest.mark.parametrize(
    ("monoid", "types", "message"),
    [
        (hs.sum("x"), ("string",), "sum cannot take STRING; it takes integers, floats and decimals of at most 28"),
        (hs.sum("x"), ("decimal(38,10)",), "try cast(... as decimal(28,10))"),
        (hs.sum("x"), ("boolean",), "sum cannot take BOOLEAN"),
        (hs.mean("x"), ("date",), "mean cannot take DATE"),
        (hs.variance("x"), ("string",), "variance cannot take STRING"),
        (hs.stddev("x"), ("array<int>",), "stddev cannot take ARRAY<INT>"),
        (hs.min("x"), ("map<string,int>",), "min cannot take MAP<STRING,INT>"),
        (hs.max("x"), ("struct<a:array<map<string,int>>>",), "max cannot take STRUCT"),
        (hs.max("x"), ("variant",), "max cannot take VARIANT"),
        (hs.max("x"), ("interval",), "max cannot take INTERVAL"),
        (hs.max("x"), ("string collate UTF8_LCASE",), "no collated STRING"),
        (hs.latest("x", by="at"), ("string", "map<int,int>"), "latest cannot take MAP<INT,INT>"),
        (hs.earliest("x"), ("variant",), "earliest cannot take VARIANT"),
        (hs.count_distinct("x"), ("map<int,int>",), "count_distinct cannot take MAP<INT,INT>"),
        (hs.quantiles("x", 0.5), ("timestamp",), "unix_micros"),
        (hs.frequent("x"), ("array<int>",), "frequent cannot take ARRAY<INT>"),
        (hs.top(3, "x"), ("variant",), "top cannot take VARIANT"),
        (hs.set("x"), ("map<int,int>",), "set cannot take MAP<INT,INT>"),
        (hs.map_sum("k", "x"), ("variant", "int"), "keys that can be ordered"),
        (hs.map_sum("k", "x"), ("string", "string"), "map_sum cannot take STRING"),
        (hs.any("x"), ("int",), "any cannot take INT; it takes BOOLEAN"),
        (hs.all("x"), ("string",), "all cannot take STRING"),
        (hs.histogram("x", 1), ("string",), "histogram cannot take STRING"),
        (hs.bitmap("x"), ("double",), "count_distinct and set take other types"),
    ],
)  # fmt: skip
def test_a_type_that_a_monoid_cannot_take_is_refused(monoid: SqlMonoid, types: tuple[str, ...], message: str) -> None:
    with pytest.raises(TypeRefused, match=re.escape(message)):
        monoid.pieces(types)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hs.sum(5), 'sum: what to add up must be an SQL expression over the input row, such as "amount"'),
        (lambda: hs.max("  "), "max: the value must be an SQL expression"),
        (lambda: hs.count(""), "count: what to count must be an SQL expression"),
        (lambda: hs.latest("x", by=""), "latest: by must be an SQL expression"),
        (lambda: hs.quantiles("x"), 'say which, such as hs.quantiles("ms", 0.5, 0.99)'),
        (lambda: hs.quantiles("x", 50), "a quantile lies between 0 and 1, the median is 0.5; got 50"),
        (lambda: hs.quantiles("x", 0.5, k=1), "k must be a whole number from 8 to 65535; got 1"),
        (lambda: hs.count_distinct("x", precision=30), "precision must be a whole number from 4 to 21"),
        (lambda: hs.top("score", 3), "top: how many must be a whole number from 1 to 1000; got 'score'"),
        (lambda: hs.top(0, "score"), "got 0"),
        (lambda: hs.frequent("x", 10, capacity=5), "capacity must be a whole number from 10"),
        (lambda: hs.histogram("x"), "give 1 to 1000 edges; got 0"),
        (lambda: hs.histogram("x", 5, 1), "edges must grow from left to right; got 5, 1"),
        (lambda: hs.histogram("x", float("nan")), "an edge must be a number; got nan"),
    ],
)
def test_a_wrong_argument_is_found_when_it_is_written(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


def test_retract_is_there_where_an_inverse_exists() -> None:
    inverse = {word for word, monoid in EVERY.items() if bound(monoid).retract}
    assert inverse == {"count", "sum", "mean", "variance", "stddev", "any", "all", "map_sum", "histogram"}
    for monoid in (hs.sum("x"), hs.mean("x"), hs.variance("x")):
        assert monoid.pieces(("double",)).retract is None
    assert hs.map_sum("k", "x").pieces(("string", "double")).retract is None


def test_what_is_approximate_says_so() -> None:
    approximate = {word for word, monoid in EVERY.items() if not bound(monoid).exact}
    assert approximate == {"count_distinct", "quantiles", "frequent"}
    for monoid in (hs.sum("x"), hs.mean("x"), hs.variance("x")):
        assert not monoid.pieces(("double",)).exact
