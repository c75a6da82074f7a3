"""A spout that falls silent, and comes back: who waits for it, and what is late then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(minute: float) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def rows(*minutes: float) -> list[dict[str, Any]]:
    return [{"at": at(minute).isoformat()} for minute in minutes]


@pytest.mark.parametrize("idle", [None, "5 minutes"])
def test_a_spout_that_is_silent_for_an_hour_and_comes_back(spark: SparkSession, idle: str | None) -> None:
    storm = hs.Topology("two")
    cars = storm.spout("cars", hs.Log("x"), schema="at TIMESTAMP", event_time="at", idle=idle)
    buses = storm.spout("buses", hs.Log("y"), schema="at TIMESTAMP", event_time="at")
    both = cars.union("both", buses)
    both.window("10 minutes", emit="final", late="side").fold("tens", n=hs.count()).late.sink("late", hs.Console())
    with Driver(storm, spark, now=at(0)) as driver:

        def tens() -> list[tuple[int, int]]:
            found = ((row["window_start"] - BEGIN, row["n"]) for row in driver.rows("tens"))
            return sorted((start // timedelta(minutes=1), n) for start, n in found)

        driver.feed("cars", rows(0))
        driver.feed("buses", rows(0))
        driver.advance()
        for minute in range(5, 65, 5):
            driver.feed("buses", rows(minute))
            driver.advance_to(at(minute))
        # Without `idle` everything waits for the cars. With it, time goes on for them as the wall clock does.
        assert [start for start, _ in tens()] == ([] if idle is None else [0, 10, 20, 30, 40])
        driver.feed("cars", rows(30, 61))
        driver.advance_to(at(61))
        late = [row["at"] for row in driver.rows("tens.late")]
        assert late == ([] if idle is None else [at(30)])
        driver.feed("cars", rows(70))
        driver.feed("buses", rows(70))
        driver.advance_to(at(70))
        expected = [(0, 3), (10, 2), (20, 2), (30, 2 if idle else 3), (40, 2), (50, 2), (60, 2)]
        assert tens() == expected, "nobody is counted twice or lost: 60 has a bus and a car"
