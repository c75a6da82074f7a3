"""errors --retry never loses a letter: it leaves the list when its row went through, once, or was discarded by name."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Retried
from hailstorm.errors import LedgerError
from hailstorm.ledger.discarding import discard
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.spouts.log import Log
from hailstorm.testing import Driver


class World:
    """A log and a ledger that several versions of a topology run on."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.log = Log(folder / "log").create(1)

    def run(self, storm: hs.Topology, retry: bool = False, accept: tuple[str, ...] = ()) -> Retried | None:
        ledger = Ledger(self.folder / "ledger", create=True)
        negotiator = Negotiator(self.spark, storm, ledger, accept=accept, ways=(1,))
        try:
            negotiator.start()
            done = negotiator.retry() if retry else None
            while not retry and negotiator.tick():
                pass
        finally:
            negotiator.fail()
        return done

    def letters(self) -> list[tuple[str, int]]:
        rows = open_ledger(self.folder / "ledger").errors().to_pylist()
        return sorted((row["step"], row["offset"]) for row in rows)

    def table(self, step: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = open_ledger(self.folder / "ledger").state(step).arrow().to_pylist()
        return sorted(rows, key=str)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


def inverses(world: World, bad: set[int], name: str = "inverse", **options: Any) -> hs.Topology:
    storm = hs.Topology("numbers")
    rows = storm.spout("rows", world.log, schema="k STRING, n INT")

    def inverse(row: Any) -> dict[str, Any]:
        if row.n in bad:
            raise ValueError(f"not {row.n}")
        return {"k": row.k, "n": row.n}

    made = rows.bolt(inverse, name=name, returns="k STRING, n INT", **options)
    made.fold("counts", by="k", n=hs.count(), total=hs.sum("n"))
    return storm


def test_only_the_letters_that_went_through_leave_and_the_others_say_the_new_reason(world: World) -> None:
    world.log.append([{"k": "a", "n": n} for n in range(8)])
    world.run(inverses(world, {1, 2, 3}))
    assert world.letters() == [("inverse", 1), ("inverse", 2), ("inverse", 3)]
    assert world.run(inverses(world, {2}), retry=True) == Retried(3, 1)
    assert world.letters() == [("inverse", 2)]
    assert world.table("counts") == [{"k": "a", "n": 7, "total": 26}]
    before = Ledger(world.folder / "ledger").head.dead_letters
    assert world.run(inverses(world, {2}), retry=True) == Retried(1, 1)
    assert Ledger(world.folder / "ledger").head.dead_letters == before
    assert world.run(inverses(world, set()), retry=True) == Retried(1, 0)
    assert world.table("counts") == [{"k": "a", "n": 8, "total": 28}]


def test_letters_of_null_keys_and_of_steps_that_are_gone_stay_and_it_says_so(world: World) -> None:
    world.log.append([{"k": None, "n": 5}, {"k": "a", "n": 1}, {"k": "a", "n": 2}])
    world.run(inverses(world, {1}))
    assert world.letters() == [("counts", 0), ("inverse", 1)]
    done = world.run(inverses(world, set(), name="renamed"), retry=True, accept=("counts",))
    assert done is not None
    assert (done.letters, done.failed) == (2, 2)
    assert any(sentence.startswith("1 of 'inverse' stay: the topology has no such step") for sentence in done.left)
    assert any(sentence.startswith("1 of 'counts' stay: the key is null, which no fix") for sentence in done.left)
    assert world.letters() == [("counts", 0), ("inverse", 1)]
    done = world.run(inverses(world, set()), retry=True, accept=("counts",))
    assert done is not None
    assert (done.letters, done.failed) == (2, 1)
    assert world.letters() == [("counts", 0)]
    assert world.table("counts") == [{"k": "a", "n": 2, "total": 3}]


@pytest.mark.parametrize("on_error", ["fail", "skip"])
def test_letters_of_a_step_that_now_fails_or_skips_stay_when_they_fail_again(world: World, on_error: str) -> None:
    world.log.append([{"k": "a", "n": 1}, {"k": "a", "n": 2}, {"k": "a", "n": 3}])
    world.run(inverses(world, {1, 2}))
    assert world.run(inverses(world, {2}, on_error=on_error), retry=True) == Retried(2, 1)
    assert world.letters() == [("inverse", 1)]
    assert world.table("counts") == [{"k": "a", "n": 2, "total": 4}]


def test_a_retried_row_that_fails_at_a_step_below_is_a_letter_there(spark: SparkSession, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed"
    storm = hs.Topology("two")
    rows = storm.spout("rows", hs.Log("x"), schema="n INT")

    def first(row: Any) -> dict[str, int]:
        if not fixed.exists():
            raise ValueError("not fixed")
        return {"n": row.n}

    made = rows.bolt(first, name="first", returns="n INT")
    made.bolt(lambda row: {"n": 10 // row.n}, name="second", returns="n INT").fold("n", n=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"n": 0}, {"n": 1}, b"nonsense"])
        driver.advance()
        fixed.touch()
        assert driver.retry() == (3, 2)
        assert sorted((letter["step"], letter["offset"]) for letter in driver.errors()) == [("rows", 2), ("second", 0)]
        assert driver.table("n") == [{"n": 1}]


def test_a_letter_on_which_sql_fails_below_its_step_stays(spark: SparkSession, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed"
    storm = hs.Topology("below")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING")

    def first(row: Any) -> dict[str, str]:
        if not fixed.exists():
            raise ValueError("not fixed")
        return {"k": row.k}

    rows.bolt(first, name="first", returns="k STRING").select("cast", n="cast(k AS INT)").fold("sum", n=hs.sum("n"))
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"k": "1"}, {"k": "one"}, {"k": "2"}])
        driver.advance()
        fixed.touch()
        assert driver.retry() == (3, 1)
        (letter,) = driver.errors()
        assert (letter["step"], letter["offset"]) == ("first", 1)
        assert "an SQL expression fails" in letter["reason"]
        assert driver.table("sum") == [{"n": 3}]


def test_letters_are_discarded_by_name_and_the_history_says_why(world: World) -> None:
    world.log.append([{"k": None, "n": 5}, {"k": "a", "n": 1}, {"k": "a", "n": 2}])
    world.run(inverses(world, {1}))
    ledger = Ledger(world.folder / "ledger")
    with pytest.raises(LedgerError, match="no dead letters of 'count'") as error:
        discard(ledger, "count", "a typo")
    assert "Did you mean 'counts'?" in error.value.hint
    assert discard(ledger, "counts", "never had keys") == {"counts": 1}
    assert world.letters() == [("inverse", 1)]
    newest = list(open_ledger(world.folder / "ledger").commits())[-1]
    assert newest.reason == "discard"
    assert (newest.discarded["counts"].letters, newest.discarded["counts"].reason) == (1, "never had keys")
    assert discard(ledger, "all", "enough") == {"inverse": 1}
    assert world.letters() == []


def test_a_retried_row_does_not_go_into_a_step_that_was_added_after_it_failed(world: World) -> None:
    """That step was not given the record: a backfill would read it whole, and count the row twice."""
    world.log.append([{"k": "a", "n": n} for n in range(3)])
    world.run(inverses(world, {1}))
    edited = inverses(world, set())
    hs.Stream(edited, "inverse").fold("later", n=hs.count())
    world.log.append([{"k": "a", "n": 3}])
    world.run(edited)
    coverage = Ledger(world.folder / "ledger").head.coverage
    assert coverage["counts"]["rows"] == {"0": ((0, 4),)}
    assert coverage["later"]["rows"] == {"0": ((3, 4),)}
    assert world.run(edited, retry=True) == Retried(1, 0)
    assert world.table("counts") == [{"k": "a", "n": 4, "total": 6}]
    assert world.table("later") == [{"n": 1}]
    assert Ledger(world.folder / "ledger").head.coverage == coverage


def test_ticks_of_several_tasks_go_on_after_a_retry(spark: SparkSession) -> None:
    storm = hs.Topology("retried")
    rows = storm.spout("rows", hs.Log("x"), schema="k DECIMAL(10,2), n INT")
    rows.fold("counts", by="k", n=hs.count())
    with Driver(storm, spark, tasks=(2,)) as driver:
        for tick in range(2):
            driver.feed("rows", [{"k": "0.15"}, {"k": "0.25"}, "nonsense"])
            driver.advance()
            assert driver.retry() == (tick + 1, tick + 1)
        assert [row["n"] for row in driver.table("counts")] == [2, 2]


def test_a_retried_row_that_comes_too_late_is_counted_as_late(world: World) -> None:
    def hourly(bad: set[int]) -> hs.Topology:
        storm = hs.Topology("numbers")
        rows = storm.spout("rows", world.log, schema="k STRING, n INT, at TIMESTAMP", event_time="at")

        def checked(row: Any) -> dict[str, Any]:
            if row.n in bad:
                raise ValueError(f"not {row.n}")
            return {"k": row.k, "n": row.n}

        made = rows.bolt(checked, name="checked", returns="k STRING, n INT")
        made.window("1 hour", late="drop").fold("hourly", by="k", n=hs.count())
        return storm

    world.log.append([{"k": "a", "n": n, "at": f"2024-01-01T0{n}:30:00Z"} for n in range(4)])
    world.run(hourly({0}))
    assert world.letters() == [("checked", 0)]
    assert Ledger(world.folder / "ledger").head.late == 0
    assert world.run(hourly(set()), retry=True) == Retried(1, 0, late=1)
    assert Ledger(world.folder / "ledger").head.late == 1


def test_a_retry_is_at_the_time_of_the_run(spark: SparkSession) -> None:
    storm = hs.Topology("later")
    rows = storm.spout("rows", hs.Log("x"), schema="n INT, at TIMESTAMP", event_time="at", max_ahead="1 hour")
    rows.fold("n", n=hs.count())
    now = datetime(2030, 1, 1, tzinfo=UTC)
    with Driver(storm, spark, now=now) as driver:
        driver.feed("rows", [{"n": 1, "at": "2030-01-01T02:00:00Z"}])
        driver.advance()
        assert [letter["step"] for letter in driver.errors()] == ["rows"], "two hours ahead"
        driver.advance_to(now + timedelta(hours=2))
        assert driver.retry() == (1, 0)
        assert driver.table("n") == [{"n": 1}]


def test_letters_that_stay_are_told_with_their_own_reason(world: World) -> None:
    storm = hs.Topology("times", error_limit="100%")
    rows = storm.spout("rows", world.log, schema="k STRING, at TIMESTAMP")
    rows.table("newest", key="k", at="at")
    world.log.append([{"k": "a", "at": None}, {"k": None, "at": "2024-01-01T00:00:00Z"}, {"k": "b", "at": None}])
    world.run(storm)
    done = world.run(storm, retry=True)
    assert done is not None
    assert sorted(done.left) == [
        "1 of 'newest' stay: the key is null, which no fix of the code can change. Discard them",
        "2 of 'newest' stay: its time 'at' is null, which no fix of the code can change. Discard them",
    ]
