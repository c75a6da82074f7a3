"""The ledger while ticks go on: compaction, restarts, a cache that is deleted, earlier commits, evolution, and
sinks that fall behind."""

from __future__ import annotations

import contextlib
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.advance import _Wave
from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.run import run_topology
from hailstorm.errors import LedgerError, RunError
from hailstorm.ledger import compaction, ledger
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.sinks.call import Row
from hailstorm.spouts.log import Log
from hailstorm.testing import Driver


def letters(text: str) -> list[dict[str, str]]:
    return [{"k": letter} for letter in text]


def counted(driver: Driver, at: int | None = None) -> dict[str, int]:
    return {row["k"]: row["n"] for row in driver.table("counts", at)}


def counting(**settings: Any) -> hs.Topology:
    storm = hs.Topology("counting", **settings)
    storm.spout("letters", hs.Log("x"), schema="k STRING").fold("counts", by="k", n=hs.count())
    return storm


def wait_for_housekeeping(driver: Driver) -> None:
    for _ in range(100):
        keeper = driver._negotiator._beside.housekeeper
        if keeper._work.empty() and (not keeper._busy or not keeper._done.empty()):
            return
        time.sleep(0.05)


def test_compaction_deleted_caches_and_restarts_leave_every_commit_as_it_was(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    monkeypatch.setattr("hailstorm.engine.ticks.housekeeping.MANIFEST_EVERY", 5)
    monkeypatch.setattr(ledger, "MANIFEST_EVERY", 5)
    seen: Counter[str] = Counter()
    history: dict[int, dict[str, int]] = {}
    with Driver(counting(), spark) as driver:
        for tick, text in enumerate(["ab", "abc", "b", "dd", "a", "cd", "e", "ea", "b", "f", "ab", "g"]):
            if tick == 4:
                shutil.rmtree(driver.ledger.cache.folder)
            if tick == 7:  # a restart: nothing but the ledger is left
                driver._negotiator.stop()
                shutil.rmtree(driver.ledger.cache.folder)
                driver._open()
            driver.feed("letters", letters(text))
            seen += Counter(text)
            driver.advance()
            wait_for_housekeeping(driver)
            history[driver.ledger.head.commit] = dict(seen)
            assert counted(driver) == dict(seen), f"tick {tick}"
        reader = open_ledger(driver.ledger.root)
        reasons = Counter(commit.reason for commit in reader.commits())
        assert reasons["compact"] >= 2
        assert list((driver.ledger.root / "manifests").iterdir())
        for commit, expected in history.items():
            assert counted(driver, commit) == expected, f"at commit {commit}"
        live = {run.id for run in driver.ledger.head.runs["counts"]}
        assert len(live) < 8


def test_nobody_keeps_runs_open_that_are_not_live(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 3)
    with Driver(counting(), spark) as driver:
        for text in ("ab", "abc", "b", "dd", "a", "cd", "e", "ea", "b", "f", "ab", "g"):
            driver.feed("letters", letters(text))
            driver.advance()
            wait_for_housekeeping(driver)
        left = set[str]()
        for _ in range(10):  # a worker that had nothing to do in the last ticks has not heard of it yet
            driver.feed("letters", letters("a"))
            driver.advance()
            live = {run.id for run in driver.ledger.head.runs["counts"]}
            mapped = mapped_files(driver.ledger.cache.folder)
            assert mapped, "the workers have the state open"
            left = {path.partition(".arrow")[0].rpartition("/")[2] for path in mapped} - live
            if len(left) < 4:
                break
        assert len(left) < 4


def mapped_files(folder: Path) -> set[str]:
    """The files of a folder that any process has mapped."""
    found = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            found |= {line[line.index("/") :] for line in maps.read_text().splitlines() if f"{folder}/" in line}
    return found


def test_a_crash_at_every_point_of_a_tick_loses_and_doubles_nothing(spark: SparkSession) -> None:
    with Driver(counting(), spark) as driver:
        seen: Counter[str] = Counter()
        for point in ("after-write", "before-commit", "after-commit"):
            driver.feed("letters", letters("ab"))
            seen += Counter("ab")
            driver.crash(point)
            driver.advance()
            assert counted(driver) == dict(seen), point


# Sinks that fall behind


def running(spark: SparkSession, storm: hs.Topology, root: Path, **options: Any) -> Negotiator:
    negotiator = Negotiator(spark, storm, Ledger(root, create=True), **{"ways": (1,), **options})
    negotiator.start()
    return negotiator


def test_a_sink_that_fails_pauses_input_at_the_outbox_limit_and_goes_on_when_it_recovers(
    spark: SparkSession, tmp_path: Path
) -> None:
    down, got = [True], []

    def deliver(rows: list[Row]) -> None:
        if down[0]:
            raise ConnectionError("down")
        got.extend((row["k"], row["n"]) for row in rows)

    log = Log(tmp_path / "log").create(1)
    storm = hs.Topology("pressed", outbox_limit=3)
    counts = storm.spout("letters", log, schema="k STRING").fold("counts", by="k", n=hs.count())
    counts.sink("out", hs.Call(deliver))
    negotiator = running(spark, storm, tmp_path / "ledger")
    try:
        ticks = 0
        for _ in range(12):
            log.append(letters("a"))
            ticks += negotiator.tick()
        assert ticks <= 5, "a few commits more than the limit may wait, and no more"
        assert negotiator.account.last.phase == "paused"
        committed = negotiator.ledger.head.rows
        assert negotiator.account.last.lag == 12 - committed, "the lag is shown as it is, although nothing is read"
        down[0] = False
        deadline = time.monotonic() + 60
        while negotiator.ledger.head.rows < 12 and time.monotonic() < deadline:
            negotiator.tick()
            time.sleep(0.02)
        negotiator.stop()
    except BaseException:
        negotiator.fail()
        raise
    assert committed < 12
    assert got[-1] == ("a", 12)
    assert [n for _, n in got] == sorted({n for _, n in got}), "in commit order, each once"


def test_the_end_of_all_input_waits_for_a_sink_that_is_behind_and_not_for_one_that_has_stopped(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path / "log").create(1)
    log.append([{"k": "a", "at": "2026-01-31 09:00:00"}])
    storm = hs.Topology("ending")
    rows = storm.spout("rows", log, schema="k STRING, at TIMESTAMP", event_time="at")
    rows.window("1 minute", emit="final").fold("counts", by="k", n=hs.count())
    negotiator = running(spark, storm, tmp_path / "ledger")
    try:
        while negotiator.tick():
            pass
        asked = []

        def behind(for_seconds: float) -> str | None:
            asked.append(time.monotonic())
            return "out" if asked[-1] - asked[0] < for_seconds else None

        with monkeypatch.context() as patch:
            patch.setattr(negotiator._beside, "too_far_behind", lambda: behind(60))
            patch.setattr(Deliverer, "stopped", True)
            negotiator.complete()
            assert len(asked) <= 1, "nothing will come of waiting for it"
        with monkeypatch.context() as patch:
            asked.clear()
            patch.setattr(negotiator._beside, "too_far_behind", lambda: behind(0.5))
            negotiator.complete()
            assert 2 <= len(asked) < 100, "it rests in between"
        assert open_ledger(tmp_path / "ledger").state("counts").arrow().num_rows == 1
        negotiator.stop()
    except BaseException:
        negotiator.fail()
        raise


def test_a_sink_that_cannot_go_on_stops_the_run_and_keeps_its_rows(spark: SparkSession, tmp_path: Path) -> None:
    broken = [True]
    got: list[str] = []

    def deliver(rows: list[Row]) -> None:
        if broken[0]:
            raise ValueError("a bug")
        got.extend(row["k"] for row in rows)

    log = Log(tmp_path / "log").create(1)
    storm = hs.Topology("broken")
    storm.spout("letters", log, schema="k STRING").sink("out", hs.Call(deliver))
    negotiator = running(spark, storm, tmp_path / "ledger")
    log.append(letters("ab"))
    (left,) = negotiator.run(None, threading.Event()).undelivered
    assert (left.sink, left.commits, left.rows, left.stopped) == ("out", 1, 2, True)
    assert "a bug" in str(left.error)
    broken[0] = False
    negotiator = running(spark, storm, tmp_path / "ledger")
    assert negotiator.stop().undelivered == ()
    assert got == ["a", "b"]


def test_what_could_not_be_delivered_in_time_is_in_the_summary_and_in_the_ledger(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hailstorm.engine.beside._DRAIN_SECONDS", 0.5)

    def deliver(rows: list[Row]) -> None:
        raise ConnectionError("down")

    log = Log(tmp_path / "log").create(1)
    log.append(letters("ab"))
    storm = hs.Topology("late")
    storm.spout("letters", log, schema="k STRING").sink("out", hs.Call(deliver))
    negotiator = running(spark, storm, tmp_path / "ledger")
    summary = negotiator.run(negotiator.logs.look(negotiator.position()).ends, threading.Event())
    (left,) = summary.undelivered
    assert (left.sink, left.commits, left.rows, left.stopped) == ("out", 1, 2, False)
    record = negotiator.ledger.cursors.load("out")
    assert (record.commit, record.error) == (0, "ConnectionError: down")
    assert record.next_try is not None


# Evolution


@pytest.mark.parametrize("method", ["sizes", "put"])
def test_a_store_that_stays_away_ends_the_run_with_a_sentence(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    log = Log(tmp_path / "log").create(1)
    storm = hs.Topology("away", publish="off")
    storm.spout("letters", log, schema="k STRING").fold("counts", by="k", n=hs.count())
    log.append(letters("ab"))

    def away(*_: object) -> None:
        raise OSError(5, "s3://bucket does not answer as it should")

    def goes_away(self: Ledger, *args: Any) -> Any:
        """After the first commit."""
        found = commit(self, *args)
        for name in (method, "get"):  # the lease cannot be given back, either
            monkeypatch.setattr(LocalStore, name, away)
        return found

    commit = Ledger.commit
    monkeypatch.setattr(Ledger, "commit", goes_away)
    with pytest.raises(LedgerError, match="cannot be written: s3://bucket does not answer"):
        run_topology(storm, ledger=tmp_path / "ledger", until="caught-up", overrides={"ways": "planned"})


def test_a_failure_is_told_also_when_its_files_cannot_be_deleted(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RunError(99, "the real reason")

    def away(*_: object) -> None:
        raise OSError(5, "does not answer")

    with Driver(counting(), spark) as driver:
        driver.feed("letters", letters("ab"))
        with monkeypatch.context() as patch, pytest.raises(RunError, match="the real reason"):
            patch.setattr(_Wave, "take", fails)
            patch.setattr(LocalStore, "delete", away)
            driver.advance()
        driver._negotiator.fail()
        driver._open()


def test_a_topology_may_change_between_runs_and_nothing_is_reset_silently(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "log").create(1)
    root = tmp_path / "ledger"

    def storm(version: int) -> hs.Topology:
        made = hs.Topology("evolving")
        source = made.spout("letters", log, schema="k STRING, x BIGINT")
        if version == 4:
            source = source.bolt(
                lambda row: {"k": row.k.upper(), "x": row.x}, name="shout", returns="k STRING, x BIGINT"
            )
        else:
            source = source.bolt(lambda row: {"k": row.k, "x": row.x}, name="shout", returns="k STRING, x BIGINT")
        monoids: dict[str, Any] = {"n": hs.count()}
        if version >= 3:
            monoids["total"] = hs.sum("x")
        if version != 5:
            source.fold("counts", by="k", **monoids).top("best", 1, by="n")
        if version >= 2:
            source.fold("later", by="k", n=hs.count())
        return made

    def run(version: int, text: str, accept: tuple[str, ...] = ()) -> dict[str, list[tuple[Any, ...]]]:
        log.append([{"k": letter, "x": 10} for letter in text])
        negotiator = running(spark, storm(version), root, accept=accept)
        try:
            while negotiator.tick():
                pass
        finally:
            negotiator.fail()
        reader = open_ledger(root)
        return {
            name: sorted(tuple(row.values()) for row in reader.state(name).arrow().to_pylist())
            for name in reader.live().steps
        }

    assert run(1, "aab") == {"counts": [("a", 2), ("b", 1)], "best": [("a", 2, 1)]}
    assert run(1, "b")["counts"] == [("a", 2), ("b", 2)]
    # Added: begins now.
    after = run(2, "a")
    assert after["counts"] == [("a", 3), ("b", 2)]
    assert after["later"] == [("a", 1)]
    # Changed: refused, and nothing has happened.
    commits = Ledger(root).head.commit
    with pytest.raises(RunError, match="'counts' has changed") as error:
        run(3, "c")
    assert "--accept counts" in error.value.hint
    assert Ledger(root).head.commit == commits
    # Accepted: the state goes on, the new column begins empty; what waited in the log is not lost.
    after = run(3, "a", accept=("counts", "best"))
    assert after["counts"] == [("a", 4, 10), ("b", 2, None), ("c", 1, 10)]
    # A changed bolt needs no word.
    after = run(4, "a")
    assert after["counts"] == [("A", 1, 10), ("a", 4, 10), ("b", 2, None), ("c", 1, 10)]
    # Removed: its state stays readable; back again, it needs a word, because it has a hole.
    assert run(5, "z")["counts"] == after["counts"]
    with pytest.raises(RunError, match="'counts' was away"):
        run(3, "")
    # Another key makes the old state meaningless: that cannot be accepted.
    other = hs.Topology("evolving")
    other.spout("letters", log, schema="k STRING, x BIGINT").fold("later", by="x", n=hs.count())
    with pytest.raises(RunError, match="key"):
        running(spark, other, root, accept=("later",))


def test_a_top_that_is_added_later_shows_the_whole_table(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(tmp_path / "log").create(1)
    for version, text in ((1, "aaaab"), (2, "bcd")):
        storm = hs.Topology("added")
        counts = storm.spout("letters", log, schema="k STRING").fold("counts", by="k", n=hs.count())
        if version == 2:
            counts.top("best", 2, by="n")
        log.append(letters(text))
        negotiator = running(spark, storm, tmp_path / "ledger")
        negotiator.tick()
        negotiator.fail()
    assert open_ledger(tmp_path / "ledger").state("best").arrow().to_pylist() == [
        {"k": "a", "n": 4, "rank": 1},
        {"k": "b", "n": 2, "rank": 2},
    ]
