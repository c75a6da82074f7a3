"""advance: from any moment, to any place, with taps; and it counts only when every task has reported."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine import advance as module
from hailstorm.engine.advance import Work, advance
from hailstorm.engine.place import Place, nowhere
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.stages.order import Inbox, Order, Report
from hailstorm.errors import HailstormError, LogError, RunError, TransientLogError
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import read_table
from hailstorm.spouts.log import Log
from hailstorm.testing import Driver

# Records have the time of their append: at another moment than now they would be too far ahead.
NOW = int(time.time() * 1_000_000)


def words() -> hs.Topology:
    storm = hs.Topology("words")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING")
    split = rows.bolt(lambda row: [{"word": word} for word in row.k.split()], name="split", returns="word STRING")
    counts = split.fold("counts", by="word", n=hs.count())
    counts.top("best", 2, by="n")
    counts.fold("words", n=hs.count(), most=hs.max("n"))  # by its members: read again within the tick
    return storm


def files_of(ledger: Ledger) -> set[Path]:
    return {path for path in ledger.root.rglob("*.parquet") if not {".cache", "delta"} & set(path.parts)}


@pytest.mark.parametrize("tasks", [1, 2])
def test_an_advance_from_an_older_moment_to_nowhere_gives_rows_back_and_leaves_no_file(
    spark: SparkSession, tasks: int
) -> None:
    with Driver(words(), spark) as driver:
        driver.feed("rows", [{"k": "a b"}, {"k": "a"}])
        driver.advance()
        base = driver.ledger.head
        driver.feed("rows", [{"k": "a c"}, {"k": "c b"}])
        driver.advance()
        before = files_of(driver.ledger)
        interval = Interval(base.position(), Clock({"rows": {0: 3}}))
        plan = compile_topology(spark, driver.topology, tasks)
        with nowhere(driver.ledger) as place:
            work = Work(driver.ledger, base, interval, now=NOW, place=place, taps=("split", "counts", "words"))
            outcome = advance(spark, plan, work)
            rows = {
                step: [row for file in files for row in pq.read_table(f"{place.address}/{file.path}").to_pylist()]
                for step, files in outcome.taps.items()
            }
        assert sorted(row["word"] for row in rows["split"]) == ["a", "c"]
        changes = {row["word"]: (row["n"], (row["_old"] or {}).get("n")) for row in rows["counts"]}
        assert changes == {"a": (3, 2), "c": (1, None)}
        assert [(row["n"], row["most"]) for row in rows["words"]] == [(3, 3)]
        assert outcome.rows == 1
        assert not any(name.startswith("tap-split") for name in outcome.outbox)
        assert not files_of(driver.ledger) - before  # housekeeping may remove some meanwhile
        assert not list((driver.ledger.cache.folder / "scratch").glob("*"))


def test_an_advance_into_another_ledger_writes_there_alone(spark: SparkSession, tmp_path: Path) -> None:
    with Driver(words(), spark) as driver:
        driver.feed("rows", [{"k": "a b"}, {"k": "a"}])
        driver.advance()
        before = files_of(driver.ledger)
        other = Ledger(tmp_path / "other", create=True)
        base, interval = driver.ledger.at(0), Interval(Clock(), driver.ledger.head.position())
        plan = compile_topology(spark, driver.topology, 1)
        place = Place(other.store.address, other.cache.folder)
        outcome = advance(spark, plan, Work(driver.ledger, base, interval, now=NOW, place=place))
        (run,) = outcome.state["counts"].added
        assert read_table(other.store, run_name("counts", run.id)).num_rows == 2
        assert not files_of(driver.ledger) - before  # housekeeping may remove some meanwhile


@pytest.mark.parametrize("tasks", [1, 2])
def test_a_tick_in_which_a_report_is_missing_is_tried_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tasks: int
) -> None:
    take = Inbox.take
    lost: list[Report] = []

    def loses_one(inbox: Inbox) -> Iterable[Report]:
        reports = list(take(inbox))
        if reports and not lost:
            lost.append(reports.pop())
        return reports

    with Driver(words(), spark, tasks=(tasks,)) as driver:
        monkeypatch.setattr(Inbox, "take", loses_one)
        driver.feed("rows", [{"k": "a b"}, {"k": "a"}])
        assert driver.advance() == 2
        assert lost
        assert driver.table("counts") == [{"word": "a", "n": 2}, {"word": "b", "n": 1}]
        before = driver.ledger.head.commit
        monkeypatch.setattr(Inbox, "take", lambda inbox: list(take(inbox))[1:])
        driver.feed("rows", [{"k": "c"}])
        with pytest.raises(RunError, match=r"HS-RUN-030.*1 of \d tasks of '.*' have not reported"):
            driver.advance()
        assert driver.ledger.head.commit == before


def test_a_tick_whose_job_cannot_be_planned_is_tried_again(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor may be lost at any time, also while the ranges of tasks are settled on them."""
    settle, failures = module.settle, [PySparkException("lost an executor")]

    def fails_once(spark: SparkSession, tasks: int) -> None:
        if failures:
            raise failures.pop()
        settle(spark, tasks)

    with Driver(words(), spark, tasks=(2,)) as driver:
        monkeypatch.setattr(module, "settle", fails_once)
        driver.feed("rows", [{"k": "a b"}, {"k": "a"}])
        assert driver.advance() == 2
        assert not failures


