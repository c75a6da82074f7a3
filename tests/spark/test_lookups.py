"""Look-ups: the table after the tick, or the version that was valid at the row's time, against a search on paper."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.ledger.compaction import compact
from hailstorm.testing import Driver
from tests.length import only_long
from tests.spark.test_tables import alternating

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WAYS = [(1,), (2,)]


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def orders() -> hs.Topology:
    storm = hs.Topology("orders")
    placed = storm.spout(
        "placed", hs.Log("x"), schema="item INT, n INT, price INT, at TIMESTAMP", event_time="at", lateness="20 seconds"
    )
    prices = storm.table(
        "prices",
        hs.Log("x"),
        schema="id BIGINT, price INT, gone BOOLEAN, at TIMESTAMP",
        key="id",
        deletes="gone",
        event_time="at",
        lateness="40 seconds",
    )
    for how in ("left", "inner"):
        then = placed.lookup(f"then_{how}", prices, on={"item": "id"}, as_of="event time", how=how)
        then.sink(f"to-then-{how}", hs.Console())
        then.late.sink(f"late-{how}", hs.Console())
        cheap = prices.where(f"cheap_{how}", "price < 50")
        now = placed.lookup(f"now_{how}", cheap, on={"item": "id"}, how=how, suffix="_now")
        now.sink(f"to-now-{how}", hs.Console())
    return storm


def version(records: list[tuple[Any, Row]], item: int | None, time: datetime) -> Row | None:
    """The record that was valid at this time; of equal times, the one of the later place."""
    known = [(place, record) for place, record in records if record["id"] == item and record["time"] <= time]
    if item is None or not known:
        return None
    newest = max(known, key=lambda one: (one[1]["time"], one[0]))[1]
    return None if newest["gone"] else newest


@pytest.mark.parametrize(("tasks", "seed"), [((1,), 1), only_long((1,), 2), only_long((2,), 3), ((1, 2), 4)])
def test_a_row_gets_the_version_that_was_valid_at_its_time(
    spark: SparkSession, tasks: tuple[int, ...], seed: int
) -> None:
    chance, now, number = random.Random(seed), 100, 0
    records: list[tuple[Any, Row]] = []
    placed: list[Row] = []
    late: Counter[int] = Counter()
    latest: Counter[Any] = Counter()
    offsets = [0, 0]
    with alternating(Driver(orders(), spark, tasks=tasks)) as driver:
        for tick in range(8):
            watermark = driver.ledger.head.watermarks.get("then_left", (None, None))[0]
            new: list[Row] = []
            for _ in range(chance.choice([2, 8, 15])):
                number += 1
                if chance.random() < 0.5:
                    second = now - chance.choice([0, 0, 5, 10, 20, 40])  # never late
                    record = {"id": chance.randrange(3), "price": number, "gone": chance.random() < 0.2}
                    partition = chance.randrange(2)
                    driver.feed("prices", [{**record, "at": at(second).isoformat()}], partition=partition)
                    records.append(((partition, offsets[partition]), {**record, "time": at(second)}))
                    offsets[partition] += 1
                else:
                    second = now - chance.choice([0, 0, 5, 10, 20, 90])
                    row = {"item": chance.choice([0, 1, 2, 3, None]), "n": number, "price": -1}
                    driver.feed("placed", [{**row, "at": at(second).isoformat()}], partition=chance.randrange(2))
                    new.append({**row, "time": at(second)})
            if tick == 4:
                driver.crash(at="before-commit")
            driver.advance()
            for row in new:
                current = version(records, row["item"], at(10**6))
                cheap = current is not None and current["price"] < 50
                latest[(row["n"], current["price"] if current and cheap else None)] += 1
                if watermark is not None and row["time"].timestamp() * 1e6 < watermark:
                    late[row["n"]] += 1
                else:
                    placed.append(row)
            check(driver, records, placed, late, latest, f"tick {tick}")
            now += chance.choice([0, 10, 30])
        driver.complete()
        check(driver, records, placed, late, latest, "at the end")
        assert len(driver.rows("then_left")) == len(placed)
        assert sum(late.values())


def check(
    driver: Driver,
    records: list[tuple[Any, Row]],
    placed: list[Row],
    late: Counter[int],
    latest: Counter[Any],
    place: str,
) -> None:
    watermark = driver.ledger.head.watermarks.get("then_left", (None, None))[0]
    released = [row for row in placed if watermark is not None and row["time"].timestamp() * 1e6 < watermark]
    answers = {row["n"]: version(records, row["item"], row["time"]) for row in released}
    left = Counter((n, None if found is None else found["price"]) for n, found in answers.items())
    inner = Counter({key: count for key, count in left.items() if key[1] is not None})
    got = {how: Counter((r["n"], r["price_right"]) for r in driver.rows(f"then_{how}")) for how in ("left", "inner")}
    assert set(left) <= set(got["left"]), place
    # A row may be answered before the stream's own watermark has passed it, once the table's has: never otherwise.
    known = driver.ledger.head.watermarks["prices"][0]
    early = [row for row in placed if known is not None and row["time"].timestamp() * 1e6 < known]
    possible = {row["n"]: version(records, row["item"], row["time"]) for row in early}
    allowed = {(n, None if found is None else found["price"]) for n, found in possible.items()}
    assert set(got["left"]) <= allowed and max(got["left"].values(), default=1) == 1, place
    assert set(got["inner"]) == {key for key in got["left"] if key[1] is not None}, place
    assert inner.keys() <= got["inner"].keys()
    for how in ("left", "inner"):
        assert Counter(row["n"] for row in driver.rows(f"then_{how}.late")) == late, place
    assert Counter((row["n"], row["price_now"]) for row in driver.rows("now_left")) == latest, place
    some = Counter({key: count for key, count in latest.items() if key[1] is not None})
    assert Counter((row["n"], row["price_now"]) for row in driver.rows("now_inner")) == some, place


@pytest.mark.parametrize("tasks", WAYS)
def test_a_version_at_exactly_the_time_of_the_row_counts(spark: SparkSession, tasks: tuple[int, ...]) -> None:
    with Driver(orders(), spark, tasks=tasks) as driver:
        driver.feed("placed", [{"item": 1, "n": 1, "price": 0, "at": at(10).isoformat()}])
        driver.advance()
        driver.feed("prices", [{"id": 1, "price": 7, "gone": False, "at": at(9).isoformat()}])
        driver.advance()
        assert driver.rows("then_left") == []  # a later version may still come
        driver.feed("prices", [{"id": 1, "price": 8, "gone": False, "at": at(10).isoformat()}])
        driver.feed("prices", [{"id": 1, "price": 9, "gone": False, "at": at(10.001).isoformat()}])
        driver.complete()
        assert [row["price_right"] for row in driver.rows("then_left")] == [8]


def test_versions_leave_when_nobody_can_ask_for_them(spark: SparkSession) -> None:
    with Driver(orders(), spark) as driver:
        for minute in range(30):
            when = at(60 * minute).isoformat()
            driver.feed("prices", [{"id": 1, "price": minute, "gone": False, "at": when}])
            driver.feed("placed", [{"item": 1, "n": minute, "price": 0, "at": when}])
            if minute % 3 == 2:
                driver.advance()
        head, ledger = driver.ledger.head, driver.ledger
        left = {}
        for table, key in head.steps["then_left"].tables.items():
            runs, past = head.runs[table], head.reached.get(table)
            change = compact(ledger.store, ledger.cache, table, key, runs, ledger.stamp, everything=True, past=past)
            left[table] = sum(run.rows for run in (change.added if change is not None else runs))
        assert left == {"then_left.versions": 2, "then_left.waiting": 1, "then_left.expiring": 1}


@pytest.mark.parametrize("tasks", WAYS)
def test_zeros_of_both_signs_are_one_key_of_joins_and_lookups(spark: SparkSession, tasks: tuple[int, ...]) -> None:
    storm = hs.Topology("zeros")
    left, right = (
        storm.spout(name, hs.Log("x"), schema="k DOUBLE, n INT, at TIMESTAMP", event_time="at")
        for name in ("left", "right")
    )
    left.join("pairs", right, on="k", within="1 minute").sink("to-pairs", hs.Console())
    newest = right.table("newest", key="k")
    left.lookup("then", newest, on="k", as_of="event time").sink("to-then", hs.Console())
    left.lookup("now", newest, on="k").sink("to-now", hs.Console())
    with Driver(storm, spark, tasks=tasks) as driver:
        for spout, keys in (("right", [0.0, -0.0]), ("left", [-0.0, 0.0])):
            driver.feed(spout, [{"k": k, "n": n, "at": at(0).isoformat()} for n, k in enumerate(keys)])
        driver.complete()
        found = {step: sorted((r["n"], r["n_right"]) for r in driver.rows(step)) for step in ("pairs", "then", "now")}
        assert found == {"pairs": [(0, 0), (0, 1), (1, 0), (1, 1)], "then": [(0, 1), (1, 1)], "now": [(0, 1), (1, 1)]}


def test_a_window_below_a_look_up_of_a_table_without_records_goes_on(spark: SparkSession) -> None:
    storm = hs.Topology("named")
    placed = storm.spout("placed", hs.Log("x"), schema="item INT, at TIMESTAMP", event_time="at")
    names = storm.table("names", hs.Files("n.csv"), schema="item INT, name STRING", key="item", decode="csv")
    windows = placed.lookup("named", names, on="item").window("1 minute", emit="final")
    windows.fold("by_item", by="item", n=hs.count()).sink("out", hs.Console())
    with Driver(storm, spark) as driver:
        driver.feed("placed", [{"item": 1, "at": at(second).isoformat()} for second in (0, 30, 90)])
        driver.advance()
        assert [(row["item"], row["n"]) for row in driver.rows("out")] == [(1, 2)]
