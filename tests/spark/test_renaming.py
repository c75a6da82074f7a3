"""A step or a sink that is renamed goes on where it was: nothing can tell that it had another name."""

from __future__ import annotations

import random
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine import run
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.errors import LedgerError, RunError
from hailstorm.faults import inject
from hailstorm.history.audit import Audit
from hailstorm.history.opened import open_ledger
from hailstorm.history.planning import planned_changes
from hailstorm.history.replay import Replay
from hailstorm.history.rewind import rewind_topology
from hailstorm.history.rewind_steps import rewind_steps
from hailstorm.history.verify import verify
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from hailstorm.topology.topology import Topology

T0 = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = (
    "counts",
    "biggest",
    "hourly",
    "visits",
    "watch",
    "once",
    "sorted",
    "newest",
    "pairs",
    "view",
    "then",
    "of_counts",
)
SINKS = ("alarms", "lines", "matched", "looked", "board", "hours", "late")


@dataclass
class Seen:
    n: int = 0
    last: str = ""


class Watch(hs.Process):
    state = Seen
    returns = "word STRING, n BIGINT"

    def on_event(self, key, event, state, timers):  # type: ignore[no-untyped-def]
        if event.word == "bad":
            raise ValueError("a bad word")
        state.n += 1
        timers.set("quiet", event.at + timedelta(minutes=7))
        yield {"word": event.word, "n": state.n}

    def on_timer(self, key, timer, state, timers):  # type: ignore[no-untyped-def]
        yield {"word": "quiet", "n": state.n}


def everything(suffix: str = "") -> Topology:
    """A topology with every kind of step that keeps state; with a suffix, all of them are renamed."""

    def name(step: str) -> dict[str, Any]:
        return {"renamed_from": step} if suffix else {}

    storm = hs.Topology("renamed")
    events = storm.spout(
        "events",
        hs.Log("x"),
        schema="word STRING, user STRING, n BIGINT, at TIMESTAMP",
        event_time="at",
        lateness="2 minutes",
    )
    counts = events.fold("counts" + suffix, by="word", n=hs.count(), most=hs.max("n"), **name("counts"))
    counts.top("biggest" + suffix, 2, by="n", **name("biggest"))
    hourly = events.window("10 minutes", every="5 minutes", emit="final").fold(
        "hourly" + suffix, by="word", n=hs.sum("n"), **name("hourly")
    )
    events.session("3 minutes").fold("visits" + suffix, by="user", n=hs.count(), **name("visits"))
    watch = events.process("watch" + suffix, by="user", using=Watch, **name("watch"))
    watch.sink("alarms" + suffix, hs.Console(), **name("alarms"))
    once = events.distinct("once" + suffix, by="word", within="5 minutes", **name("once"))
    events.ordered("sorted" + suffix, **name("sorted")).sink("lines" + suffix, hs.Console(), **name("lines"))
    newest = events.table("newest" + suffix, key="user", **name("newest"))
    pairs = once.join("pairs" + suffix, events, on="word", within="4 minutes", how="left", **name("pairs"))
    pairs.sink("matched" + suffix, hs.Console(), **name("matched"))
    counts.join("view" + suffix, counts, on="word", **name("view"))
    events.lookup("then" + suffix, newest, on="user", as_of="event time", **name("then")).sink(
        "looked" + suffix, hs.Console(), **name("looked")
    )
    counts.fold("of_counts" + suffix, n=hs.sum("n"), most=hs.max("most"), **name("of_counts"))
    counts.sink("board" + suffix, hs.Console(), **name("board"))
    hourly.sink("hours" + suffix, hs.Console(), **name("hours"))
    hourly.late.sink("late" + suffix, hs.Console(), **name("late"))
    return storm


def rows_of(rng: random.Random, minute: int) -> list[dict[str, Any]]:
    return [
        {
            "word": rng.choice(["hail", "rain", "snow", "sleet"] + ["bad"] * (rng.random() < 0.1)),
            "user": rng.choice("abc"),
            "n": rng.randrange(9),
            "at": (T0 + timedelta(minutes=minute + rng.choice([0, 0, 0, 1, -1, -6]), seconds=rng.randrange(60))),
        }
        for _ in range(rng.randrange(3, 12))
    ]


def written(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "at": row["at"].isoformat()} for row in rows]


