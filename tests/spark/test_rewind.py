"""Rewind: what was live then is live again, sinks hold what they held, and the run that follows knows of nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.errors import RunError, WordError
from hailstorm.faults import inject
from hailstorm.history.rewind import look_back, rewind
from hailstorm.ledger import compaction
from hailstorm.ledger.ledger import Ledger
from hailstorm.testing import Driver
from hailstorm.testing.driver import Crash
from tests.length import only_long
from tests.spark.oracle import after_changes

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[dict[str, Any]]


@dataclass
class Seen:
    n: int = 0


class Watch(hs.Process):
    state = Seen
    returns = "u STRING, n BIGINT"

    def on_event(self, key: str, event: Any, state: Seen, timers: Any) -> Any:
        state.n += event.n
        timers.set("silence", event._time + timedelta(minutes=10))
        yield {"u": key, "n": state.n}

    def on_timer(self, key: str, timer: Any, state: Seen, timers: Any) -> Any:
        state.n = 0
        yield {"u": key, "n": -1}


def everything() -> hs.Topology:
    """A table of every kind."""
    storm = hs.Topology("everything")
    schema = "u STRING, n INT, at TIMESTAMP"
    clicks = storm.spout("clicks", hs.Log("x"), schema=schema, event_time="at", lateness="2 minutes")
    users = storm.table("users", hs.Log("y"), schema="u STRING, team STRING, gone BOOLEAN", key="u", deletes="gone")
    counts = clicks.fold("counts", by="u", n=hs.count(), mean=hs.mean("n"), most=hs.max("n"))
    counts.where("many", "n > 2").select("shown", twice="n * 2").sink("board", hs.Console())
    counts.top("best", 3, by="n")
    counts.join("named", users, on="u", how="left").fold("teams", by="team", n=hs.sum("n"), most=hs.max("most"))
    clicks.window("5 minutes", every="2 minutes").fold("sliding", by="u", n=hs.count())
    clicks.window("5 minutes", emit="final").fold("final", by="u", n=hs.count())
    clicks.session("3 minutes").fold("sessions", by="u", n=hs.count())
    clicks.distinct("first", by="u", within="10 minutes").fold("firsts", n=hs.count())
    clicks.process("watch", by="u", using=Watch).fold("watched", by="u", n=hs.sum("n"), rows=hs.count())
    clicks.lookup("teamed", users, on="u").fold("by_team", by="team", n=hs.count())
    return storm


TABLES = (
    *("users", "counts", "best", "named", "teams", "sliding", "final", "sessions", "firsts"),
    *("watched", "by_team"),
)
SHOWN = (*TABLES, "many", "shown")


def feed(driver: Driver, chance: random.Random, tick: int) -> None:
    rows: Rows = []
    for _ in range(chance.randrange(1, 9)):
        at = BEGIN + timedelta(seconds=60 * tick + chance.randrange(-200, 60))
        rows.append({"u": f"u{chance.randrange(6)}", "n": chance.randrange(5), "at": at.isoformat()})
    driver.feed("clicks", [*rows, "not JSON"] if chance.random() < 0.1 else rows)
    if chance.random() < 0.5:
        user = {"u": f"u{chance.randrange(6)}", "team": f"t{chance.randrange(3)}", "gone": chance.random() < 0.3}
        driver.feed("users", [user])


def seen(driver: Driver) -> dict[str, Any]:
    """All that can be seen of a moment."""
    head = driver.ledger.head
    fields = ("clock", "watermark", "watermarks", "rows", "errors", "late", "reached", "coverage")
    return {
        **{name: driver.table(name) for name in TABLES},
        **{name: getattr(head, name) for name in fields},
        "letters": [(one["offset"], one["reason"]) for one in driver.errors()],
    }


def delivered(driver: Driver) -> dict[str, Any]:
    """What sinks of the tables hold."""
    found = {}
    for name in SHOWN:
        step = driver.topology.step(name)
        values = [column.name for column in step.schema if column.name not in step.key]
        found[name] = sorted(after_changes(driver.rows(name), step.key, values), key=repr)
    return found


@pytest.mark.parametrize(("seed", "tasks"), [only_long(1, 1), only_long(2, 2), (3, 0)])
def test_after_a_rewind_nobody_can_tell_that_we_were_elsewhere(
    spark: SparkSession, seed: int, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "FAN_IN", 3)  # so that runs of then are merged by now
    chance = random.Random(seed)
    with Driver(everything(), spark, tasks=(tasks,)) as driver:
        moments: dict[int, Any] = {}
        for tick in range(6):
            feed(driver, chance, tick)
            driver.advance()
            moments[driver.ledger.head.commit] = seen(driver), delivered(driver)
        last = moments[driver.ledger.head.commit]
        for to, point in zip(chance.sample(sorted(moments)[:-1], 2), ("before-commit", "after-commit"), strict=True):
            with inject(point, Crash(point)), pytest.raises(Crash):
                driver.rewind(to)
            if point == "before-commit":  # nothing has happened; afterwards all of it has
                driver.rewind(to)
            driver.restart()
            assert (seen(driver), delivered(driver)) == moments[to]
            assert driver.ledger.head.rewound
            driver.advance()
        now = seen(driver), delivered(driver)
        # Ticks are cut elsewhere, so what is late may be another row; tables that do not ask for that are equal.
        for name in ("users", "counts", "best", "named", "teams"):
            assert now[0][name] == last[0][name], name
            assert now[1][name] == last[1][name], name
        forward = max(moments)
        driver.rewind(forward)
        assert (seen(driver), delivered(driver)) == last


def test_a_sink_of_a_stream_that_has_got_rows_since_needs_a_word(spark: SparkSession) -> None:
    storm = hs.Topology("streams")
    rows = storm.spout("rows", hs.Log("x"), schema="k INT")
    rows.sink("copies", hs.Console())
    rows.fold("counts", by="k", n=hs.count()).sink("table", hs.Console())
    with Driver(storm, spark) as driver:
        for number in (1, 2):
            driver.feed("rows", [{"k": number}])
            driver.advance()
        before = driver.ledger.head
        ledger = Ledger(driver.ledger.root)
        plan = compile_topology(spark, driver.topology, 1)
        with pytest.raises(RunError, match=r"HS-RUN-041  sinks of streams have got rows .*'copies'"):
            rewind(spark, driver.topology, ledger, plan, 2)
        with pytest.raises(RunError, match=f"HS-RUN-040  the ledger is at commit {before.commit} already"):
            rewind(spark, driver.topology, ledger, plan, before.commit)
        assert Ledger(driver.ledger.root).head == before
        found = look_back(driver.topology, ledger, 2)
        assert (found.records, found.keys["counts"]) == ({"rows": 1}, {"delete": 1})
        assert "copies" in found.streams
        assert "table" in found.tables
        driver.rewind(0)  # to before the first commit: everything begins again
        assert driver.table("counts") == []
        driver.advance()
        assert driver.table("counts") == [{"k": 1, "n": 1}, {"k": 2, "n": 1}]
        assert [row["_kind"] for row in driver.rows("table")] == [
            "insert",
            "insert",
            "delete",
            "delete",
            "insert",
            "insert",
        ]


def mended(storm: hs.Topology, factor: int) -> hs.Topology:
    clicks = storm.spout("clicks", hs.Log("x"), schema="u STRING, n INT, at TIMESTAMP", event_time="at")
    counts = clicks.select("scaled", u="u", m=f"n * {factor}").fold("sums", by="u", m=hs.sum("m"), n=hs.count())
    counts.top("best", 2, by="m")
    clicks.fold("counts", by="u", n=hs.count())
    clicks.window("2 minutes", emit="final").fold("windows", by="u", n=hs.sum("n"))
    clicks.process("watch", by="u", using=Watch).fold("watched", by="u", n=hs.sum("n"), rows=hs.count())
    return storm


@pytest.mark.parametrize(("seed", "tasks"), [(1, 1), only_long(2, 2)])
def test_steps_that_go_back_are_made_again_and_all_others_stay(spark: SparkSession, seed: int, tasks: int) -> None:
    """A deploy has scaled wrongly since some commit: the sums of then and what came since, scaled rightly."""
    chance, all_rows, wrong_since = random.Random(seed), Rows(), 0
    with Driver(mended(hs.Topology("mended"), 1), spark, tasks=(tasks,)) as driver:
        for tick in range(6):
            if tick == 2:
                wrong_since = driver.ledger.head.commit
                driver.restart(mended(hs.Topology("mended"), 100))
            at = BEGIN + timedelta(minutes=tick)
            rows = [
                {"u": f"u{chance.randrange(4)}", "n": chance.randrange(1, 9), "at": at.isoformat()} for _ in range(5)
            ]
            all_rows += rows
            driver.feed("clicks", rows)
            driver.advance()
        others = {name: driver.table(name) for name in ("counts", "windows", "watched")}
        commit = driver.ledger.head.commit
        right = mended(hs.Topology("mended"), 1)
        with inject("after-commit", Crash("after-commit")), pytest.raises(Crash):  # in the inner ledger
            driver.rewind(wrong_since, right, steps=("scaled",))
        driver.rewind(wrong_since, right, steps=("scaled",))
        assert driver.ledger.head.commit == commit + 1
        sums: dict[str, list[int]] = {}
        for row in all_rows:
            sums.setdefault(row["u"], []).append(row["n"])
        wanted = [{"u": u, "m": sum(values), "n": len(values)} for u, values in sorted(sums.items())]
        assert driver.table("sums") == wanted
        best = sorted(wanted, key=lambda row: (-row["m"], row["u"]))[:2]
        assert sorted((row["u"], row["m"]) for row in driver.table("best")) == sorted((r["u"], r["m"]) for r in best)
        assert {name: driver.table(name) for name in others} == others
        driver.rewind(wrong_since, steps=("windows", "watch"))  # nothing is wrong with these: they stay as they are
        assert {name: driver.table(name) for name in others} == others
        driver.feed("clicks", [{"u": "u0", "n": 1, "at": (BEGIN + timedelta(hours=1)).isoformat()}])
        driver.advance()
        assert driver.table("sums")[0] == {"u": "u0", "m": wanted[0]["m"] + 1, "n": wanted[0]["n"] + 1}


def test_steps_that_cannot_go_back_say_why(spark: SparkSession) -> None:
    with Driver(mended(hs.Topology("mended"), 1), spark) as driver:
        driver.feed("clicks", [{"u": "a", "n": 1, "at": BEGIN.isoformat()}])
        driver.advance()
        to = driver.ledger.head.commit
        with pytest.raises(WordError, match=r"there is no step 'summs'(?s:.)*sums"):
            driver.rewind(to, steps=("summs",))
        with pytest.raises(RunError, match="HS-RUN-055  step 'sums' was not there at commit 0"):
            driver.rewind(0, steps=("sums",))
        driver.restart()
        assert driver.table("counts") == [{"u": "a", "n": 1}]
        driver.feed("clicks", [{"u": "a", "n": 1, "at": BEGIN.isoformat()}])
        driver.advance()
        ahead = driver.ledger.head.commit
        driver.rewind(to)
        with pytest.raises(RunError, match=f"HS-RUN-055  commit {ahead} has read more than the ledger has now"):
            driver.rewind(ahead, steps=("sums",))