class Unreadable(Log):
    """A log whose records are gone, or cannot be had at the moment."""

    def read(self, partition: int, start: int, end: int) -> Iterable[object]:  # type: ignore[override]
        raise self.error()

    @staticmethod
    def error() -> HailstormError:
        return LogError(4, "no longer has\nthe offsets", hint="Retention removed them.")


class Unreachable(Unreadable):
    @staticmethod
    def error() -> HailstormError:
        return TransientLogError(7, "the broker is away", hint="wait")


@pytest.mark.parametrize("kind", [Unreadable, Unreachable])
def test_what_a_task_raises_reaches_the_driver_as_the_same_error(
    spark: SparkSession, tmp_path: Path, kind: type[Unreadable]
) -> None:
    log = kind(tmp_path / "log")
    log.create(1)
    log.append([{"k": "a"}])
    storm = hs.Topology("gone")
    storm.spout("rows", log, schema="k STRING").fold("counts", by="k", n=hs.count())
    ledger = Ledger(tmp_path / "ledger", create=True)
    plan = compile_topology(spark, storm, 1)
    with pytest.raises(HailstormError) as found:
        advance(spark, plan, Work(ledger, ledger.head, Interval(Clock(), Clock({"rows": {0: 1}})), now=NOW))
    wanted = kind.error()
    assert type(found.value) is type(wanted)
    assert (found.value.code, found.value.what, found.value.hint) == (wanted.code, wanted.what, wanted.hint)


def test_every_step_has_a_watermark_in_the_commit_and_the_next_tick_goes_by_it(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    storm = hs.Topology("times")
    schema = "k STRING, at TIMESTAMP"
    rows = storm.spout("rows", hs.Log("x"), schema=schema, event_time="at", lateness="1 second")
    others = storm.spout("others", hs.Log("y"), schema=schema, event_time="at")
    rows.fold("counts", by="k", n=hs.count())
    rows.union("both", others).fold("all", n=hs.count())
    orders: list[Order] = []
    encode = Order.encode

    def noted(order: Order) -> str:
        orders.append(order)
        return encode(order)

    monkeypatch.setattr(Order, "encode", noted)
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"k": "a", "at": "2024-01-01T00:00:10Z"}])
        driver.advance()
        second = 1_000_000
        at = 1_704_067_210 * second - second
        known = driver.ledger.head.watermarks
        assert known["rows"] == known["counts"] == (at, at)
        assert known["others"] == known["both"] == known["all"] == (None, None), "it never had a record"
        assert not any(time for order in orders for times in order.watermarks.values() for time in times)
        orders.clear()
        driver.feed("others", [{"k": "a", "at": "2024-01-01T00:00:05Z"}])
        driver.advance()
        assert all(order.watermarks == known for order in orders), "one watermark a tick: that of the commit before"
        assert driver.ledger.head.watermarks["all"] == (at - 4 * second, at - 4 * second)
