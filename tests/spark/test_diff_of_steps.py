"""Diff over every kind of state: applied to one moment it gives the other, at kept commits and between them."""

from __future__ import annotations

import random
from typing import Any

from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.clock.clock import Clock
from hailstorm.history.diff import Diff
from hailstorm.history.moments import moment_of
from hailstorm.history.opened import OpenLedger
from hailstorm.history.state_at import state_at
from hailstorm.ledger.reader import State
from hailstorm.testing import Driver
from tests.spark.time_machine import STEPS, everything, feed, shown


def rows_by_key(state: State) -> dict[str, dict[str, Any]]:
    key = state.live.steps[state.step].key if state.step in state.live.steps else ()
    return {repr([row[name] for name in key]): row for row in state.arrow().to_pylist()}


def applied(one: State, diff: Diff) -> list[str]:
    """The rows of a state after these changes; each must say what was there before it."""
    rows = rows_by_key(one) if one.step in one.live.steps else {}
    for change in diff.arrow().to_pylist():
        key = {name: change[name] for name in diff.shape.key}
        at = repr(list(key.values()))
        before, after = (change[side] and {**key, **change[side]} for side in ("before", "after"))
        assert repr(rows.get(at)) == repr(before), change
        assert repr(before) != repr(after)
        if after is None:
            del rows[at]
        else:
            rows[at] = after
    return sorted(map(repr, rows.values()))


def test_a_diff_of_any_step_between_any_two_moments_is_exact(spark: SparkSession) -> None:
    chance = random.Random(11)
    with Driver(everything(), spark) as driver:
        feed(driver, chance, 7)
        driver.complete()
        reader, last = OpenLedger(driver.ledger), driver.ledger.head.commit
        for step in STEPS:
            for a, b in [(last - 1, last), *(chance.choices(range(1, last + 1), k=2) for _ in range(4))]:
                diff = reader.diff(step, a, b)
                if step in driver.ledger.at(b).steps:
                    assert applied(diff.one, diff) == shown(diff.other), (step, a, b)
        # From a commit to a moment inside of a tick, which is run.
        commit = next(one for one in driver.ledger.commits(4) if one.rows >= 2)
        base = driver.ledger.at(commit.commit - 1)
        begin, end = base.position(), Clock.from_json(commit.end)
        partition = next(p for p in (0, 1) if (end.offset("clicks", p) or 0) > (begin.offset("clicks", p) or 0))
        inside = Clock({"clicks": {**begin.offsets["clicks"], partition: (begin.offset("clicks", partition) or 0) + 1}})
        moment = moment_of(driver.ledger, inside)
        if not moment.is_kept:
            with state_at(driver.topology, spark, driver.ledger, moment, "counts") as state:
                diff = Diff(State(driver.ledger, driver.ledger.at(2), "counts"), state)
                assert applied(diff.one, diff) == shown(state)
                later = Diff(state, State(driver.ledger, driver.ledger.head, "counts"))
                assert applied(state, later) == shown(later.other)


def test_key_columns_may_have_the_names_of_what_a_diff_and_a_life_say(spark: SparkSession) -> None:
    storm = hs.Topology("names")
    rows = storm.spout("rows", hs.Log("x"), schema="kind STRING, at INT, commit INT, before INT, after INT, n INT")
    key = ["kind", "at", "commit", "before", "after"]
    rows.fold("sums", by=key, n=hs.sum("n"))
    with Driver(storm, spark) as driver:
        for n in (1, 2):
            driver.feed("rows", [{"kind": "a", "at": 1, "commit": 2, "before": 3, "after": 4, "n": n}])
            driver.advance()
        ledger = hs.open_ledger(driver.ledger.root)
        (change,) = ledger.diff("sums", "latest-1").arrow().to_pylist()
        mine = {"kind": "a", "at": 1, "commit": 2, "before": 3, "after": 4}
        assert change == {"_kind": "update", **mine, "_before": {"n": 1}, "_after": {"n": 3}}
        life = ledger.life("sums", **mine).arrow().to_pylist()
        assert [(row["_kind"], row["_after"]) for row in life] == [("insert", {"n": 1}), ("update", {"n": 3})]
        assert all({name: row[name] for name in mine} == mine and row["_commit"] and row["_at"] for row in life)
