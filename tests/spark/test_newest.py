"""Tables of records: the newest record of each key, however the records were cut into ticks and came out of order."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver
from tests.spark.oracle import after_changes, as_set

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WAYS = [(1,), (2,)]


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def prices(deletes: str | None = "op = 'd'") -> hs.Topology:
    storm = hs.Topology("prices")
    storm.table(
        "prices",
        hs.Log("x"),
        schema="price INT, id STRING, op STRING, at TIMESTAMP",
        key="id",
        deletes=deletes,
        event_time="at",
        lateness="1 hour",
    )
    return storm


def row(id_: str, price: int, second: float, op: str = "u") -> Row:
    return {"id": id_, "price": price, "op": op, "at": at(second).isoformat()}


def newest(records: list[tuple[int, int, Row]]) -> dict[str, int]:
    """The price of each key, of records with their partition and offset."""
    best: dict[str, tuple[Any, Row]] = {}
    for partition, offset, record in records:
        rank = (record["at"], partition, offset)
        if record["id"] not in best or rank > best[record["id"]][0]:
            best[record["id"]] = (rank, record)
    return {id_: record["price"] for id_, (_, record) in best.items() if record["op"] != "d"}


def shown(driver: Driver, step: str = "prices") -> dict[str, int]:
    return {row["id"]: row["price"] for row in driver.table(step)}


@pytest.mark.parametrize("tasks", WAYS)
def test_the_newest_record_wins_in_whatever_order_records_come(spark: SparkSession, tasks: tuple[int, ...]) -> None:
    chance = random.Random(11)
    with Driver(prices(), spark, tasks=tasks) as driver:
        records: list[tuple[int, int, Row]] = []
        offsets = [0, 0]
        for tick in range(6):
            for _ in range(20):
                partition = chance.randrange(2)
                made = row(
                    f"k{chance.randrange(6)}", len(records), chance.randrange(5), "d" if chance.random() < 0.3 else "u"
                )
                driver.feed("prices", [made], partition=partition)
                records.append((partition, offsets[partition], made))
                offsets[partition] += 1
            if tick == 3:
                driver.crash(at="before-commit")
            driver.advance()
            assert shown(driver) == newest(records), tick
            changed = after_changes(driver.rows("prices"), ("id",), ("price", "op", "at"))
            assert as_set(changed) == as_set(driver.table("prices")), tick


@pytest.mark.parametrize("tasks", WAYS)
def test_a_removed_key_does_not_come_back_by_an_older_record(spark: SparkSession, tasks: tuple[int, ...]) -> None:
    with Driver(prices(), spark, tasks=tasks) as driver:
        for record in (row("a", 1, 10), row("a", 0, 20, "d"), row("a", 3, 15)):
            driver.feed("prices", [record])
            driver.advance()
        assert shown(driver) == {}
        driver.feed("prices", [row("a", 4, 21)])
        driver.advance()
        assert shown(driver) == {"a": 4}
        assert [change["_kind"] for change in driver.rows("prices")] == ["insert", "delete", "insert"]


def test_a_removed_key_is_forgotten_after_a_day_of_event_time(spark: SparkSession) -> None:
    day = 86_400
    with Driver(prices(), spark) as driver:
        driver.feed("prices", [row("a", 1, 10), row("a", 0, 20, "d"), row("b", 1, 5, "d")])
        driver.advance()
        assert driver.ledger.head.runs["prices"][-1].rows == 2  # remembered, and not shown
        assert driver.table("prices") == []
        driver.feed("prices", [row("c", 1, day + 3_600 + 30)])
        driver.advance()
        state = driver._negotiator.ledger.head
        assert state.reached["prices.gone"] >= int(at(day + 20).timestamp() * 1e6)
        driver.feed("prices", [row("a", 7, 1)])
        driver.advance()
        assert shown(driver) == {"a": 7, "c": 1}  # so late that nobody knows of the removal any more


@pytest.mark.parametrize("tasks", WAYS)
def test_a_stream_is_a_table_by_its_own_time_or_by_a_column(spark: SparkSession, tasks: tuple[int, ...]) -> None:
    storm = hs.Topology("streams")
    events = storm.spout("events", hs.Log("x"), schema="k STRING, v INT, seen TIMESTAMP")
    wide = events.select("wide", k="k", w="v * 2", v="v", seen="seen")
    wide.table("by_arrival", key="k")
    wide.table("by_column", key=["k"], at="seen", deletes="v IS NULL")
    with Driver(storm, spark, tasks=tasks) as driver:
        driver.feed("events", [{"k": "a", "v": 1, "seen": at(9).isoformat()}], time=at(0))
        driver.feed("events", [{"k": "a", "v": 2, "seen": at(3).isoformat()}], time=at(1))
        driver.feed("events", [{"k": None, "v": 2, "seen": at(3).isoformat()}, {"k": "b", "v": 2}], time=at(1))
        driver.advance()
        assert {row["k"]: row["w"] for row in driver.table("by_arrival")} == {"a": 4, "b": 4}
        assert {row["k"]: row["w"] for row in driver.table("by_column")} == {"a": 2}
        reasons = sorted((letter["step"], letter["reason"]) for letter in driver.errors())
        assert reasons == [
            ("by_arrival", "the key is null"),
            ("by_column", "its time 'seen' is null"),
            ("by_column", "the key is null"),
        ]
        driver.feed("events", [{"k": "a", "v": None, "seen": at(10).isoformat()}], time=at(2))
        driver.advance()
        assert driver.table("by_column") == []


def test_a_record_without_a_value_removes_its_key(spark: SparkSession) -> None:
    storm = hs.Topology("tombstones")
    storm.table("users", hs.Log("x"), schema="id BIGINT, name STRING, kafka_key STRING", key="id")
    with Driver(storm, spark) as driver:
        driver.feed("users", [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}, {"name": "nobody"}], time=at(0))
        driver.advance()
        assert [row["name"] for row in driver.table("users")] == ["ann", "bob"]
        assert [letter["reason"] for letter in driver.errors()] == ["field 'id' is NOT NULL, and is null or missing"]
