"""`stream.errors`: the dead letters of a step as rows, for sinks and for folds, each once, in every way to run."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.errors import TopologyError
from hailstorm.testing import Driver

AT = datetime(2026, 1, 1, tzinfo=UTC)


def topology() -> hs.Topology:
    storm = hs.Topology("letters", error_limit=1)
    numbers = storm.spout("numbers", hs.Log("x"), schema="n INT NOT NULL")

    @numbers.bolt(returns="share DOUBLE")
    def shares(row: hs.Row) -> dict[str, float]:
        return {"share": 12 / row.n}

    shares.fold("total", share=hs.sum("share"))
    refused = numbers.errors.union("refused", shares.errors)
    refused.sink("queue", hs.Call(print))
    refused.fold("by_step", by="step", n=hs.count(), last=hs.max("offset"))
    shares.errors.window("1 hour").fold("hourly", n=hs.count())
    return storm


@pytest.mark.parametrize("tasks", [0, 1, 2])
def test_dead_letters_are_rows_once(spark: SparkSession, tasks: int) -> None:
    with Driver(topology(), spark, tasks=(tasks,)) as driver:
        driver.feed("numbers", [{"n": 3}, {"n": 0}, "no JSON", {"n": 4}], time=AT)
        driver.advance()
        driver.feed("numbers", [{"n": 0}, {"n": None}], time=AT)
        driver.crash(at="before-commit")
        driver.advance()
        letters = driver.rows("refused")
        assert sorted((row["step"], row["offset"]) for row in letters) == [
            ("numbers", 2),
            ("numbers", 5),
            ("shares", 1),
            ("shares", 4),
        ]
        assert driver.rows("queue") == letters
        assert {row["raw"] for row in letters if row["offset"] == 2} == {b"no JSON"}
        assert driver.table("by_step") == [
            {"step": "numbers", "n": 2, "last": 5},
            {"step": "shares", "n": 2, "last": 4},
        ]
        assert [row["n"] for row in driver.table("hourly")] == [2]
        assert driver.table("total") == [{"share": 7.0}]
        assert len(driver.errors()) == 4
        assert driver.retry() == (4, 4)  # they fail again, and stay what they are
        assert len(driver.rows("refused")) == 4


def test_a_fold_has_no_stream_of_errors() -> None:
    storm = hs.Topology("letters")
    counts = storm.spout("numbers", hs.Log("x"), schema="n INT").fold("counts", by="n", c=hs.count())
    with pytest.raises(TopologyError, match="has no stream of errors"):
        counts.errors.sink("queue", hs.Call(print))
