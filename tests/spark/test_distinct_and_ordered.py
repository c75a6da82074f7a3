"""Distinct and ordered in the whole engine: both ways to run, crashes, late rows, and what is below them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WAYS = pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])


def row(k: str | None, minute: int, x: int) -> dict[str, Any]:
    return {"k": k, "at": (BEGIN + timedelta(minutes=minute)).isoformat(), "x": x}


@WAYS
def test_rows_are_distinct_and_in_order_across_ticks_and_a_crash(spark: SparkSession, tasks: int) -> None:
    storm = hs.Topology("tidy")
    rows = storm.spout(
        "rows", hs.Log("x"), schema="k STRING, at TIMESTAMP, x INT", event_time="at", lateness="5 minutes"
    )
    once = rows.distinct("once", by="k", within="10 minutes")
    tidy = once.ordered("tidy")
    tidy.late.fold("too_late", n=hs.count())
    once.late.fold("unknown", n=hs.count())
    tidy.fold("counts", by="k", n=hs.count())
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("rows", [row("a", 3, 1), row("b", 1, 2), row("a", 4, 3), row(None, 4, 4)])
        driver.advance()
        assert driver.rows("tidy") == []  # the watermark is at -1
        driver.feed("rows", [row("b", 9, 5), row("c", 8, 6)])
        driver.crash("after-write")
        driver.advance()  # the watermark comes to 4
        assert [r["x"] for r in driver.rows("tidy")] == [2, 1]
        driver.feed("rows", [row("d", 2, 7), row("a", 14, 8), row("e", 30, 9)])
        driver.advance()  # d is late, a's ten minutes are over; the watermark comes to 25
        assert [r["x"] for r in driver.rows("once.late")] == [7]
        assert [r["x"] for r in driver.rows("tidy")] == [2, 1, 6, 8]
        driver.complete()
        assert [r["x"] for r in driver.rows("tidy")] == [2, 1, 6, 8, 9]
        assert [(r["k"], r["n"]) for r in driver.table("counts")] == [("a", 2), ("b", 1), ("c", 1), ("e", 1)]
        assert driver.table("unknown") == [{"n": 1}]
        assert driver.ledger.head.late == 1
        assert [r["k"] for r in driver.table("once")] == ["e"]  # the others have expired
        assert [letter["reason"] for letter in driver.errors()] == ["the key is null"]
        driver.feed("rows", [row("f", 40, 10)])
        driver.advance()  # after the end of input everything is late
        assert [r["x"] for r in driver.rows("once.late")] == [7, 10]
