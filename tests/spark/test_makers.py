"""The records behind a row, through every kind of state: joins, look-ups, distinct, ordered, processes and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.history.makers import Makers
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from tests.spark.time_machine import START

EVENTS = "u STRING, n INT, at TIMESTAMP"


def at(second: int) -> str:
    return (START + timedelta(seconds=second)).isoformat()


def events(*rows: tuple[str, int, int]) -> list[dict[str, Any]]:
    """User, number, second."""
    return [{"u": u, "n": n, "at": at(second)} for u, n, second in rows]


def untapped(driver: Driver) -> hs.Topology:
    return driver.topology.only(step.name for step in driver.topology.steps if not step.name.startswith("tap-"))


def makers(spark: SparkSession, driver: Driver, after: int = 0) -> Makers:
    ledger = driver.ledger
    return Makers(spark, untapped(driver), ledger, ledger.at(after), ledger.newest())


def behind_outputs(spark: SparkSession, driver: Driver, sink: str) -> list[tuple[dict[str, Any], set[str]]]:
    """Every row that a sink was given, with the records that made it, from the beginning."""
    found = []
    for commit in driver.ledger.commits():
        rows = [row for f in commit.outbox.get(sink, ()) for row in read_table(driver.ledger.store, f.path).to_pylist()]
        asked = Makers(spark, untapped(driver), driver.ledger, driver.ledger.at(0), driver.ledger.at(commit.commit))
        found += [(row, set(map(str, asked.of_output(sink, place)))) for place, row in enumerate(rows)]
    return found


@dataclass
class Sum:
    total: int = 0


class Quiet(hs.Process):
    """The sum of a key's numbers, when it was quiet for five seconds. Its rows do not name the key."""

    state = Sum
    returns = "total INT"

    def on_event(self, key: Any, event: Any, state: Sum, timers: Any) -> None:
        state.total += event.n
        timers.set("quiet", event.at + timedelta(seconds=5))

    def on_timer(self, key: Any, timer: Any, state: Sum, timers: Any) -> Iterator[dict[str, Any]]:
        yield {"total": state.total}
        state.total = 0


