"""Audit: the state is what the logs give; and a row that was changed by hand is found."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.errors import UsageError
from hailstorm.history import audit
from hailstorm.history.audit import Audit, Audited
from hailstorm.history.comparing import KeyRange
from hailstorm.ledger.commit import StateChange
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import State
from hailstorm.ledger.runs import write_run
from hailstorm.testing import Driver
from tests.spark.time_machine import STEPS, everything, feed


def audited(spark: SparkSession, driver: Driver, *steps: str, **more: Any) -> dict[str, Audited]:
    found = Audit(spark, driver.topology, driver.ledger, driver.ledger.newest(), **more).run(steps)
    return {one.step: one for one in found}


def tamper(ledger: Ledger, step: str, change: Any) -> None:
    """Write a run in which `change` has been done to the state of a step, and commit it."""
    rows = State(ledger, ledger.head, step).rows()
    assert rows is not None
    run = write_run(ledger.store, step, change(rows), ledger.stamp)
    removed = tuple(run.id for run in ledger.head.runs[step])
    changes = {step: StateChange(added=(run,), removed=removed)}
    ledger.commit(next_commit(ledger.head, "compact", ledger.epoch, datetime.now(UTC), state=changes))


def test_the_state_of_every_kind_of_step_is_what_the_logs_give(spark: SparkSession) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(11), 8)
        found = audited(spark, driver)
        assert set(STEPS) <= set(found)
        for step, one in found.items():
            assert not one.skipped
            assert not one.comparison.different, (step, one.comparison.examples)
            assert not one.notes
        assert {step for step, one in found.items() if one.by == "batch"} == {"counts", "best", "sizes", "sessions"}
        assert found["counts"].comparison.rows == found["counts"].comparison.equal > 0


def test_a_row_that_was_changed_by_hand_is_found(spark: SparkSession) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(5), 3)

        def one_more(rows: pa.Table) -> pa.Table:
            first = pc.equal(rows.column("u"), "b")
            n = pc.if_else(first, pc.add(rows.column("n"), 1), rows.column("n"))
            return rows.set_column(rows.schema.get_field_index("n"), "n", n)

        before = {row["u"]: row["n"] for row in driver.table("counts")}
        tamper(driver.ledger, "counts", one_more)
        found = audited(spark, driver, "counts", "sessions")
        assert not found["sessions"].comparison.different
        (difference,) = found["counts"].comparison.examples
        assert difference.key == {"u": "b"}
        assert difference.one is not None and difference.other is not None
        assert (difference.one["n"], difference.other["n"]) == (before["b"] + 1, before["b"])
        assert found["counts"].comparison.equal == len(before) - 1


def strict(limit: int) -> hs.Topology:
    """Rows above the limit are dead letters."""
    storm = hs.Topology("strict")
    rows = storm.spout("rows", hs.Log("rows"), schema="k STRING, n INT")

    @rows.bolt(returns="k STRING, n INT")
    def small(row: hs.Row) -> dict[str, Any]:
        if row.n > limit:
            raise ValueError("too much")
        return {"k": row.k, "n": row.n}

    small.fold("sums", by="k", n=hs.sum("n"))
    return storm


def test_dead_letters_that_would_go_through_now_are_told_apart(spark: SparkSession) -> None:
    with Driver(strict(5), spark) as driver:
        driver.feed("rows", [{"k": "a", "n": n} for n in (1, 2, 9)] + [{"k": "b", "n": 3}, "nonsense"])  # type: ignore[list-item]
        driver.advance()
        assert not audited(spark, driver)["sums"].comparison.different
        base = driver.ledger.head
        driver.restart(strict(10), accept=("small",))
        found = audited(spark, driver)["sums"]
        assert found.comparison.different == 1
        assert found.notes == (
            "1 dead letters of 'small' go through with the code of now, and are not in the state: "
            "hailstorm errors APP --retry",
        )
        assert driver.retry() == (2, 1)
        assert not audited(spark, driver)["sums"].comparison.different
        assert not audited(spark, driver)["sums"].notes
        driver.feed("rows", [{"k": "b", "n": 4}])
        driver.advance()
        (since,) = Audit(spark, driver.topology, driver.ledger, driver.ledger.head, base=driver.ledger.head).run()
        assert not since.comparison.different
        later = Audit(spark, driver.topology, driver.ledger, driver.ledger.newest(), base=base).run()
        assert [one.comparison.different for one in later] == [1]  # the letter of before was retried since


def test_a_step_whose_records_the_log_has_no_more_is_skipped_and_the_others_are_audited(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = strict(5)
    storm.spout("others", hs.Log("others"), schema="k STRING").fold("other", by="k", n=hs.count())
    with Driver(storm, spark) as driver:
        for n in (1, 2, 3):
            driver.feed("rows", [{"k": "a", "n": n}])
            driver.feed("others", [{"k": "b"}])
            driver.advance()
        monkeypatch.setattr(type(driver.logs["rows"]), "earliest", lambda log: {0: int(log is driver.logs["rows"])})
        found = audited(spark, driver)
        assert not found["other"].skipped
        assert found["other"].comparison.equal == 1
        skipped = next(one for one in found.values() if one.skipped)
        assert "rows/0 begins at 1 by now" in skipped.skipped
        assert skipped.notes[0].endswith("--from 2")
        since = Audit(spark, driver.topology, driver.ledger, driver.ledger.newest(), base=driver.ledger.at(2)).run()
        assert not any(one.skipped or one.comparison.different for one in since)


def test_a_range_of_keys_that_a_step_cannot_have_is_told_before_anything_is_run(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Driver(everything(), spark) as driver:
        feed(driver, random.Random(5), 2)
        assert audited(spark, driver, "sizes", keys=KeyRange("2", "9"))["sizes"].comparison.rows
        monkeypatch.delattr(audit, "scratch_ledger")
        with pytest.raises(UsageError, match=r"HS-CLI-008  key column 'n' is int64, and a\.\.f is no range of it"):
            audited(spark, driver, "counts", "sizes", keys=KeyRange("a", "f"))
