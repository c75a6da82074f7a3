"""State that a second run has made begins with the watermark of the ledger, which may be further than its own was."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver


def ordering(tidy: bool) -> hs.Topology:
    storm = hs.Topology("ordering")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, at TIMESTAMP", event_time="at")
    rows.fold("all", n=hs.count())
    if tidy:
        rows.ordered("tidy").window("10 minutes", late="drop").fold("per", by="k", n=hs.count())
    return storm


@pytest.mark.parametrize("how", ["recompute", "backfill"])
def test_what_a_second_run_still_holds_back_is_not_late_for_the_steps_below(spark: SparkSession, how: str) -> None:
    """A partition that comes late does not take the watermark back, but a second run sees it from the beginning on."""

    def row(hour: int, minute: int = 0) -> dict[str, str]:
        return {"k": "a", "at": datetime(2026, 1, 1, hour, minute, tzinfo=UTC).isoformat()}

    with Driver(ordering(tidy=False), spark) as driver:
        driver.feed("rows", [row(11, 10), row(12)])
        driver.advance()
        driver.feed("rows", [row(10)], partition=1)
        driver.advance()
        if how == "recompute":
            driver.restart(ordering(tidy=True), recompute=("tidy",))
        else:
            driver.restart(ordering(tidy=True))
            driver.backfill("tidy")
        driver.advance()
        begins = [one["window_start"].strftime("%H:%M") for one in driver.table("per")]
        assert (sorted(begins), driver.ledger.head.late) == (["10:00", "11:10", "12:00"], 0)
