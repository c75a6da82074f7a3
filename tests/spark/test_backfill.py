"""Backfill and recompute: the state is that of a fresh run of the code, whatever there was before."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.taps import tap_of
from hailstorm.errors import RunError
from hailstorm.faults import inject
from hailstorm.history.backfill import made_beside, second_run
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from hailstorm.testing.driver import Crash
from tests.spark.oracle import after_changes
from tests.spark.test_rewind import Watch, feed

Declare = Callable[[hs.Topology, Any, Any], None]


def begun() -> tuple[hs.Topology, Any, Any]:
    storm = hs.Topology("edited")
    schema = "u STRING, n INT, at TIMESTAMP"
    clicks = storm.spout("clicks", hs.Log("x"), schema=schema, event_time="at", lateness="1 hour")
    users = storm.table("users", hs.Log("y"), schema="u STRING, team STRING, gone BOOLEAN", key="u", deletes="gone")
    return storm, clicks, users


def edited(*declare: Declare) -> hs.Topology:
    storm, clicks, users = begun()
    for one in declare:
        one(storm, clicks, users)
    return storm


def before(storm: hs.Topology, clicks: Any, users: Any) -> None:
    clicks.fold("counts", by="u", n=hs.count()).top("best", 2, by="n")
    clicks.select("scaled", u="u", m="n * 1").fold("sums", by="u", m=hs.sum("m"))
    clicks.window("5 minutes").fold("windows", by="u", n=hs.count())
    clicks.fold("keyed", by="u", c=hs.count())
    clicks.process("watch", by="u", using=Watch).fold("watched", by="u", n=hs.sum("n"))


def after(storm: hs.Topology, clicks: Any, users: Any) -> None:
    """Every step is another: a column more, another bolt above, another window, another key, another monoid."""
    clicks.fold("counts", by="u", n=hs.sum("n"), most=hs.max("n")).top("best", 2, by="n")
    clicks.select("scaled", u="u", m="n * 3").fold("sums", by="u", m=hs.sum("m"))
    clicks.window("3 minutes").fold("windows", by="u", n=hs.count())
    clicks.fold("keyed", by="n", c=hs.count())
    clicks.process("watch", by="u", using=OtherWatch).fold("watched", by="u", n=hs.sum("n"))


def joined(storm: hs.Topology, clicks: Any, users: Any) -> None:
    totals = clicks.fold("totals", by="u", n=hs.sum("n"))
    totals.join("named", users, on="u", how="left").fold("teams", by="team", n=hs.sum("n"))
    clicks.join("pairs", clicks.where("few", "n < 2"), on="u", within="1 minute").fold("paired", by="u", n=hs.count())


@dataclass
class Text:
    n: str = ""


class OtherWatch(hs.Process):
    """Its state has a field of another type than that of `Watch`."""

    state = Text
    returns = "u STRING, n BIGINT"

    def on_event(self, key: str, event: Any, state: Text, timers: Any) -> Any:
        state.n += "x"
        yield {"u": key, "n": len(state.n)}


CHANGED = ("counts", "best", "sums", "windows", "keyed", "watched")
ADDED = ("totals", "named", "teams", "paired")


def held(driver: Driver, step: str) -> list[dict[str, Any]]:
    """What a sink of the table holds: a whole table takes the place of what was there."""
    declared = driver.topology.step(step)
    values = [column.name for column in declared.schema if column.name not in declared.key]
    found: list[dict[str, Any]] = []
    for commit in driver.ledger.commits():
        files = commit.outbox.get(tap_of(step), ())
        rows = [row for file in files for row in read_table(driver.ledger.store, file.path).to_pylist()]
        if tap_of(step) in commit.whole:
            found = []
        found += rows
    return sorted(after_changes(found, declared.key, values), key=repr)


def test_state_that_is_made_again_is_that_of_a_fresh_run(spark: SparkSession) -> None:
    """Changed steps are recomputed, added ones get their past: offline, beside live ticks, and after a crash."""
    chance, other = random.Random(5), random.Random(5)
    whole = edited(after, joined)
    with Driver(edited(before), spark) as driver, Driver(whole, spark) as fresh:
        for tick in range(3):
            feed(driver, chance, tick)
            driver.advance()
        with pytest.raises(RunError, match=r"--recompute (counts|keyed)"):
            driver.restart(edited(after))
        with inject("after-commit", Crash("after-commit")), pytest.raises(Crash):  # in the inner ledger
            driver.restart(edited(after), recompute=("counts", "scaled", "windows", "keyed", "watch"))
        driver.restart(edited(after), recompute=("counts", "scaled", "windows", "keyed", "watch"))
        assert driver.ledger.head.coverage["counts"] == {
            "clicks": {"0": ((0, driver.ledger.head.clock["clicks"]["0"]),)}
        }
        feed(driver, chance, 3)
        driver.advance()
        driver.restart(whole)
        feed(driver, chance, 4)
        driver.advance()
        assert driver.ledger.head.coverage["totals"]["clicks"]["0"][0][0] > 0, "it has no past"
        driver.backfill("totals")
        piece = made_beside(("few",), speed=1.0)(driver._negotiator)
        feed(driver, chance, 5)
        while piece():
            driver.advance()
        assert not driver.ledger.store.list("backfill")
        for tick in range(6):
            feed(fresh, other, tick)
        fresh.advance()
        driver.advance()
        driver.stop()
        fresh.stop()
        for step in (*CHANGED, *ADDED):
            assert driver.table(step) == fresh.table(step), step
            assert held(driver, step) == held(fresh, step), step
            assert driver.ledger.head.coverage[step] == fresh.ledger.head.coverage[step], step


def test_a_backfill_that_was_cut_off_begins_again_when_the_ledger_has_gone_back_behind_it(spark: SparkSession) -> None:
    def storm(*steps: str) -> hs.Topology:
        found = hs.Topology("edited")
        clicks = found.spout("clicks", hs.Log("x"), schema="u STRING")
        for step in steps:
            clicks.fold(step, by="u", n=hs.count())
        return found

    with Driver(storm("counts"), spark) as driver:
        driver.feed("clicks", [{"u": "a"}] * 4)
        driver.advance()
        driver.restart(storm("counts", "again"))
        behind = driver.ledger.head.commit
        driver.feed("clicks", [{"u": "b"}] * 4)
        driver.advance()
        cut_off = second_run(driver._negotiator, ("again",), lose=False)
        while cut_off.go():
            pass
        cut_off.close()
        driver.rewind(behind)
        driver.backfill("again")
        assert driver.table("again") == [{"u": "a", "n": 4}]
        driver.advance()
        assert driver.table("again") == driver.table("counts") == [{"u": "a", "n": 4}, {"u": "b", "n": 4}]


@pytest.mark.parametrize("how", ["recompute", "backfill"])
def test_a_step_that_only_a_sink_reads_gets_its_past(spark: SparkSession, how: str) -> None:
    """A second run has no sinks, so nothing reads its last step."""

    def once(storm: hs.Topology, clicks: Any, users: Any) -> None:
        clicks.distinct("once", by="u", within="1 day").sink("out", hs.Console())

    def counts(storm: hs.Topology, clicks: Any, users: Any) -> None:
        clicks.fold("counts", by="u", n=hs.count())
        users.fold("sizes", by="team", n=hs.count())

    row = {"u": "a", "n": 1, "at": "2026-01-01T00:00:00Z"}
    with Driver(edited(counts), spark) as driver:
        driver.feed("clicks", [row])
        driver.advance()
        whole = edited(counts, once)
        driver.restart(whole, recompute=("once",) if how == "recompute" else ())
        if how == "backfill":
            driver.backfill("once")
        driver.feed("clicks", [row, {**row, "u": "b"}])
        driver.advance()
        assert [one["u"] for one in driver.rows("once")] == ["b"], "a is known from the past"
