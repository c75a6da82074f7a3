"""Keys of joins: of several columns, null in one of them, and one that most rows have; against plain Python."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def drawn(chance: random.Random, count: int) -> list[Row]:
    """Rows of which eight in ten have one key, and some have none."""
    rows = []
    for number in range(count):
        a, b = ("hot", 1) if chance.random() < 0.8 else (chance.choice(["x", "y", None]), chance.choice([1, 2, None]))
        at = BEGIN + timedelta(seconds=number)
        rows.append({"a": a, "b": b, "v": number, "at": at})
    return rows


def key(row: Row) -> tuple[str, int] | None:
    return None if row["a"] is None or row["b"] is None else (row["a"], row["b"])


def as_json(rows: list[Row]) -> list[Row]:
    return [{**row, "at": row["at"].isoformat()} for row in rows]


@pytest.mark.parametrize("tasks", [0, 2], ids=["resident", "planned"])
def test_keys_of_several_columns_null_and_skewed_in_every_join(spark: SparkSession, tasks: int) -> None:
    storm = hs.Topology("joins", error_limit=1)
    schema = "a STRING, b INT, v INT, at TIMESTAMP"
    left = storm.spout("left", hs.Log("x"), schema=schema, event_time="at")
    right = storm.spout("right", hs.Log("y"), schema=schema, event_time="at")
    on = ["a", "b"]
    left.join("near", right, on=on, within="5 seconds", how="left").fold("near_all", n=hs.count())
    table = right.where("known", "a IS NOT NULL AND b IS NOT NULL").table("table", key=on, at="at")
    left.lookup("now", table, on=on).fold("now_all", n=hs.count())
    left.lookup("then", table, on=on, as_of="event time").fold("then_all", n=hs.count())
    other = left.where("named", "a IS NOT NULL AND b IS NOT NULL").fold("other", by=on, n=hs.count())
    other.join("both", table, on=on, how="full")
    chance = random.Random(8)
    lefts, rights = drawn(chance, 60), drawn(chance, 60)
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        for start in range(0, 60, 20):
            driver.feed("left", as_json(lefts[start : start + 20]))
            driver.feed("right", as_json(rights[start : start + 20]))
            driver.advance()
        driver.complete()

        near = Counter(
            (one["v"], other["v"])
            for one in lefts
            for other in [r for r in rights if key(r) is not None and key(r) == key(one) and within(one, r)]
            or [{"v": None}]
        )
        assert Counter((row["v"], row["v_right"]) for row in driver.rows("near")) == near
        then = {one["v"]: version(rights, one) for one in lefts}
        assert {row["v"]: row["v_right"] for row in driver.rows("then")} == then
        assert len(driver.rows("now")) == len(lefts), "a row without a key is looked up in vain, and goes on"
        assert {row["v_right"] for row in driver.rows("now") if key(row) is None} == {None}
        newest = {key(row): row["v"] for row in rights if key(row) is not None}
        counts = Counter(key(row) for row in lefts if key(row) is not None)
        both = {(row["a"], row["b"]): (row["n"], row["v"]) for row in driver.table("both")}
        assert both == {one: (counts.get(one), newest.get(one)) for one in {*newest, *counts}}
        assert not driver.errors()


def within(one: Row, other: Row) -> bool:
    return abs((one["at"] - other["at"]).total_seconds()) <= 5


def version(rights: list[Row], one: Row) -> int | None:
    """The record that was valid at the time of a row."""
    found = [row for row in rights if key(row) is not None and key(row) == key(one) and row["at"] <= one["at"]]
    return found[-1]["v"] if found else None
