"""Event times that no watermark can follow are dead letters, and a run goes on, also after a restart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.run import run_topology
from hailstorm.errors import RunError
from hailstorm.spouts import Files, Log
from hailstorm.testing import Driver


def timed(lateness: str = "1 hour") -> hs.Topology:
    storm = hs.Topology("timed")
    rows = storm.spout("rows", Log("x"), schema="k STRING, at TIMESTAMP", event_time="at", lateness=lateness)
    rows.fold("counts", by="k", n=hs.count())
    return storm


def test_times_at_the_ends_of_time_and_far_ahead_are_dead_letters_that_say_why(spark: SparkSession) -> None:
    soon = datetime.now(UTC) + timedelta(days=2)
    with Driver(timed(), spark) as driver:
        driver.feed(
            "rows",
            [
                {"k": "first", "at": "0001-01-01T00:00:00Z"},
                {"k": "good", "at": "0001-01-01T01:00:00Z"},
                {"k": "last", "at": "9999-12-31T23:59:59.999999Z"},
                {"k": "soon", "at": soon},
                {"k": "none", "at": None},
                {"k": "missing"},
            ],
        )
        driver.advance()
        assert [row["k"] for row in driver.table("counts")] == ["good"]
        assert driver.watermark == datetime(1, 1, 1, tzinfo=UTC)
        reasons = {letter["offset"]: letter["reason"] for letter in driver.errors()}
        assert "less the lateness is before the year 1" in reasons[0]
        assert all("ahead of" in reasons[offset] for offset in (2, 3))
        assert reasons[4] == reasons[5] == "its event time 'at' is null"
        # The next run goes on: nothing of it is in the way.
        driver.feed("rows", [{"k": "next", "at": "2024-05-01"}])
        driver.crash("before-commit")
        driver.advance()
        assert driver.watermark == datetime(2024, 4, 30, 23, tzinfo=UTC)
        assert driver.retry() == (5, 5)


def test_without_event_time_it_is_the_records_own_and_files_have_none(spark: SparkSession, tmp_path: Path) -> None:
    def topology(source: Log | Files) -> hs.Topology:
        storm = hs.Topology("own")
        storm.spout("rows", source, schema="k STRING").fold("counts", by="k", n=hs.count(), last=hs.latest("k"))
        return storm

    at = datetime(2024, 5, 1, 12, tzinfo=UTC)
    log = Log(tmp_path / "log")
    log.append([{"k": "a"}, {"k": 7}], time=at)
    log.append([{"k": "b"}], time=datetime(9999, 12, 31, tzinfo=UTC))
    run_topology(topology(log), ledger=tmp_path / "of-log", until="caught-up")
    ledger = hs.open_ledger(tmp_path / "of-log")
    assert ledger.live().watermark == at.isoformat()
    assert [row["k"] for row in ledger.state("counts").arrow().to_pylist()] == ["a"]
    letters = ledger.errors().to_pylist()
    assert sorted(letter["offset"] for letter in letters) == [1, 2]
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.jsonl").write_text('{"k": "a"}\n')
    run_topology(topology(Files(str(tmp_path / "files"))), ledger=tmp_path / "of-files", until="caught-up")
    assert hs.open_ledger(tmp_path / "of-files").live().watermark is None


@pytest.mark.parametrize("max_ahead", ["1 day", "3 days"])
def test_how_far_ahead_a_time_may_be_is_the_spouts_to_say(spark: SparkSession, max_ahead: str) -> None:
    storm = hs.Topology("ahead")
    rows = storm.spout("rows", Log("x"), schema="k STRING, at TIMESTAMP", event_time="at", max_ahead=max_ahead)
    rows.fold("counts", by="k", n=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"k": "a", "at": datetime.now(UTC) + timedelta(days=2)}])
        driver.advance()
        assert len(driver.errors()) == (1 if max_ahead == "1 day" else 0)


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_bolt_can_say_when_its_rows_happened(spark: SparkSession, tasks: int) -> None:
    storm = hs.Topology("own", error_limit=1)
    visits = storm.spout("visits", hs.Log("x"), schema="pages ARRAY<TIMESTAMP>, at TIMESTAMP", event_time="at")

    @visits.bolt(returns="seen TIMESTAMP", event_time="seen")
    def pages(visit: hs.Row) -> list[dict[str, object]]:
        return [{"seen": page} for page in visit.pages]

    def by_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"seen": pc.list_element(batch.column("pages"), 0)})

    pages.window("1 hour").fold("by_row", n=hs.count())
    visits.arrow("first", by_batch, returns="seen TIMESTAMP", event_time="seen").window("1 hour").fold(
        "by_batch", n=hs.count()
    )
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        at = "2026-01-01T09:30:00Z"
        driver.feed("visits", [{"pages": ["2026-01-01T08:10:00Z", "2026-01-01T09:10:00Z"], "at": at}])
        driver.feed("visits", [{"pages": ["2026-01-01T08:40:00Z", None], "at": at}, {"pages": [None], "at": at}])
        driver.advance()
        assert [(row["window_start"].hour, row["n"]) for row in driver.table("by_row")] == [(8, 1), (9, 1)]
        assert [(row["window_start"].hour, row["n"]) for row in driver.table("by_batch")] == [(8, 2)]
        letters = sorted((letter["step"], letter["offset"], letter["reason"]) for letter in driver.errors())
        assert [letter[:2] for letter in letters] == [("first", 2), ("pages", 1), ("pages", 2)]
        assert all("its event time 'seen' is null" in reason for *_, reason in letters)


@pytest.mark.parametrize("tasks", [0, 1, 2])
def test_rows_of_a_batch_that_lost_their_times_are_refused_where_a_step_below_goes_by_time(
    spark: SparkSession, tasks: int
) -> None:
    def twice(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"k": pa.concat_arrays([batch.column("k"), batch.column("k")])})

    storm = hs.Topology("lost")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, at TIMESTAMP", event_time="at")
    doubled = rows.arrow("doubled", twice, returns="k STRING")
    doubled.where("some", "k = 'a'").window("1 hour").fold("hourly", n=hs.count())
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("rows", [{"k": "a", "at": "2026-01-01T09:30:00Z"}])
        with pytest.raises(RunError) as caught:
            driver.advance()
        assert caught.value.code == "HS-RUN-015"
        assert caught.value.at == storm.step("doubled").at
        assert "event_time=" in caught.value.hint
        assert driver.ledger.head.rows == 0
