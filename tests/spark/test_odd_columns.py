"""Columns of every name and every nullability pass every step, in both ways to run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

WAYS = pytest.mark.parametrize("tasks", [(1,), (2,)], ids=["prepared", "planned"])


def by_key(rows: list[dict[str, Any]], key: str = "k") -> dict[Any, dict[str, Any]]:
    """The rows of a stream, or the last change of each key, without what is hidden."""
    return {row[key]: {name: row[name] for name in row if not name.startswith("_")} for row in rows}


@WAYS
def test_a_select_on_a_table_may_be_never_null_and_may_pass_a_map_on(spark: SparkSession, tasks: tuple[int]) -> None:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    table = rows.fold("table", by="k", n=hs.sum("n"), m=hs.map_sum("k", "n"))
    table.select("never_null", x="coalesce(n, 0)", y="1", z="n IS NULL")
    table.select(
        "structs", s="struct(1 AS a, n AS b)", list="array(struct(1 AS a))", m="map(1, struct(n AS a), 2, NULL)"
    )
    table.select("maps", m="m")
    table.select("key_only", k="k")
    for name in ("never_null", "structs", "maps", "key_only"):
        hs.Table(storm, name).fold(f"{name}_counted", n=hs.count())
    with Driver(storm, spark, tasks=tasks) as driver:
        driver.feed("rows", [{"k": "a", "n": 1}, {"k": "b"}])
        driver.advance()
        driver.feed("rows", [{"k": "a", "n": 2}])
        driver.advance()
        assert by_key(driver.rows("never_null")) == {
            "a": {"k": "a", "x": 3, "y": 1, "z": False},
            "b": {"k": "b", "x": 0, "y": 1, "z": True},
        }
        changed = driver.rows("never_null")[-1]
        assert (changed["_kind"], changed["_old"]) == ("update", {"x": 1, "y": 1, "z": False})
        assert by_key(driver.rows("structs"))["a"] == {
            "k": "a",
            "s": {"a": 1, "b": 3},
            "list": [{"a": 1}],
            "m": [(1, {"a": 3}), (2, None)],
        }
        assert by_key(driver.rows("maps"))["a"] == {"k": "a", "m": [("a", 3)]}
        assert by_key(driver.rows("key_only")) == {"a": {"k": "a"}, "b": {"k": "b"}}
        for name in ("never_null", "structs", "maps", "key_only"):
            assert driver.table(f"{name}_counted") == [{"n": 2}]


@WAYS
def test_a_row_whose_maps_stay_as_they_are_has_not_changed(spark: SparkSession, tasks: tuple[int]) -> None:
    """Spark cannot compare two maps (seed 310000236 of the generator)."""
    storm = hs.Topology("t")
    table = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT").fold("table", by="k", n=hs.count())
    table.select("maps", m="array(map('large', n > 2))").fold("counted", n=hs.count())
    with Driver(storm, spark, tasks=tasks) as driver:
        for _ in range(4):
            driver.feed("rows", [{"k": "a"}])
            driver.advance()
        found = [(row["_kind"], row["m"]) for row in driver.rows("maps")]
        assert found == [("insert", [[("large", False)]]), ("update", [[("large", True)]])]


@WAYS
def test_a_null_struct_whose_fields_are_never_null_reaches_python(spark: SparkSession, tasks: tuple[int]) -> None:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    made = rows.select("made", k="k", s="IF(n > 1, struct(1 AS a), NULL)", list="array(struct(1 AS a), NULL)")
    made.bolt(
        lambda row: {"k": row.k, "there": row.s is not None}, name="seen", returns="k STRING, there BOOLEAN"
    ).sink("out", hs.Console())
    with Driver(storm, spark, tasks=tasks) as driver:
        driver.feed("rows", [{"k": "a", "n": 1}, {"k": "b", "n": 2}])
        driver.advance()
        assert by_key(driver.rows("made"))["a"] == {"k": "a", "s": None, "list": [{"a": 1}, None]}
        assert by_key(driver.rows("seen")) == {"a": {"k": "a", "there": False}, "b": {"k": "b", "there": True}}


@pytest.mark.parametrize("tasks", [(0,), (1,), (2,)], ids=["resident", "prepared", "planned"])
def test_what_spark_says_of_nulls_inside_of_values_may_change(spark: SparkSession, tasks: tuple[int]) -> None:
    # Spark finds out only while it optimizes that an item of a list, or a field of a null struct, is never null.
    folded = (
        "CASE WHEN d THEN coalesce(named_struct('p', 1, 'q', array(1)), cast(NULL AS struct<p:int,q:array<int>>)) END"
    )
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k INT, d BOOLEAN, n INT")
    made = rows.select(
        "made", k="k", s=folded, list="slice(cast(array(1) AS array<int>), 1, 2)", m="map('a', array(k))"
    )
    made.fold("last", by="k", s=hs.latest("s"), list=hs.latest("list")).top("first", 2, by="k")
    made.table("newest", key="k").sink("out", hs.Console())
    # Of the state that was read back, items of `median` may be null; of the one that Spark computed, they may not.
    rows.fold("medians", by="k", most=hs.top(1, "n"), median=hs.quantiles("n", 0.5)).top("middle", 1, by="k")
    with Driver(storm, spark, tasks=tasks) as driver:
        driver.feed("rows", [{"k": 1, "d": True, "n": 5}, {"k": 2, "d": None}, {"k": 3, "d": True}])
        driver.advance()
        driver.feed("rows", [{"k": 1, "d": False, "n": 7}, {"k": 2, "d": True, "n": 8}])
        driver.advance()
        there = {"p": 1, "q": [1]}
        assert [row["s"] for row in driver.table("last")] == [None, there, there]
        assert [row["m"] for row in driver.table("newest")] == [[("a", [k])] for k in (1, 2, 3)]
        assert [row["s"] for row in driver.table("first")] == [there, there]
        assert [(row["most"], row["median"]) for row in driver.table("medians")] == [([7], [5]), ([8], [8]), ([], None)]
        assert [row["k"] for row in driver.table("middle")] == [3]


NAMES = (
    "größe",
    "it's",
    "a`b",
    "a.b",
    ".c",
    "[d",
    "two words",
    "select",
    "true",
    "日本",
    "back\\slash",
    "{s}",
    'q"',
    "-- x",
)


def in_sql(name: str) -> str:
    """As a person would write it: only what must be quoted is."""
    return name if name.isidentifier() and name not in ("true", "select") else "`" + name.replace("`", "``") + "`"


@WAYS
def test_a_column_can_have_any_name_in_every_step(spark: SparkSession, tasks: tuple[int]) -> None:
    storm = hs.Topology("t")
    sql = {name: in_sql(name) for name in NAMES}
    ddl = ", ".join(f"`{name.replace('`', '``')}` INT" for name in NAMES)
    rows = storm.spout("rows", hs.Log("x"), schema=f"{ddl}, k STRING, s STRUCT<`x y`: INT, `ö'``.`: STRING>")
    selected = rows.select("selected", columns={name: f"{sql[name]} + 0 -- as it is" for name in NAMES}, k="k")
    wanted = selected.where("wanted", " AND ".join(f"{odd} > 0" for odd in sql.values()) + " -- and not less")
    total = " + ".join(sql.values())
    query = wanted.sql("query", f"SELECT ALL *, {total} AS total, to_json(struct(*)) AS j FROM wanted -- all")
    returns = f"{ddl}, k STRING, total INT, j STRING"
    query.bolt(lambda row: row.asdict(), name="bolt", returns=returns, grouping=hs.fields(*NAMES))
    hs.Stream(storm, "bolt").sink("out", hs.Console())
    both = wanted.union("both", selected)
    table = both.fold("table", by=[*NAMES, "k"], columns={f"{n}2": hs.sum(f"{sql[n]} -- sum") for n in NAMES})
    twice = {name: in_sql(f"{name}2") for name in NAMES}
    kept = table.where("kept", " AND ".join(f"{odd} > 0" for odd in twice.values()))
    made = kept.select("made", columns={f"{n}2": f"{twice[n]} + {sql[n]}" for n in NAMES} | {"größe2": "größe2"})
    for i, name in enumerate(("größe", "a`b", ".c", "[d")):
        made.top(f"top{i}", 3, by=twice[name])
    made.fold("again", by=[*NAMES], columns={f"{n}3": hs.max(twice[n]) for n in NAMES}, all=hs.map_sum("k", "größe2"))
    wanted.fold("own", by=[*NAMES], columns={f"{n}4": hs.latest(sql[n]) for n in NAMES})
    nested = rows.select("nested", k="k", s="s", a="s.`x y`", b="s.`ö'``.` -- b")
    nested.fold("structs", by="k", s=hs.latest("s"), most=hs.max("s"), all=hs.set("s"))
    with Driver(storm, spark, tasks=tasks) as driver:
        for n in (1, 2):
            row = dict.fromkeys(NAMES, n) | {"k": "a", "s": {"x y": n, "ö'`.": "z"}}
            driver.feed("rows", [dict.fromkeys(NAMES, -1) | {"k": "b"}, row])
            driver.advance()
        assert driver.errors() == []
        bolted = driver.rows("bolt")[-1]
        assert bolted == dict.fromkeys(NAMES, 2) | {"k": "a", "total": 2 * len(NAMES), "j": bolted["j"]}
        assert json.loads(bolted["j"]) == dict.fromkeys(NAMES, 2) | {"k": "a"}
        changed = {f"{name}2": 4 if name == "größe" else 6 for name in NAMES}
        for i in range(4):
            assert driver.table(f"top{i}")[-1] == dict.fromkeys(NAMES, 2) | {"k": "a", "rank": 1} | changed
        most = {f"{name}3": changed[f"{name}2"] for name in NAMES}
        assert driver.table("again")[-1] == dict.fromkeys(NAMES, 2) | most | {"all": [("a", 4)]}
        assert driver.table("own")[-1] == dict.fromkeys(NAMES, 2) | {f"{name}4": 2 for name in NAMES}
        assert {"k": "a", "s": {"x y": 2, "ö'`.": "z"}, "a": 2, "b": "z"} in driver.rows("nested")
        assert driver.table("structs")[0]["most"] == {"x y": 2, "ö'`.": "z"}


@WAYS
def test_no_star_shows_what_is_hidden(spark: SparkSession, tasks: tuple[int]) -> None:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    stars = "SELECT *, to_json(struct(*)) AS j, struct(*) AS s, array(t.*) AS l FROM"
    rows.select("texts", k="k", n="CAST(n AS STRING)").sql("stars", f"{stars} texts t").sink("a", hs.Console())
    table = rows.fold("table", by="k", n=hs.sum("n"))
    table.sql("changes", "SELECT *, _kind AS kind, _old.n AS before FROM table").sink("b", hs.Console())
    table.bolt(
        lambda row: {"kind": row._kind, "old": row._old}, name="seen", returns="kind STRING, old STRUCT<n: BIGINT>"
    )
    hs.Stream(storm, "seen").sink("c", hs.Console())
    with Driver(storm, spark, tasks=tasks) as driver:
        for n in (1, 2):
            driver.feed("rows", [{"k": "a", "n": n}])
            driver.advance()
        first = {"k": "a", "n": "1", "j": '{"k":"a","n":"1"}', "s": {"k": "a", "n": "1"}, "l": ["a", "1"]}
        assert driver.rows("stars")[0] == first
        assert driver.rows("changes") == [
            {"k": "a", "n": 1, "kind": "insert", "before": None},
            {"k": "a", "n": 3, "kind": "update", "before": 1},
        ]
        assert driver.rows("seen") == [{"kind": "insert", "old": None}, {"kind": "update", "old": {"n": 1}}]
        assert driver.topology.step("changes").schema.names == ("k", "n", "kind", "before")


@WAYS
def test_fields_of_structs_may_have_any_name(spark: SparkSession, tasks: tuple[int]) -> None:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, s STRUCT<`p q`: INT, `a``b`: STRING, ü: ARRAY<INT>>")
    got: list[Any] = []
    rows.sink("out", hs.Call(got.extend))
    rows.fold("of_key", by="k", least=hs.min("s"), all=hs.set("s"), last=hs.latest("s"), three=hs.top(3, "s", of="s"))
    rows.fold("by_struct", by="s", n=hs.count()).sink("counts", hs.Call(got.extend))
    value = {"p q": 1, "a`b": "x", "ü": [2]}
    with Driver(storm, spark, tasks=tasks, deliver=True) as driver:
        driver.feed("rows", [{"k": "a", "s": value}])
        driver.advance()
        assert driver.stop().undelivered == ()
        pair = [{"by": value, "value": value}]
        assert driver.table("of_key") == [{"k": "a", "least": value, "all": [value], "last": value, "three": pair}]
        assert driver.table("by_struct") == [{"s": value, "n": 1}]
    assert sorted(map(dict, got), key=sorted) == [{"k": "a", "s": value}, {"s": value, "n": 1}]
