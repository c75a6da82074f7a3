"""Backfill from files: records that the logs no longer have, and then those that they have, give what a fresh run over
all of them gives."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.errors import LogError, RunError
from hailstorm.faults import inject
from hailstorm.testing import Driver
from hailstorm.testing.driver import Crash
from tests.length import only_long
from tests.spark.test_backfill import edited, held
from tests.spark.test_rewind import BEGIN, feed

DECLARED = pa.schema(
    [
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("u", pa.string()),
        ("n", pa.int32()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


def live(storm: hs.Topology, clicks: Any, users: Any) -> None:
    clicks.fold("counts", by="u", n=hs.count())
    users.fold("sizes", by="team", n=hs.count())


def added(storm: hs.Topology, clicks: Any, users: Any) -> None:
    """A fold, a top and a join of it, windows and sessions: all that a second run gives."""
    live(storm, clicks, users)
    totals = clicks.select("halves", u="u", n="n / 2").fold("totals", by="u", n=hs.sum("n"), c=hs.count())
    totals.top("best", 2, by="c")
    totals.join("named", users, on="u", how="left").fold("teams", by="team", n=hs.sum("n"))
    clicks.window("5 minutes").fold("windows", by="u", n=hs.count())
    clicks.session("1 minute").fold("sessions", by="u", n=hs.count())


ADDED = ("totals", "best", "named", "teams", "windows", "sessions")


def records(driver: Driver, spout: str) -> list[dict[str, Any]]:
    """What a log holds, as rows of an archive; what is not JSON is no row."""
    log, found = driver.logs[spout], []
    for partition, end in log.latest().items():
        for batch in log.read(partition, log.earliest()[partition], end):
            for record in batch.to_pylist():
                try:
                    value = json.loads(record["value"])
                except ValueError:
                    continue
                where = {"_partition": partition, "_offset": record["offset"], "_time": record["time"].isoformat()}
                found.append({**where, **value})
    return found


def archived(driver: Driver, spout: str, keep: int) -> list[dict[str, Any]]:
    """Let the log forget all but its newest records; the rows of those that are gone."""
    rows = records(driver, spout)
    driver.logs[spout].retain(records=keep)
    begins = driver.logs[spout].earliest()
    return [row for row in rows if row["_offset"] < begins[row["_partition"]]]


def as_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    table = pa.table({name: [row[name] for row in rows] for name in DECLARED.names if name != "at"})
    times = pa.array([row["at"] for row in rows]).cast(DECLARED.field("at").type)
    path.mkdir()
    for part in range(3):  # as a batch job writes them: in no order
        pq.write_table(
            table.append_column("at", times).slice(part, None).take(list(range(0, len(rows) - part, 3))),
            path / f"part-{part}.parquet",
            row_group_size=4,
        )
    (path / "_SUCCESS").touch()
    return str(path)


def as_lines(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def feed_clean(driver: Driver, chance: random.Random, tick: int) -> None:
    feed(driver, chance, tick)
    if tick % 2:
        rows = [{"u": f"u{n}", "n": n, "at": BEGIN.isoformat()} for n in range(chance.randrange(3))]
        driver.feed("clicks", rows, partition=1)


@pytest.mark.parametrize("tasks", [(0,), only_long((1,)), only_long((2,))], ids=["resident", "prepared", "planned"])
def test_files_before_the_logs_give_what_a_run_over_everything_gives(
    spark: SparkSession, tmp_path: Path, tasks: tuple[int, ...]
) -> None:
    chance, other = random.Random(11), random.Random(11)  # no record of these is bad
    with Driver(edited(live), spark, tasks=tasks) as driver, Driver(edited(added), spark) as fresh:
        for tick in range(12):
            feed_clean(driver, chance, tick)
            driver.advance()
        old = {
            "clicks": as_parquet(tmp_path / "clicks", archived(driver, "clicks", 5)),
            "users": as_lines(tmp_path / "users.jsonl", archived(driver, "users", 1)),
        }
        driver.restart(edited(added))
        feed_clean(driver, chance, 12)
        driver.advance()
        for step in ("halves", "windows", "sessions"):
            files = {spout: path for spout, path in old.items() if spout == "clicks" or step == "halves"}
            with inject("after-commit", Crash("after-commit")), pytest.raises(Crash):  # in the inner ledger
                driver.backfill(step, files)
            driver.backfill(step, files)
        assert not driver.ledger.store.list("backfill")
        feed_clean(driver, chance, 13)
        driver.advance()
        driver.stop()
        for tick in range(14):
            feed_clean(fresh, other, tick)
        fresh.advance()
        fresh.stop()
        for step in ADDED:
            assert driver.table(step) == fresh.table(step), step
            assert held(driver, step) == held(fresh, step), step
            assert driver.ledger.head.coverage[step] == fresh.ledger.head.coverage[step], step
        for step in ("counts", "sizes"):
            assert driver.table(step) == fresh.table(step), f"{step} was not touched"


def test_what_nobody_has_is_not_in_the_coverage(spark: SparkSession, tmp_path: Path) -> None:
    with Driver(edited(live), spark) as driver:
        good = {"u": "a", "n": 1, "at": BEGIN.isoformat()}
        driver.feed("clicks", [good, "not JSON", good, good, good])
        driver.advance()
        files = {"clicks": as_lines(tmp_path / "old.jsonl", archived(driver, "clicks", 2))}
        storm = edited(live, lambda storm, clicks, users: clicks.fold("late", by="u", n=hs.count()))
        driver.restart(storm)
        with pytest.raises(RunError, match="HS-RUN-051"):
            driver.backfill("counts")
        with pytest.raises(LogError, match=r"neither the files nor the log have clicks/0@1 up to offset 1"):
            driver.backfill("late", files)
        driver.backfill("late", files, on_data_loss="continue")
        assert driver.table("late") == [{"u": "a", "n": 4}]
        assert driver.ledger.head.coverage["late"] == {"clicks": {"0": ((0, 1), (2, 5))}}
        assert [letter["offset"] for letter in driver.errors()] == [1], "it is open for the steps that have waited"


def test_a_value_that_does_not_fit_ends_the_backfill_and_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    with Driver(edited(live), spark) as driver:
        driver.feed("clicks", [{"u": "a", "n": 1, "at": BEGIN.isoformat()}] * 4)
        driver.advance()
        rows = [{**row, "n": "one"} for row in archived(driver, "clicks", 2)]
        driver.restart(edited(live, lambda storm, clicks, users: clicks.fold("late", by="u", n=hs.count())))
        commit = driver.ledger.head.commit
        with pytest.raises(LogError, match="HS-LOG-072"):
            driver.backfill("late", {"clicks": as_lines(tmp_path / "old.jsonl", rows)})
        driver.restart()
        assert driver.ledger.head.commit == commit
        assert driver.table("late") == []
