"""Reruns: what was committed comes out again, from any commit, whatever kind of state it is."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Clock
from hailstorm.engine.ticks import committing
from hailstorm.errors import LedgerError
from hailstorm.history.audit import Audit
from hailstorm.history.committed import tick_of
from hailstorm.history.moments import moment_of
from hailstorm.history.one_record import Record
from hailstorm.history.replay import Replay
from hailstorm.history.rerun import rerun
from hailstorm.history.state_at import state_at
from hailstorm.history.trace import Tracer
from hailstorm.ledger import vacuum
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import State
from hailstorm.testing import Driver
from hailstorm.topology.retention import read_retention
from tests.spark.test_trace import untapped
from tests.spark.time_machine import START, STEPS, everything, feed, shown

Expected = dict[str, list[str]]  # the rows of some steps


def files_of(ledger: Ledger) -> set[Path]:
    return {path for part in ("commits", "outbox", "errors") for path in (ledger.root / part).rglob("*")}


def test_a_rerun_from_any_commit_gives_the_state_of_every_later_one(spark: SparkSession) -> None:
    chance = random.Random(7)
    with Driver(everything(), spark) as driver:
        feed(driver, chance, 8)
        driver.complete()
        ledger, last = driver.ledger, driver.ledger.head.commit
        before = files_of(ledger)
        commits = {commit.commit: commit for commit in ledger.commits()}
        for _ in range(3):
            first, until = sorted(chance.sample(range(1, last + 1), 2))
            base = ledger.at(first)
            ticks = [tick_of(commits[number]) for number in range(first + 1, until + 1)]
            with rerun(spark, driver.topology.only(STEPS), ledger, base, ticks) as scratch:
                assert scratch.head.commit == until
                then = ledger.at(until)
                assert scratch.head.reached == then.reached
                assert {step: scratch.head.watermarks[step] for step in STEPS} == {
                    step: then.watermarks[step] for step in STEPS
                }
                for step in STEPS:
                    assert shown(State(scratch, scratch.head, step)) == shown(State(ledger, then, step)), (first, until)
        assert not files_of(ledger) - before
        assert not list((ledger.cache.folder / "history").glob("*"))


def test_a_clock_inside_of_a_tick_is_answered_exactly(spark: SparkSession) -> None:
    with Driver(everything(), spark) as driver:
        chance = random.Random(3)
        feed(driver, chance, 3, bad=False)
        base = driver.ledger.head
        rows = [{"u": key, "n": n, "at": "2026-01-01T00:01:00Z"} for n, key in enumerate("abcabc")]
        driver.feed("clicks", rows)
        driver.advance()
        position = base.position().offsets["clicks"]
        moment = moment_of(driver.ledger, Clock({"clicks": {0: position[0] + 4, 1: position[1]}}))
        assert moment.base.commit == base.commit
        with state_at(driver.topology, spark, driver.ledger, moment, "counts") as state:
            got = {row["u"]: row["s"] for row in state.arrow().to_pylist()}
        before = {row["u"]: row["s"] for row in State(driver.ledger, base, "counts").arrow().to_pylist()}
        for row in rows[:4]:
            before[str(row["u"])] = before.get(str(row["u"]), 0) + int(str(row["n"]))
        assert got == before
        # The last of these four, as a moment.
        moment = moment_of(driver.ledger, f"clicks/0@{position[0] + 3}")
        with state_at(driver.topology, spark, driver.ledger, moment, "counts") as state:
            assert {row["u"]: row["s"] for row in state.arrow().to_pylist()} == before


@contextlib.contextmanager
def thinned_out(spark: SparkSession) -> Iterator[tuple[Driver, dict[int, Expected]]]:
    """A ledger of which most commits are thinned out, and what was there at every one of them."""
    now = START + timedelta(hours=1)
    with Driver(everything(), spark, now=now) as driver:
        was: dict[int, Expected] = {}
        chance = random.Random(17)
        for tick in range(8):
            feed(driver, chance, 1)
            driver.advance_to(now + timedelta(seconds=tick))
            for commit in driver.ledger.commits(max(was, default=0)):
                live = driver.ledger.at(commit.commit)
                was[commit.commit] = {
                    step: shown(State(driver.ledger, live, step)) for step in ("counts", "per", "quiet")
                }
        driver.stop()
        ledger = Ledger(driver.ledger.root)
        later = now.timestamp() + 3600
        work = vacuum.Vacuum(
            ledger, read_retention("1 second, 12 hours: 4 seconds, rest: 4 seconds"), now=lambda: later
        )
        while work.work(whole=True):
            pass
        assert len([commit for commit in ledger.commits() if commit.first]) > 1
        yield driver, was


@pytest.fixture
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"KEEP_LOOSE": 1, "PACK": 4, "MERGE": 2}.items():
        monkeypatch.setattr(vacuum, name, value)


@pytest.fixture
def thinned(spark: SparkSession, small_packs: None) -> Iterator[tuple[Driver, dict[int, Expected]]]:
    with thinned_out(spark) as found:
        yield found


class AnHourIn(datetime):
    """The time of commits that no tick makes: else they are long after all ticks, and retention keeps each."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> AnHourIn:
        return cls.fromtimestamp((START + timedelta(hours=1)).timestamp(), tz)


