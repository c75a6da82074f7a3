"""Erase over every kind of state: the key is in no table of the step, and all else is as it was, at every commit."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

import hailstorm as hs
from hailstorm.cli.app import app
from hailstorm.errors import UsageError
from hailstorm.history.erase import erasable, erase
from hailstorm.history.verify import verify
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import State
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from tests.spark.time_machine import everything, feed


def without(state: State, key: str) -> list[str]:
    return sorted(repr(row) for row in state.arrow().to_pylist() if row.get("u") != key)


def tables_with(ledger: Ledger, lives: list[Live], step: str, key: str) -> set[str]:
    """The tables of a step that have the key in some run of some commit."""
    found = set()
    for table in {step, *ledger.head.steps[step].tables}:
        for run in (run for live in lives for run in live.runs.get(table, ())):
            rows = read_table(ledger.store, run_name(table, run.id), sums=run.sums)
            if "u" in rows.column_names and key in rows["u"].to_pylist():
                found.add(table)
    return found


def keepers_of_rows() -> hs.Topology:
    """Steps of streams that keep rows of others, and a join of tables that keeps both."""
    storm = hs.Topology("keepers")
    clicks = storm.spout(
        "clicks", hs.Log("clicks"), schema="u STRING, n INT, at TIMESTAMP", event_time="at", lateness="5 seconds"
    )
    last = clicks.table("last", key="u")
    clicks.lookup("named", last, on="u", suffix="_last").sink("a", hs.Console())
    clicks.lookup("then", last, on="u", as_of="event time", suffix="_then").sink("b", hs.Console())
    clicks.ordered("tidy").sink("c", hs.Console())
    clicks.window("12 seconds", every="4 seconds", emit="final").fold("sliding", by="u", n=hs.count())
    last.join("sized", clicks.fold("sizes", by="n", clicks=hs.count()), on="n")
    return storm


@pytest.mark.parametrize("make", [everything, keepers_of_rows])
def test_a_key_of_any_step_is_erased_at_every_commit(spark: SparkSession, make: Callable[[], hs.Topology]) -> None:
    with Driver(make(), spark) as driver:
        feed(driver, random.Random(21), 6)
        ledger = driver.ledger
        lives = [ledger.at(commit.commit) for commit in ledger.commits()]
        steps = [step.name for step in driver.topology.steps if step.name in ledger.head.steps]
        steps = [step for step in steps if "u" in erasable(ledger, step)]
        assert {"near", "once", "sizes"} < set(steps) or {"named", "then", "tidy", "sized"} < set(steps)
        for number, step in enumerate(steps):
            held = tables_with(ledger, lives, step, "b")
            others = {one for one in steps[number + 1 :] if tables_with(ledger, lives, one, "b")}
            is_shown = step in ledger.head.steps[step].tables
            states = [State(ledger, live, step) for live in lives if step in live.steps and is_shown]
            before = [without(state, "b") for state in states]
            report = erase(ledger, step, {"u": pa.array(["b"])})
            assert set(report.state) == held and held, step
            named = {sentence.split()[1] for sentence in report.elsewhere if sentence.startswith("step ")}
            assert named == others
            assert [without(state, "b") for state in states] == before
            assert not tables_with(ledger, lives, step, "b")
        assert verify(ledger).problems == []
        driver.restart()
        feed(driver, random.Random(22), 3)
        driver.complete()


def test_rows_that_wait_and_members_are_named_by_their_columns(spark: SparkSession) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(21), 6)
        root = str(driver.ledger.root)
        driver.stop()

        def said(*words: str) -> Result:
            return CliRunner().invoke(app, ["erase", root, *words, "--yes"])

        assert "near.left: " in said("near", "--key", "u=b").stdout
        assert "sizes.members: " in said("sizes", "--key", "u=b").stdout
        assert "step sizes" not in said("counts", "--key", "b").stderr
        unnamed = said("near", "--key", "b").exception
        assert isinstance(unnamed, UsageError) and "Say which column: --key" in str(unnamed)
        unknown = said("counts", "--key", "s=3").exception  # a value: an earlier one would be seen again
        assert isinstance(unknown, UsageError) and "Key columns: u." in str(unknown)