def test_the_records_behind_a_key_are_found_through_a_join_of_streams(spark: SparkSession) -> None:
    storm = hs.Topology("pairs")
    left = storm.spout("left", hs.Log("left"), schema=EVENTS, event_time="at")
    right = storm.spout("right", hs.Log("right"), schema=EVENTS, event_time="at")

    @left.join("near", right, on="u", within="3 seconds", suffix="_r", how="left").bolt(returns="size STRING")
    def sizes(pair: hs.Row) -> dict[str, str]:
        return {"size": "alone" if pair.n_r is None else "big" if pair.n_r > 5 else "small"}

    sizes.fold("counts", by="size", n=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("left", events(("a", 1, 10), ("b", 1, 10), ("c", 1, 10)))
        driver.advance()
        driver.feed("right", events(("a", 9, 11), ("a", 2, 12), ("b", 2, 50), ("a", 9, 49)))
        driver.feed("left", events(("d", 1, 60)))
        driver.advance()
        driver.feed("right", events(("d", 9, 60)))
        driver.advance()
        asked = makers(spark, driver)
        found = {size: set(map(str, asked.of_key("counts", {"size": size}))) for size in ("big", "small", "alone")}
        assert found == {
            "big": {"left/0@0", "right/0@0", "left/0@3", "right/0@4"},
            "small": {"left/0@0", "right/0@1"},
            "alone": {"left/0@1", "left/0@2"},
        }


def test_the_records_behind_a_key_are_found_through_a_table_that_was_looked_up(spark: SparkSession) -> None:
    storm = hs.Topology("looked-up")
    clicks = storm.spout("clicks", hs.Log("clicks"), schema=EVENTS, event_time="at")
    users = storm.table("users", hs.Log("users"), schema="id STRING, team STRING", key="id")
    teams = clicks.lookup("known", users, on={"u": "id"})
    teams.fold("per_team", by="team", n=hs.count())
    counts = clicks.fold("counts", by="u", n=hs.count())
    clicks.lookup("counted", counts, on="u", suffix="_all").select("levels", level="n_all").fold(
        "per_level", by="level", n=hs.count()
    )
    with Driver(storm, spark) as driver:
        driver.feed("users", [{"id": "a", "team": "red"}, {"id": "b", "team": "blue"}])
        driver.advance()
        driver.feed("clicks", events(("a", 1, 1), ("b", 1, 2), ("a", 1, 3)))
        driver.advance()
        driver.feed("users", [{"id": "a", "team": "blue"}])
        driver.advance()
        driver.feed("clicks", events(("a", 1, 4)))
        driver.advance()
        asked = makers(spark, driver)
        assert set(map(str, asked.of_key("per_team", {"team": "red"}))) == {"users/0@0", "clicks/0@0", "clicks/0@2"}
        assert set(map(str, asked.of_key("per_team", {"team": "blue"}))) == {
            *("users/0@0", "users/0@1", "users/0@2"),
            *("clicks/0@1", "clicks/0@3"),
        }
        assert set(map(str, asked.of_key("per_level", {"level": "3"}))) == {"clicks/0@0", "clicks/0@2", "clicks/0@3"}


def test_the_records_behind_a_key_are_found_through_joins_of_tables_and_folds_of_tables(spark: SparkSession) -> None:
    storm = hs.Topology("views")
    orders = storm.table("orders", hs.Log("orders"), schema="id INT, who STRING, sum INT", key="id")
    people = storm.table("people", hs.Log("people"), schema="name STRING, town STRING", key="name")
    bought = orders.join("bought", people, on={"who": "name"})
    bought.fold("per_town", by="town", sum=hs.sum("sum"))
    with Driver(storm, spark) as driver:
        driver.feed("people", [{"name": "ann", "town": "Ulm"}, {"name": "bob", "town": "Rom"}])
        driver.feed("orders", [{"id": 1, "who": "ann", "sum": 3}, {"id": 2, "who": "bob", "sum": 4}])
        driver.advance()
        driver.feed("people", [{"name": "cid", "town": "Ulm"}])
        driver.feed("orders", [{"id": 2, "who": "cid", "sum": 5}])
        driver.advance()
        asked = makers(spark, driver)
        assert set(map(str, asked.of_key("bought", {"id": "1"}))) == {"orders/0@0", "people/0@0"}
        assert set(map(str, asked.of_key("bought", {"id": 2}))) == {
            *("orders/0@1", "orders/0@2"),
            *("people/0@1", "people/0@2"),
        }
        assert set(map(str, asked.of_key("per_town", {"town": "Rom"}))) == {
            *("orders/0@1", "orders/0@2"),
            *("people/0@1", "people/0@2"),
        }


def test_the_records_behind_a_key_are_found_through_distinct_ordered_and_a_process(spark: SparkSession) -> None:
    storm = hs.Topology("passing")
    clicks = storm.spout("clicks", hs.Log("clicks"), schema=EVENTS, event_time="at")
    clicks.distinct("once", by="u", within="20 seconds").fold("firsts", by="n", m=hs.count())
    clicks.ordered("sorted").fold("in_order", by="n", m=hs.count())
    clicks.process("quiet", by="u", using=Quiet).fold("totals", by="total", m=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("clicks", events(("a", 1, 1), ("b", 2, 2)))
        driver.advance()
        driver.feed("clicks", events(("a", 2, 3), ("b", 2, 2)))
        driver.advance()
        driver.feed("clicks", events(("c", 7, 40)))
        driver.advance()
        driver.feed("clicks", events(("c", 7, 80)))
        driver.advance()
        asked = makers(spark, driver)
        assert set(map(str, asked.of_key("firsts", {"n": "2"}))) == {"clicks/0@1"}
        assert set(map(str, asked.of_key("in_order", {"n": "2"}))) == {"clicks/0@1", "clicks/0@2", "clicks/0@3"}
        assert set(map(str, asked.of_key("totals", {"total": "3"}))) == {"clicks/0@0", "clicks/0@2"}
        assert set(map(str, asked.of_key("totals", {"total": "4"}))) == {"clicks/0@1", "clicks/0@3"}


def test_the_records_behind_a_row_that_waited_are_found_in_earlier_commits(spark: SparkSession) -> None:
    storm = hs.Topology("waiting")
    clicks = storm.spout("clicks", hs.Log("clicks"), schema=EVENTS, event_time="at")
    others = storm.spout("others", hs.Log("others"), schema=EVENTS, event_time="at")
    clicks.window("10 seconds", emit="final").fold("per", by="u", s=hs.sum("n")).sink("windows", hs.Console())
    clicks.session("5 seconds", emit="final").fold("visits", by="u", s=hs.sum("n")).sink("sessions", hs.Console())
    clicks.ordered("sorted").sink("order", hs.Console())
    clicks.join("near", others, on="u", within="3 seconds", how="left", suffix="_o").sink("pairs", hs.Console())
    clicks.process("quiet", by="u", using=Quiet).sink("totals", hs.Console())
    prices = others.table("prices", key="u")
    clicks.lookup("priced", prices, on="u", as_of="event time", suffix="_p").sink("asof", hs.Console())
    with Driver(storm, spark) as driver:
        driver.feed("clicks", events(("a", 1, 1), ("b", 2, 4)))
        driver.feed("others", events(("a", 5, 0)))
        driver.advance()
        driver.feed("clicks", events(("a", 3, 2)))
        driver.advance()
        for second in (100, 200):
            driver.feed("clicks", events(("z", 9, second)))
            driver.feed("others", events(("z", 9, second)))
            driver.advance()

        def behind(sink: str, **values: Any) -> set[str]:
            (found,) = (
                made
                for row, made in behind_outputs(spark, driver, sink)
                if all(row[name] == value for name, value in values.items())
            )
            return found

        assert behind("windows", u="a") == behind("sessions", u="a") == {"clicks/0@0", "clicks/0@2"}
        assert behind("order", u="b") == {"clicks/0@1"}
        assert behind("pairs", u="b") == {"clicks/0@1"}
        assert behind("pairs", u="a", n=3) == {"clicks/0@2", "others/0@0"}
        assert behind("totals", total=4) == {"clicks/0@0", "clicks/0@2"}
        assert behind("totals", total=2) == {"clicks/0@1"}
        assert behind("asof", u="a", n=3) == {"clicks/0@2", "others/0@0"}


def test_a_part_of_the_history_has_the_records_of_that_part(spark: SparkSession) -> None:
    storm = hs.Topology("part")
    clicks = storm.spout("clicks", hs.Log("clicks"), schema=EVENTS, event_time="at")
    counts = clicks.fold("counts", by="u", n=hs.count())
    counts.fold("sizes", by="n", keys=hs.count())
    with Driver(storm, spark) as driver:
        for second in range(4):
            driver.feed("clicks", events(("a", 1, second), ("b", 1, second)))
            driver.advance()
        third = next(one.commit for one in driver.ledger.commits() if one.end["clicks"]["0"] == 4)
        whole, part = makers(spark, driver), makers(spark, driver, third)
        assert [one.offset for one in whole.of_key("sizes", {"n": "2"})] == [0, 1, 2, 3, 4, 5]
        assert [one.offset for one in part.of_key("sizes", {"n": "3"})] == [4, 5, 6, 7]
        assert [one.offset for one in part.of_key("sizes", {"n": "1"})] == []


@pytest.mark.parametrize("kind", ["semi", "anti", "full"])
def test_both_sides_of_a_join_of_another_kind_are_found(spark: SparkSession, kind: str) -> None:
    storm = hs.Topology("kinds")
    left = storm.spout("left", hs.Log("left"), schema=EVENTS, event_time="at")
    right = storm.spout("right", hs.Log("right"), schema="u STRING, m INT, at TIMESTAMP", event_time="at")
    left.join("near", right, on="u", within="3 seconds", how=kind, suffix="_r").fold("counts", by="u", n=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("left", events(("a", 1, 10), ("b", 1, 10)))
        driver.feed("right", [{"u": u, "m": 1, "at": at(11)} for u in "ac"])
        driver.advance()
        for spout in ("left", "right"):
            driver.feed(spout, [{"u": spout, "n": 1, "m": 1, "at": at(90)}])
        driver.advance()
        asked = makers(spark, driver)
        found = {u: set(map(str, asked.of_key("counts", {"u": u}))) for u in "abc"}
        both = {"left/0@0", "right/0@0"}
        assert (
            found
            == {
                "semi": {"a": both, "b": set(), "c": set()},
                "anti": {"a": set(), "b": {"left/0@1"}, "c": set()},
                "full": {"a": both, "b": {"left/0@1"}, "c": {"right/0@1"}},
            }[kind]
        )
