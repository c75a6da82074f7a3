"""Steps that are added to a running topology on tables that have rows: they begin with the tables as they are.

What they hold in the end is what a run of the edited topology from the first record on would have given them.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.faults import inject
from hailstorm.testing import Driver
from hailstorm.testing.driver import Crash
from tests.length import examples, is_long, seeds
from tests.spark.test_audit import audited

Row = dict[str, Any]
Tick = dict[str, list[Row]]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WAYS = pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])

TABLES = ("full", "pointing", "sizes", "cheapest", "hours", "final", "near", "both_of", "below")
ROWS = ("asked", "asked_low", "all")


def shop(edited: bool) -> hs.Topology:
    storm = hs.Topology("shop")
    prices = storm.table(
        "prices",
        hs.Log("x"),
        schema="id INT, price INT, gone BOOLEAN, at TIMESTAMP",
        key="id",
        deletes="gone",
        event_time="at",
        lateness="1 minute",
    )
    sales = storm.spout(
        "sales", hs.Log("y"), schema="item INT, n INT, at TIMESTAMP", event_time="at", lateness="1 minute"
    )
    sold = sales.fold("sold", by="item", n=hs.sum("n"), times=hs.count())
    if edited:
        # Views of tables, on keys and by a foreign key, and what is below them.
        full = prices.join("full", sold, on={"id": "item"}, how="full")
        full.fold("below", by="price", n=hs.sum("n"), ids=hs.set("id"))
        sold.select("sold_out", wanted="CAST(n % 4 AS INT)").join("pointing", prices, on={"wanted": "id"}, how="left")
        # Folds of a table: what can be subtracted, and what cannot.
        sold.fold("sizes", by="times", items=hs.count(), n=hs.sum("n"))
        low = prices.where("low", "price < 6")
        low.fold("cheapest", least=hs.min("price"), id=hs.latest("id"))
        prices.window("1 hour").fold("hours", ids=hs.count(), most=hs.max("price"))
        prices.window("10 minutes", emit="final").fold("final", ids=hs.count())
        prices.session("3 minutes").fold("near", ids=hs.count(), most=hs.max("price"))
        # Of two inputs, one is new as well.
        doubled = sales.fold("doubled", by="item", n=hs.sum("2 * n"))
        sold.join("both_of", doubled, on="item", how="left")
        # Look-ups.
        sales.lookup("asked", prices, on={"item": "id"}).fold("answers", by="price", n=hs.count())
        sales.lookup("asked_low", low, on={"item": "id"}, how="inner").sink("a", hs.Console())
        sales.lookup("all", low, on=[]).sink("b", hs.Console())
        sales.lookup("then", prices, on={"item": "id"}, as_of="event time", suffix="_then").sink("c", hs.Console())
        full.sink("d", hs.Console())
    return storm


def drawn(chance: random.Random, number: int) -> Tick:
    def at(back: int) -> str:
        return (BEGIN + timedelta(minutes=3 * number, seconds=chance.randint(-back, 0))).isoformat()

    prices = [
        {"id": chance.randint(0, 6), "price": chance.randint(1, 9), "gone": chance.random() < 0.25, "at": at(50)}
        for _ in range(chance.randint(0, 4))
    ]
    sales = [
        {"item": chance.randint(0, 6), "n": chance.randint(1, 5), "at": at(40)} for _ in range(chance.randint(0, 5))
    ]
    return {"prices": prices, "sales": sales}


def play(driver: Driver, tick: Tick) -> None:
    for spout, rows in tick.items():
        driver.feed(spout, rows)
    driver.advance()


def counted(rows: list[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items(), key=str)) for row in rows)


def after(changes: list[Row], key: str) -> list[Row]:
    """What a sink that applies the changes of a table holds."""
    held: dict[Any, Row] = {}
    for change in changes:
        assert (change[key] in held) == (change["_kind"] != "insert"), change
        held.pop(change[key], None)
        if change["_kind"] != "delete":
            held[change[key]] = {name: value for name, value in change.items() if not name.startswith("_")}
    return list(held.values())


@pytest.mark.parametrize("seed", seeds(1, 8))
def test_what_is_added_is_as_if_it_had_always_been_there(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    ticks = [drawn(chance, number) for number in range(examples(4, 10))]
    half = len(ticks) // 2
    with Driver(shop(True), spark, tasks=(0,)) as always:
        for tick in ticks[:half]:
            play(always, tick)
        begun = {step: counted(always.table(step)) for step in TABLES}
        seen = {step: counted(always.rows(step)) for step in ROWS}
        for tick in ticks[half:]:
            play(always, tick)
        for tasks in (0, 1, 2) if is_long() else (0,):  # the look-up below is in every way
            with Driver(shop(False), spark, tasks=(tasks,)) as driver:
                added_in_the_middle(driver, ticks, begun)
                for step in TABLES:
                    if step != "both_of":
                        assert counted(driver.table(step)) == counted(always.table(step)), step
                both = {row["item"]: (row["n"], row["times"]) for row in driver.table("both_of")}
                assert both == {row["item"]: (row["n"], row["times"]) for row in driver.table("sold")}
                for step in ROWS:
                    assert counted(driver.rows(step)) == counted(always.rows(step)) - seen[step], step
                assert counted(after(driver.rows("d"), "id")) == counted(always.table("full"))


def added_in_the_middle(driver: Driver, ticks: list[Tick], begun: dict[str, Counter[str]]) -> None:
    """`begun` is what tables are to hold at once."""
    half = len(ticks) // 2
    for tick in ticks[:half]:
        play(driver, tick)
    # A start that dies leaves no step without its tables.
    with pytest.raises(Crash), inject("before-commit", Crash("before-commit")):
        driver.restart(shop(True))
    driver.restart(shop(True))
    for step, rows in begun.items():
        if step not in ("both_of", "final"):  # one side of that is new; and what is due comes in the next tick
            assert counted(driver.table(step)) == rows, f"{step}, at the start"
    found = len(driver.ledger.head.runs["full"])
    driver.restart()
    assert len(driver.ledger.head.runs["full"]) <= found, "once only"
    for tick in ticks[half:]:
        play(driver, tick)


@WAYS
def test_an_added_look_up_of_the_past_knows_the_version_that_is_valid(spark: SparkSession, tasks: int) -> None:
    def minute(number: float) -> str:
        return (BEGIN + timedelta(minutes=number)).isoformat()

    with Driver(shop(False), spark, tasks=(tasks,)) as driver:
        play(driver, {"prices": [{"id": 1, "price": price, "at": minute(price)} for price in (3, 4)], "sales": []})
        play(driver, {"prices": [{"id": 2, "price": 9, "gone": True, "at": minute(4)}], "sales": []})
        driver.restart(shop(True))
        play(
            driver,
            {
                "prices": [{"id": 1, "price": 8, "at": minute(8)}],
                "sales": [{"item": item, "n": 1, "at": minute(at)} for item, at in ((1, 5), (1, 8), (2, 6), (1, 3.5))],
            },
        )
        driver.complete()
        got = Counter((row["item"], row["price"]) for row in driver.rows("then"))
        assert got == Counter([(1, 4), (1, 8), (2, None), (1, None)]), "what was before the newest version is not known"


def test_what_began_with_its_tables_can_be_audited(spark: SparkSession) -> None:
    chance = random.Random(3)
    with Driver(shop(False), spark) as driver:
        for number in range(4):
            play(driver, drawn(chance, number))
        driver.restart(shop(True))
        for number in range(4, 8):
            play(driver, drawn(chance, number))
        found = audited(spark, driver)
        for step, one in found.items():
            assert not one.skipped, (step, one.skipped)
            assert not one.comparison.different, (step, one.comparison.examples)
        assert {found[step].by for step in ("full", "pointing", "sizes", "hours", "near")} == {"batch"}


def test_the_start_says_what_a_step_begins_with(spark: SparkSession) -> None:
    with Driver(shop(False), spark) as driver:
        play(driver, drawn(random.Random(1), 0))
        driver.restart(shop(True))
        notes = driver._negotiator.account.notes
        assert "'full' is new: it begins with 'prices' and 'sold' as they are" in notes
        assert "'cheapest' is new: it begins with 'prices' as it is" in notes
        assert "'asked' is new: it begins with 'prices' as it is" in notes
        assert "'below' is new: it starts from now" in notes
        assert "'doubled' is new: it starts from now" in notes
