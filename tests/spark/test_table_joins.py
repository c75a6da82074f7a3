"""Joins of tables: after every tick the view, and what its changes add up to, is the join of what the tables hold."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver
from tests.length import examples, only_long
from tests.spark.oracle import after_changes, as_set
from tests.spark.test_tables import alternating

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LEFT = "region STRING, id INT, v STRING, `points at` BIGINT, place STRING, gone BOOLEAN, at TIMESTAMP"
RIGHT = "number BIGINT, where STRING, v DOUBLE, gone BOOLEAN, at TIMESTAMP"


def views() -> hs.Topology:
    storm = hs.Topology("views")
    words = {"event_time": "at", "lateness": "1 hour", "deletes": "gone"}
    left = storm.table("left", hs.Log("x"), schema=LEFT, key=["region", "id"], **words)  # type: ignore[arg-type]
    right = storm.table("right", hs.Log("x"), schema=RIGHT, key=["number", "where"], **words)  # type: ignore[arg-type]
    slim = left.select("slim", v="v", at="at", **{"points at": "`points at`", "place": "place"})
    few = right.where("few", "v > 0.2").select("fewer", v="v")
    for how in ("inner", "left", "right", "full"):
        slim.join(f"keys_{how}", few, on={"id": "number", "region": "where"}, how=how)
    for how in ("inner", "left"):
        slim.join(f"foreign_{how}", few, on={"points at": "number", "place": "where"}, how=how, suffix="2")
    slim.join("mixed", few, on={"id": "number", "place": "where"}, how="left")  # one of the key, one beside it
    chain = storm_view(slim, few)
    chain.fold("sums", by="place", n=hs.count(), least=hs.min("v_right"))
    chain.top("best", 3, by="v_right")
    return storm


def storm_view(left: Any, right: Any) -> Any:
    first = left.join("first", right, on={"points at": "number", "place": "where"})
    return first.join("again", left.select("narrow", other="v"), on=["region", "id"], how="left")


def joined(left: list[Row], right: list[Row], on: dict[str, str], how: str, suffix: str = "_right") -> list[Row]:
    """A join of rows, as one would write it on paper."""
    names = {name: name + suffix if name in LEFT_NAMES else name for name in RIGHT_NAMES if name not in on.values()}
    found: list[Row] = []
    used: set[int] = set()
    for row in left:
        mine = [row[name] for name in on]
        partners = [] if None in mine else [r for r in right if [r[name] for name in on.values()] == mine]
        used |= {id(partner) for partner in partners}
        found += [{**row, **{new: partner[name] for name, new in names.items()}} for partner in partners]
        if not partners and how in ("left", "full"):
            found.append({**row, **dict.fromkeys(names.values())})
    if how in ("right", "full"):
        for partner in right:
            if id(partner) not in used:
                row = dict.fromkeys(LEFT_NAMES) | {mine: partner[theirs] for mine, theirs in on.items()}
                found.append({**row, **{new: partner[name] for name, new in names.items()}})
    return found


LEFT_NAMES = ("region", "id", "v", "at", "points at", "place")
RIGHT_NAMES = ("number", "where", "v")


def expected(left: list[Row], right: list[Row]) -> dict[str, list[Row]]:
    few = [{name: row[name] for name in RIGHT_NAMES} for row in right if row["v"] is not None and row["v"] > 0.2]
    slim = [{name: row[name] for name in LEFT_NAMES} for row in left]
    foreign = {"points at": "number", "place": "where"}
    views = {f"keys_{h}": joined(slim, few, {"id": "number", "region": "where"}, h) for h in KINDS}
    views |= {f"foreign_{how}": joined(slim, few, foreign, how, "2") for how in ("inner", "left")}
    views["mixed"] = joined(slim, few, {"id": "number", "place": "where"}, "left")
    views["first"] = joined(slim, few, foreign, "inner")
    views["again"] = [{**row, "other": row["v"]} for row in views["first"]]
    return views


KINDS = ("inner", "left", "right", "full")


def draw_left(chance: random.Random) -> Row:
    return {
        "region": chance.choice("ab"),
        "id": chance.randrange(4),
        "v": chance.choice(["x", "y", None]),
        "points at": chance.choice([0, 1, 2, 3, None]),
        "place": chance.choice(["a", "b", None]),
        "gone": chance.random() < 0.25,
    }


def draw_right(chance: random.Random) -> Row:
    return {
        "number": chance.randrange(4),
        "where": chance.choice("ab"),
        "v": round(chance.random(), 3),
        "gone": chance.random() < 0.25,
    }


@pytest.mark.parametrize(("tasks", "seed"), [((1,), 1), only_long((1,), 2), only_long((2,), 3), ((1, 2), 4)])
def test_a_view_is_the_join_of_what_its_tables_hold_after_every_tick(
    spark: SparkSession, tasks: tuple[int, ...], seed: int
) -> None:
    chance = random.Random(seed)
    tables: dict[str, dict[Any, Row]] = {"left": {}, "right": {}}
    keys = {"left": ("region", "id"), "right": ("number", "where")}
    number = 0
    with alternating(Driver(views(), spark, tasks=tasks)) as driver:
        for tick in range(examples(5, 7)):
            for _ in range(chance.choice([1, 2, 12])):
                side = chance.choice(["left", "right"])
                row = draw_left(chance) if side == "left" else draw_right(chance)
                number += 1
                at = BEGIN + timedelta(seconds=number)
                driver.feed(side, [{**row, "at": at.isoformat()}], partition=chance.randrange(2))
                key = tuple(row[name] for name in keys[side])
                tables[side].pop(key, None)
                if not row["gone"]:
                    tables[side][key] = {**row, "at": at}
            if tick == 3:
                driver.crash(at="after-write")
            driver.advance()
            check(driver, expected(list(tables["left"].values()), list(tables["right"].values())), f"tick {tick}")


def check(driver: Driver, views: dict[str, list[Row]], place: str) -> None:
    for name, rows in views.items():
        step = driver.topology.step(name)
        assert as_set(driver.table(name)) == as_set(rows), f"{place}: {name}"
        values = [column for column in step.schema.names if column not in step.key]
        assert as_set(after_changes(driver.rows(name), step.key, values)) == as_set(rows), f"{place}: {name}"
    again = views["again"]
    counted = {
        place: (len(rows), min(row["v_right"] for row in rows))
        for place in {row["place"] for row in again}
        if (rows := [row for row in again if row["place"] == place])
    }
    assert {row["place"]: (row["n"], row["least"]) for row in driver.table("sums")} == counted
    best = sorted((row["v_right"] for row in again), reverse=True)[:3]
    assert [row["v_right"] for row in sorted(driver.table("best"), key=lambda row: row["rank"])] == best