def what_is_left(driver: Driver, renamed: bool) -> dict[str, Any]:
    suffix = "_two" if renamed else ""
    found: dict[str, Any] = {}
    for step in STEPS:
        shown = driver.ledger.head.steps[step + suffix].key
        found[step] = sorted(map(repr, driver.table(step + suffix))) if shown else []
    for sink in SINKS:
        names = (sink, sink + suffix) if renamed else (sink,)
        rows = [row for name in names for row in _outbox(driver, name)]
        found[sink] = sorted(map(repr, rows))
    found["letters"] = sorted(repr({**row, "step": row["step"].removesuffix("_two")}) for row in driver.errors())
    head = driver.ledger.head
    found["coverage"] = {name.removesuffix("_two"): spans for name, spans in head.coverage.items()}
    found["watermarks"] = {_plain(name): marks for name, marks in head.watermarks.items() if not name.startswith("tap")}
    return found


def _plain(name: str) -> str:
    return name.replace("_two", "")


def _outbox(driver: Driver, sink: str) -> list[dict[str, Any]]:
    return [
        row
        for commit in open_ledger(driver.ledger.root).commits()
        for file in commit.outbox.get(sink, ())
        for row in read_table(driver.ledger.store, file.path).to_pylist()
    ]


@pytest.mark.parametrize("seed", [3, pytest.param(8, marks=pytest.mark.soak)])
def test_renaming_everything_at_any_moment_equals_never_having_done_so(spark: SparkSession, seed: int) -> None:
    rng = random.Random(seed)
    ticks = [rows_of(rng, 4 * tick) for tick in range(6)]
    when = rng.randrange(1, 6)
    now = T0 + timedelta(hours=1)
    left = {}
    for renamed in (False, True):
        with Driver(everything(), spark, now=now) as driver:
            for tick, rows in enumerate(ticks):
                if renamed and tick == when:
                    driver.restart(everything("_two"))
                driver.feed("events", written(rows))
                driver.advance()
            driver.complete()
            left[renamed] = what_is_left(driver, renamed)
    for part in left[False]:
        assert left[True][part] == left[False][part], part


def words(target: Path, table: str = "counts", sink: str = "board", was: bool = False) -> Topology:
    storm = hs.Topology("words")
    lines = storm.spout("lines", hs.Log("x"), schema="word STRING")
    counts = lines.fold(table, by="word", n=hs.count(), renamed_from="counts" if was else None)
    big = counts.where("big", "n > 1")
    big.sink(sink, hs.Sqlite(str(target), table="board"), renamed_from="board" if was else None)
    counts.fold("all", n=hs.sum("n"))
    return storm


def board(target: Path) -> dict[str, int]:
    with sqlite3.connect(target) as connection:
        return dict(connection.execute("SELECT word, n FROM board"))


def test_a_sink_goes_on_where_it_was_and_one_can_look_back_across_the_new_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    target = tmp_path / "board.db"
    with Driver(words(target), spark, deliver=True) as driver:
        driver.feed("lines", [{"word": "hail"}] * 2)
        driver.advance()
        driver.stop()
        assert board(target) == {"hail": 2}
        driver.restart()
        with inject("before-delivery", RuntimeError("the target is gone")):  # what comes now waits in the outbox
            driver.feed("lines", [{"word": "rain"}] * 3)
            driver.advance()
            driver.stop()
        before = driver.ledger.head.commit
        assert board(target) == {"hail": 2}

        new = words(target, "totals", "wall", was=True)
        edited = driver._surrounded(new)
        plan = compile_topology(spark, edited, 1)
        changes = {one.step: one.change for one in planned_changes(edited, driver.ledger, plan)}
        assert {step: changes[step] for step in ("totals", "wall", "big", "all")} == {
            "totals": "renamed",
            "wall": "renamed",
            "big": "unchanged",
            "all": "unchanged",
        }
        driver.restart(new)
        assert board(target) == {"hail": 2, "rain": 3}, "what waited is there before the sink has its new name"
        driver.feed("lines", [{"word": "hail"}, {"word": "snow"}])
        driver.advance()
        driver.stop()
        assert board(target) == {"hail": 3, "rain": 3}
        assert not [c for c in driver.ledger.commits(before) if "wall" in c.whole], "it did not lack its table"
        with sqlite3.connect(target) as connection:
            assert connection.execute("SELECT sink FROM hailstorm_cursors").fetchall() == [("board",)]

        reader = open_ledger(driver.ledger.root)
        assert reader.state("counts", before).arrow().num_rows == 2
        assert reader.state("totals", before).arrow().num_rows == 2
        with pytest.raises(LedgerError) as caught:
            reader.state("counts")
        assert "It is called 'totals' since commit " in caught.value.render()
        assert [row["kind"] for row in reader.diff("totals", before, "latest").arrow().to_pylist()] == [
            "update",
            "insert",
        ]
        assert (driver.root / "ledger/delta/totals/_delta_log").exists()
        assert not (driver.root / "ledger/delta/counts").exists()
        assert not verify(driver.ledger).problems
        plain = driver._fed_by_test(new)  # without the driver's own sinks, which came with the new names
        audited = Audit(spark, plain, driver.ledger, driver.ledger.newest()).run()
        assert {one.step: (one.skipped, one.comparison.different) for one in audited} == {
            "totals": ("", 0),
            "all": ("", 0),
        }
        replayed = Replay(spark, plain, driver.ledger).run(driver.ledger.at(1), driver.ledger.head.commit)
        assert replayed.commits >= 3
        assert not replayed.unlike

        driver.restart(words(target, "totals", "wall"))  # the word may go once it is done
        driver.rewind(before)
        driver.stop()
        assert driver.table("totals") == [{"word": "hail", "n": 2}, {"word": "rain", "n": 3}]
        assert board(target) == {"hail": 2, "rain": 3}
        driver.restart()
        driver.advance()
        driver.stop()
        assert driver.table("totals") == [{"word": "hail", "n": 3}, {"word": "rain", "n": 3}, {"word": "snow", "n": 1}]
        assert driver.table("all") == [{"n": 7}]
        assert board(target) == {"hail": 3, "rain": 3}
        assert not verify(driver.ledger).problems


