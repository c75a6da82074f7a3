"""An overloaded topology that drops or samples: its state is that of the records that its commits say were read."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Progress
from hailstorm.engine.ticks.logs import Logs
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.spouts.log import Log
from hailstorm.testing import Driver
from hailstorm.topology.settings import OnOverload

ROWS = {0: 6000, 1: 2000}


def rows_of(partition: int) -> list[dict[str, str]]:
    return [{"k": f"{partition}:{offset * offset % 101}"} for offset in range(ROWS[partition])]


def overloaded(log: Log, on_overload: OnOverload) -> hs.Topology:
    storm = hs.Topology("overloaded", on_overload=on_overload, max_tick_rows=250)
    storm.spout("letters", log, schema="k STRING").fold("counts", by="k", n=hs.count())
    return storm


def check_state(root: Path) -> int:
    """Every record is in one interval or in one hole, and the state counts the former. How many were skipped."""
    reader, counted = open_ledger(root), Counter[str]()
    position, skipped = dict.fromkeys(ROWS, 0), 0
    for commit in reader.commits():
        if commit.reason != "tick":
            continue
        for partition in ROWS:
            start, end = (side["letters"][str(partition)] for side in (commit.start, commit.end))
            for hole in commit.holes.get("letters", {}).get(str(partition), []):
                assert hole.start == position[partition]
                position[partition] = hole.end
            assert start == position[partition]
            counted += Counter(row["k"] for row in rows_of(partition)[start:end])
            position[partition] = end
        skipped += commit.skipped
    assert position == ROWS
    assert {row["k"]: row["n"] for row in reader.state("counts").arrow().to_pylist()} == counted
    assert sum(reader.live().skipped.get("letters", {}).values()) == skipped
    assert reader.live().rows + skipped == sum(ROWS.values())
    return skipped


@pytest.mark.parametrize(("on_overload", "at_least"), [("drop", 6000), ("sample", 1500)])
def test_an_overloaded_topology_catches_up_and_says_what_it_left_out(
    spark: SparkSession, tmp_path: Path, on_overload: OnOverload, at_least: int
) -> None:
    log = Log(tmp_path / "log").create(2)
    for partition in ROWS:
        log.append(rows_of(partition), partition=partition)
    told: list[Progress] = []
    storm = overloaded(log, on_overload)
    ledger = Ledger(tmp_path / "ledger", create=True)
    logs = Logs(storm, ledger.head)
    negotiator = Negotiator(spark, storm, ledger, on_progress=told.append, ways=(1,), logs=logs)
    negotiator.start()
    target = logs.look(negotiator.position()).ends
    try:
        while not negotiator.position().covers(target):
            negotiator.tick(target)
    finally:
        negotiator.stop()
    skipped = check_state(tmp_path / "ledger")
    assert skipped > at_least
    assert (told[-1].skipped, told[-1].lag) == (skipped, 0)


def test_a_crash_in_the_middle_of_a_tick_that_skips_leaves_no_record_unaccounted(spark: SparkSession) -> None:
    with Driver(overloaded(Log("unused"), "sample"), spark) as driver:
        for partition in ROWS:
            driver.feed("letters", rows_of(partition), partition=partition)
        driver.crash("after-commit")
        driver.crash("before-commit")
        driver.advance()
        assert check_state(driver.ledger.root) > 1000


def test_large_records_come_in_ticks_of_bounded_bytes(spark: SparkSession) -> None:
    storm = hs.Topology("large", max_tick_bytes="5 MB")
    texts = storm.spout("texts", Log("unused"), schema="line STRING", decode="text")
    texts.select("lengths", n="length(line)").fold("counts", by="n", times=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("texts", [b"." * 1_000_000] * 30)
        driver.advance()
        assert driver.table("counts") == [{"n": 1_000_000, "times": 30}]
        ticks = [commit.rows for commit in open_ledger(driver.ledger.root).commits() if commit.reason == "tick"]
        assert sum(ticks) == 30
        assert max(ticks) <= 5
