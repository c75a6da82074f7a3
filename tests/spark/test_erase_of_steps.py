"""Erase over every kind of state: the key is in no table of the step, and all else is as it was, at every commit."""

from __future__ import annotations

import random

import pyarrow as pa
from pyspark.sql import SparkSession

from hailstorm.history.erase import erase
from hailstorm.history.verify import verify
from hailstorm.ledger.reader import State
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from tests.spark.time_machine import STEPS, everything, feed


def without(state: State, key: str) -> list[str]:
    return sorted(repr(row) for row in state.arrow().to_pylist() if row["u"] != key)


def test_a_key_of_any_step_is_erased_at_every_commit(spark: SparkSession) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(21), 6)
        ledger = driver.ledger
        lives = [ledger.at(commit.commit) for commit in ledger.commits()]
        for step in [step for step in STEPS if "u" in ledger.head.steps[step].key]:
            states = [State(ledger, live, step) for live in lives if step in live.steps]
            before = [without(state, "b") for state in states]
            report = erase(ledger, step, {"u": pa.array(["b"])})
            assert report.state, step
            assert [without(state, "b") for state in states] == before
            assert all("b" not in state.arrow()["u"].to_pylist() for state in states)
            for table in {step, *ledger.head.steps[step].tables}:
                for run in (run for live in lives for run in live.runs.get(table, ())):
                    rows = read_table(ledger.store, run_name(table, run.id), sums=run.sums)
                    if "u" in rows.column_names:
                        assert "b" not in rows["u"].to_pylist(), table
        assert verify(ledger).problems == []
