"""A topology that has changed since its last run: what may go on, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Progress
from hailstorm.errors import RunError
from hailstorm.ledger.ledger import Ledger
from hailstorm.spouts.log import Log
from hailstorm.testing import Driver

Run = Callable[[hs.Topology], tuple[str, ...]]


@pytest.fixture
def run(spark: SparkSession, tmp_path: Path) -> Run:
    """Run a topology over all that its log holds, and give what was said about its difference to the one before."""

    def run(storm: hs.Topology) -> tuple[str, ...]:
        told: list[Progress] = []
        ledger = Ledger(tmp_path / "ledger", create=True)
        negotiator = Negotiator(spark, storm, ledger, ways=(1,), on_progress=told.append)
        try:
            negotiator.start()
            while negotiator.tick():
                pass
        finally:
            negotiator.fail()
        return told[-1].notes

    Log(tmp_path / "log").create(1).append([{"k": 1, "n": 2}, {"k": 2, "n": 3}])
    return run


def counting(tmp_path: Path, schema: str = "k INT, n INT", key: str = "k", factor: int = 1) -> hs.Topology:
    storm = hs.Topology("counting")
    rows = storm.spout("rows", hs.Log(tmp_path / "log"), schema=schema)

    def scaled(row: Any) -> dict[str, Any]:
        return {"n": row.n * factor}

    rows.bolt(scaled, name="scaled", returns="n INT").fold("total", n=hs.sum("n"))
    rows.select("keyed", k=key).fold("counts", by="k", n=hs.count())
    return storm


@pytest.mark.parametrize(
    "changed", [{"schema": "k BIGINT, n INT"}, {"key": "CAST(k AS BIGINT)"}], ids=["a column", "an expression"]
)
def test_a_key_of_another_type_is_refused_and_no_key_starts_again(
    run: Run, tmp_path: Path, changed: dict[str, str]
) -> None:
    run(counting(tmp_path))
    with pytest.raises(RunError, match="'counts' has another key than its state: 'k' was INT, and is BIGINT"):
        run(counting(tmp_path, **changed))


@pytest.mark.parametrize("changed", [hs.sum("n"), hs.mean("n"), hs.set("n"), hs.count_distinct("n")])
def test_what_one_monoid_has_kept_is_not_read_as_anothers(spark: SparkSession, changed: Any) -> None:
    def folding(**monoids: Any) -> hs.Topology:
        storm = hs.Topology("folding")
        rows = storm.spout("rows", hs.Log("rows"), schema="k STRING, n INT")
        rows.fold("kept", by="k", **monoids)
        return storm

    with Driver(folding(x=hs.count()), spark) as driver:
        driver.feed("rows", [{"k": "a", "n": 5}, {"k": "b", "n": 7}])
        driver.advance()
        with pytest.raises(
            RunError, match=f"'kept' has another monoid than its state: 'x' was count, and is {changed.word}"
        ):
            driver.restart(folding(x=changed), accept=("kept",))
        driver.restart(folding(x=changed), recompute=("kept",))
        driver.feed("rows", [{"k": "b", "n": 3}])
        driver.advance()
        fresh = {"sum": [5, 10], "mean": [5.0, 5.0], "set": [[5], [3, 7]], "count_distinct": [1, 2]}[changed.word]
        assert [row["x"] for row in sorted(driver.table("kept"), key=lambda row: row["k"])] == fresh


def test_the_start_says_the_whole_difference_also_of_a_bolt_above_state(run: Run, tmp_path: Path) -> None:
    assert run(counting(tmp_path)) == ()
    assert run(counting(tmp_path)) == ()
    edited = counting(tmp_path, factor=2)
    edited.spout("others", hs.Log(tmp_path / "log"), schema="n INT").fold("more", n=hs.count())
    assert run(edited) == (
        "'others' is new: it starts from now",
        "'more' is new: it starts from now",
        "'scaled' has changed: what 'total' made with the old code stays; from now on it is the new",
    )
    assert run(counting(tmp_path, factor=2)) == ("'others' was removed", "'more' was removed")


def test_the_start_says_which_tables_a_new_step_begins_with(run: Run, tmp_path: Path) -> None:
    def joined(edited: bool) -> hs.Topology:
        storm = hs.Topology("joined")
        rows = storm.spout("rows", hs.Log(tmp_path / "log"), schema="k INT, n INT")
        counts, sums = rows.fold("counts", by="k", n=hs.count()), rows.fold("sums", by="k", s=hs.sum("n"))
        if edited:
            counts.where("many", "n > 0").join("both", sums, on="k")
            rows.lookup("asked", sums, on="k").fold("answers", n=hs.count())
            counts.top("most", 3, by="n")
        return storm

    hs.Log(tmp_path / "log").append([{"k": 1, "n": 2}])
    run(joined(False))
    assert run(joined(True)) == (
        "'many' is new: it starts from now",
        "'both' is new: it begins with 'counts' and 'sums' as they are",
        "'asked' is new: it begins with 'sums' as it is",
        "'answers' is new: it starts from now",
        "'most' is new: it starts from now",
    )


@dataclass
class Seen:
    n: int = 0


class CountSeen(hs.Process):
    state = Seen
    returns = "n INT"

    def on_event(self, key: int, event: Any, state: Seen, timers: Any) -> Iterator[dict[str, int]]:
        state.n += 1
        yield {"n": state.n}


def test_a_process_that_was_away_needs_a_word_as_every_step_does_whose_state_has_a_hole(spark: SparkSession) -> None:
    def seen(there: bool) -> hs.Topology:
        storm = hs.Topology("seen")
        rows = storm.spout("rows", hs.Log("x"), schema="k INT")
        rows.fold("counts", n=hs.count())
        if there:
            rows.process("seen", by="k", using=CountSeen)
        return storm

    with Driver(seen(True), spark) as driver:
        for there in (True, False):
            driver.restart(seen(there))
            driver.feed("rows", [{"k": 1}])
            driver.advance()
        with pytest.raises(RunError, match="HS-RUN-002  step 'seen' was away and has old state"):
            driver.restart(seen(True))
        driver.restart(seen(True), accept=["seen"])
        driver.feed("rows", [{"k": 1}])
        driver.advance()
        assert driver.table("seen") == [{"k": 1, "n": 2}]
        assert driver.table("counts") == [{"n": 3}]


def test_a_step_that_is_added_goes_by_the_watermark_of_the_commit_before_in_its_first_tick(spark: SparkSession) -> None:
    def timed(edited: bool) -> hs.Topology:
        storm = hs.Topology("timed")
        rows = storm.spout("rows", hs.Log("x"), schema="k STRING, at TIMESTAMP", event_time="at")
        rows.fold("counts", by="k", n=hs.count())
        if edited:
            tens = rows.window("10 minutes", late="side").fold("tens", by="k", n=hs.count())
            tens.late.fold("too_late", n=hs.count())
            rows.distinct("once", by="k", within="1 hour").late.fold("unknown", n=hs.count())
            rows.ordered("tidy").fold("in_order", n=hs.count())
        return storm

    def row(k: str, minute: int) -> dict[str, str]:
        return {"k": k, "at": f"2026-01-01T00:{minute:02}:00Z"}

    with Driver(timed(False), spark) as driver:
        driver.feed("rows", [row("a", 30)])
        driver.advance()
        driver.restart(timed(True))
        driver.feed("rows", [row("b", 5), row("c", 40), row("d", 25)])
        driver.advance()  # by the watermark of before, 00:30, b and d are late
        assert [(r["k"], r["window_start"].minute) for r in driver.table("tens")] == [("c", 40)]
        assert driver.table("too_late") == driver.table("unknown") == [{"n": 2}]
        assert driver.table("in_order") == [{"n": 1}]
        assert driver.table("counts") == [{"k": k, "n": 1} for k in "abcd"]