def one_step(name: str, by: str = "word", kind: str = "fold", renamed_from: str | None = None) -> Topology:
    storm = hs.Topology("words")
    lines = storm.spout("lines", hs.Log("x"), schema="word STRING, n BIGINT")
    if kind == "table":
        lines.table(name, key="word", renamed_from=renamed_from)
    else:
        lines.fold(name, by=by, seen=hs.count(), renamed_from=renamed_from)
    return storm


def test_wrong_names_are_refused_and_change_nothing(spark: SparkSession) -> None:
    with Driver(one_step("counts"), spark) as driver:
        driver.feed("lines", [{"word": "hail", "n": 1}])
        driver.advance()
        head = driver.ledger.head.commit
        for topology, code in (
            (one_step("totals", renamed_from="count"), "HS-RUN-060"),
            (one_step("totals", renamed_from="counts", kind="table"), "HS-RUN-062"),
            (one_step("totals", renamed_from="counts", by="n"), "HS-RUN-009"),
        ):
            with pytest.raises(RunError) as caught:
                driver.restart(topology)
            assert caught.value.code == code
            assert driver.ledger.newest().commit == head
        driver.restart(one_step("totals"))  # forgot to say it
        with pytest.raises(RunError) as caught:
            driver.restart(one_step("totals", renamed_from="counts"))
        assert caught.value.code == "HS-RUN-061"
    with Driver(one_step("totals", renamed_from="counts"), spark) as driver:  # a ledger that never knew the old name
        driver.restart(one_step("totals", renamed_from="counts"))


def test_a_rewind_that_is_refused_does_not_rename(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    def storm(name: str, was: str | None = None, monoid: Any = None) -> hs.Topology:
        found = hs.Topology("renamed")
        rows = found.spout("rows", hs.Log("rows"), schema="k STRING, n INT")
        rows.fold(name, by="k", n=monoid or hs.sum("n"), renamed_from=was).sink("board", hs.Console())
        rows.sink("copies", hs.Console())
        return found

    monkeypatch.setattr(run, "start_session", lambda *words: spark)
    with Driver(storm("counts"), spark) as driver:
        root = driver.ledger.root
        for number in (1, 2):
            driver.feed("rows", [{"k": "a", "n": number}])
            driver.advance()
        before = driver.ledger.newest()
        renamed = driver._surrounded(storm("totals", "counts"))
        other = driver._surrounded(storm("totals", "counts", hs.max("n")))
        driver._negotiator.fail()

        with pytest.raises(RunError, match="HS-RUN-041"):
            rewind_topology(renamed, before.commit - 1, ledger=root)
        with pytest.raises(RunError, match="HS-RUN-040"):
            rewind_topology(renamed, "latest", ledger=root)
        with pytest.raises(RunError, match="HS-RUN-013  fold 'totals' has another monoid"):
            rewind_topology(other, before.commit - 1, ledger=root, append="keep")
        with pytest.raises(RunError, match="HS-RUN-055  step 'totals' was not there"):
            rewind_steps(renamed, 0, ("totals",), ledger=root)
        assert Ledger(root).head == before
        done = rewind_topology(renamed, "latest-1", ledger=root, append="keep")
        assert (done.to, done.commit) == (before.commit - 1, before.commit + 2), "the renaming, and the rewind"
        assert open_ledger(root).state("totals").arrow().to_pylist() == [{"k": "a", "n": 1}]