@pytest.fixture
def thinned_from_the_first(
    spark: SparkSession, small_packs: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Driver, dict[int, Expected]]]:
    """The same, and the commits that brought the steps and the second partition are among those that are gone."""
    monkeypatch.setattr(committing, "datetime", AnHourIn)
    with thinned_out(spark) as found:
        first = next(found[0].ledger.commits())
        assert first.first == 1 and first.commit > 5
        yield found


def test_what_was_thinned_out_is_had_again_as_long_as_its_ticks_are_known(
    spark: SparkSession, thinned: tuple[Driver, dict[int, Expected]]
) -> None:
    driver, was = thinned
    ledger = driver.ledger
    kept = {commit.commit for commit in ledger.commits()}
    gone = [number for number in was if number not in kept]
    assert len(gone) > 3
    for number in gone[::3]:
        moment = moment_of(ledger, number)
        assert not moment.is_kept
        for step, rows in was[number].items():
            with state_at(driver.topology, spark, ledger, moment, step) as state:
                assert shown(state) == rows, (number, step)
    (audited,) = Audit(spark, driver.topology, ledger, ledger.newest()).run(["quiet"])
    assert (audited.by, audited.skipped, audited.comparison.different) == ("ticks", "", 0)
    replayed = Replay(spark, driver.topology, ledger).run(ledger.at(min(kept)), max(kept))
    assert not replayed.unlike

    # Where ticks were cut is forgotten after a day. What does not depend on it is still there.
    for name in ledger.store.list("commits"):
        if name.endswith(".ticks"):
            ledger.store.delete(f"commits/{name}")
    (audited,) = Audit(spark, driver.topology, ledger, ledger.newest()).run(["quiet"])
    assert "depends on where ticks were cut" in audited.skipped
    (audited,) = Audit(spark, driver.topology, ledger, ledger.newest()).run(["counts"])
    assert not audited.comparison.different
    replayed = Replay(spark, driver.topology, ledger).run(ledger.at(min(kept)), max(kept))
    assert not replayed.unlike
    left_out = [number for number in kept for one in replayed.left_out if one.startswith(f"commit {number} stands for")]
    assert sorted(left_out) == [one.commit for one in ledger.commits(min(kept)) if one.first]


def test_moments_inside_of_the_first_commit_that_is_kept_are_had_again(
    spark: SparkSession, thinned_from_the_first: tuple[Driver, dict[int, Expected]]
) -> None:
    driver, was = thinned_from_the_first
    ledger, topology = driver.ledger, untapped(driver)
    first = next(ledger.commits()).commit
    number = first - 2
    for step, rows in was[number].items():
        with state_at(driver.topology, spark, ledger, moment_of(ledger, number), step) as state:
            assert rows and shown(state) == rows, step
    clock = moment_of(ledger, number).clock
    assert clock is not None and len(clock.offsets["clicks"]) == 2

    # A record of a tick that is gone, and of a partition that came after the first commit.
    trace = Tracer(spark, topology, ledger).trace(Record("clicks", 1, clock.offsets["clicks"][1] - 1))
    assert trace.commit == first and not trace.note
    keys = [event for event in trace.events if event.what == "key"]
    assert {"quiet", "sessions"} <= {event.step for event in keys}

    for name in ledger.store.list("commits"):
        if name.endswith(".ticks"):
            ledger.store.delete(f"commits/{name}")
    with pytest.raises(LedgerError, match="HS-LED-032"):
        moment_of(ledger, number)
    moment = moment_of(ledger, clock)
    with state_at(driver.topology, spark, ledger, moment, "counts") as state:
        assert shown(state) == was[number]["counts"]
    with pytest.raises(LedgerError, match="HS-LED-075"), state_at(topology, spark, ledger, moment, "quiet"):
        raise AssertionError("nobody knows")
    trace = Tracer(spark, topology, ledger).trace(Record("clicks", 1, 0))
    assert "not known any more" in trace.note
    assert [event for event in trace.events if event.what == "key"]
