"""Replay: committed ticks give the same again; code that is not deterministic is named."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.history import replay
from hailstorm.history.committed import Committed, tick_of
from hailstorm.history.replay import Replay
from hailstorm.ledger.squashing import squashed
from hailstorm.testing import Driver
from tests.spark.time_machine import everything, feed


def test_ticks_of_every_kind_of_step_give_the_same_again(spark: SparkSession) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(23), 6)
        found = Replay(spark, driver.topology, driver.ledger).run(driver.ledger.at(1), driver.ledger.newest().commit)
        assert found.unlike == ()
        assert found.commits > 6
        assert found.outboxes > 6
        assert not found.left_out


def test_commits_that_are_kept_as_one_have_the_outbox_of_the_last(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(23), 3)
        ledger = driver.ledger
        *before, last = (one for one in ledger.commits() if one.reason == "tick" and one.outbox)
        commits = [one for one in ledger.commits() if before[-1].commit <= one.commit <= last.commit]
        together = Committed(squashed(commits).commit, tuple(tick_of(one) for one in commits))
        monkeypatch.setattr(replay, "committed_between", lambda *_: iter([together]))
        found = Replay(spark, driver.topology, ledger).run(ledger.at(commits[0].commit - 1), last.commit)
        assert len(commits) > 1 and found.outboxes == sum(map(len, last.outbox.values()))
        assert found.unlike == ()


def dice(storm: hs.Topology) -> None:
    rolls = storm.spout("rolls", hs.Log("rolls"), schema="who STRING")
    loud = rolls.select("loud", who="upper(who)")

    @loud.bolt(returns="who STRING, pips INT")
    def thrown(roll: hs.Row) -> dict[str, Any]:
        return {"who": roll.who, "pips": random.randrange(1_000_000)}

    thrown.fold("sums", by="who", n=hs.count(), pips=hs.sum("pips"))


def test_a_bolt_that_throws_dice_is_named(spark: SparkSession) -> None:
    storm = hs.Topology("dice")
    dice(storm)
    with Driver(storm, spark) as driver:
        for who in "ab":
            driver.feed("rolls", [{"who": who}] * 3)
            driver.advance()
        commits = driver.ledger.newest().commit
        found = Replay(spark, driver.topology, driver.ledger).run(driver.ledger.at(1), commits)
        first, *others = found.unlike
        assert (first.step, first.what) == ("thrown", "rows")
        assert first.committed is not None and first.replayed is not None
        assert first.committed["who"] == first.replayed["who"] == "A"
        assert first.committed["pips"] != first.replayed["pips"]
        assert first.commit < commits
        assert {"sums"} <= {one.step for one in others if one.what == "state"}
        assert not any(one.step in ("rolls", "loud", "tap-rolls", "tap-loud") for one in found.unlike)
