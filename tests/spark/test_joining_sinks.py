"""Sinks that join a table later, come back, or have lost what they had: they get the whole table first."""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import hailstorm as hs
from hailstorm.cli.app import app
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Progress, Summary
from hailstorm.engine.run import run_topology
from hailstorm.ledger.ledger import Ledger
from hailstorm.spouts import Log

pytestmark = pytest.mark.spark


class Place:
    """A log, a ledger and a database; the topology differs from run to run."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.log = Log(folder / "log").create(1)
        self.ledger = folder / "ledger"

    def sqlite(self, table: str) -> Any:
        return hs.Sqlite(self.folder / "out.db", table=table)

    def run(self, letters: str, *sinks: str, least: int = 0, resend: str = "", top: bool = False) -> Summary:
        """Count letters, and deliver the counts to these sinks, each a table of its own name."""
        self.log.append([{"k": letter} for letter in letters])
        storm = hs.Topology("joining")
        counts = storm.spout("letters", self.log, schema="k STRING").fold("counts", by="k", n=hs.count())
        for sink in sinks:
            table = counts
            if sink.startswith("some"):
                table = counts.where("many", f"n > {least}").select("shown", twice="n * 2")
            table.sink(sink, self.sqlite(sink))
        if top:
            counts.top("top", 2, by="n").sink("best", self.sqlite("best"))
        negotiator = Negotiator(self.spark, storm, Ledger(self.ledger, create=True), ways=(1,))
        try:
            negotiator.start(resend=(resend,) if resend else ())
            return negotiator.run(negotiator.logs.look(negotiator.position()).ends, threading.Event())
        except BaseException:
            negotiator.fail()
            raise

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.folder / "out.db")
        found = connection.execute(f"SELECT * FROM {table} ORDER BY k").fetchall()
        connection.close()
        return found

    def do(self, statement: str) -> None:
        connection = sqlite3.connect(self.folder / "out.db")
        connection.execute(statement)
        connection.commit()
        connection.close()


@pytest.fixture
def place(spark: SparkSession, tmp_path: Path) -> Place:
    return Place(spark, tmp_path)


def test_a_sink_that_is_added_later_gets_the_whole_table_and_then_the_changes(place: Place) -> None:
    place.run("aab", "all_first")
    assert place.run("bc", "all_first", "all_later", "some_later", top=True).undelivered == ()
    assert place.rows("all_later") == place.rows("all_first") == [("a", 2), ("b", 2), ("c", 1)]
    assert place.rows("some_later") == [("a", 4), ("b", 4), ("c", 2)]
    assert [row[:2] for row in place.rows("best")] == [("a", 2), ("b", 2)]
    place.run("c", "all_first", "all_later", "some_later", top=True)
    assert place.rows("all_later") == place.rows("all_first") == [("a", 2), ("b", 2), ("c", 2)]
    commits = [found for found in map(Ledger(place.ledger).read_commit, range(1, 20)) if found is not None]
    wholes = sorted(sink for commit in commits for sink in commit.whole)
    # Not the first one, which was there, nor `best`: its step is as new as it is, so its outbox has everything.
    assert wholes == ["all_later", "some_later"], "each once"


def test_a_sink_that_joins_when_nothing_is_new_gets_its_table_all_the_same(place: Place) -> None:
    place.run("aab", "all_first")
    assert place.run("", "all_first", "all_later").undelivered == ()
    assert place.rows("all_later") == [("a", 2), ("b", 1)]


def test_a_sink_that_was_away_for_a_run_has_the_right_table_again(place: Place) -> None:
    place.run("ab", "all_first", "some_away")
    place.run("ab", "all_first")
    place.run("c", "all_first", "some_away", least=1)
    assert place.rows("some_away") == [("a", 4), ("b", 4)]


def test_a_changed_predicate_before_a_sink_changes_the_whole_table(place: Place) -> None:
    place.run("aab", "some_rows")
    place.run("", "some_rows", least=1)
    assert place.rows("some_rows") == [("a", 4)]


def test_a_table_that_has_become_empty_is_emptied(place: Place) -> None:
    place.run("aab", "some_rows")
    assert place.run("", "some_rows", least=9).undelivered == ()
    assert place.rows("some_rows") == []
    place.run("aaaaaaaa", "some_rows", least=9)
    assert place.rows("some_rows") == [("a", 20)]


def test_a_dropped_table_with_its_cursor_left_is_noticed_and_sent_again(place: Place) -> None:
    place.run("aab", "all_rows")
    for lost in ("DROP TABLE all_rows", "DELETE FROM all_rows"):
        place.do(lost)
        (left,) = place.run("", "all_rows").undelivered
        assert "HS-SNK-063" in str(left.error)
        assert "hailstorm resend APP all_rows" in str(left.error)
        assert place.run("", "all_rows", resend="all_rows").undelivered == ()
        assert place.rows("all_rows") == [("a", 2), ("b", 1)]
    place.run("c", "all_rows")
    assert place.rows("all_rows") == [("a", 2), ("b", 1), ("c", 1)]


def test_a_table_that_is_gone_with_its_cursor_is_made_again(place: Place) -> None:
    place.run("aab", "all_rows")
    (place.folder / "out.db").unlink()
    for extra in ("-wal", "-shm"):
        (place.folder / f"out.db{extra}").unlink(missing_ok=True)
    assert place.run("c", "all_rows").undelivered == ()
    assert place.rows("all_rows") == [("a", 2), ("b", 1), ("c", 1)]


def test_a_new_ledger_is_refused_by_the_old_target_until_its_table_is_sent(place: Place) -> None:
    place.run("aab", "all_rows")
    place.ledger = place.folder / "another"
    (left,) = place.run("", "all_rows").undelivered
    assert "HS-SNK-060" in str(left.error)
    assert place.run("c", "all_rows", resend="all_rows").undelivered == ()
    assert place.rows("all_rows") == [("a", 2), ("b", 1), ("c", 1)]


def test_rows_of_somebody_else_are_not_replaced_without_a_word(place: Place) -> None:
    place.run("aab", "all_first")
    place.do("CREATE TABLE all_mine (k TEXT, n INTEGER)")
    place.do("INSERT INTO all_mine VALUES ('mine', 1)")
    (left,) = place.run("", "all_first", "all_mine").undelivered
    assert "HS-SNK-064" in str(left.error)
    assert place.rows("all_mine") == [("mine", 1)]


def test_a_sink_that_was_removed_is_shown_no_more_and_pauses_nobody(spark: SparkSession, tmp_path: Path) -> None:
    log, root = Log(tmp_path / "log").create(1), tmp_path / "ledger"

    def down(rows: list[Any]) -> None:
        raise ConnectionError("down")

    def run(*sinks: str, ticks: int) -> tuple[int, str]:
        storm = hs.Topology("pausing", outbox_limit=1)
        letters = storm.spout("letters", log, schema="k STRING")
        for sink in sinks:
            letters.sink(sink, hs.Call(down) if sink == "gone" else hs.Call(len))
        negotiator = Negotiator(spark, storm, Ledger(root, create=True), ways=(1,))
        negotiator.start()
        try:
            for _ in range(ticks):
                log.append([{"k": "a"}])
                negotiator.tick()
            return negotiator.ledger.head.rows, negotiator.account.last.phase
        finally:
            negotiator.fail()

    read, phase = run("stays", "gone", ticks=6)
    assert read < 6 and phase == "paused"
    read, phase = run("stays", ticks=3)
    assert read == 9 and phase != "paused"
    shown = CliRunner().invoke(app, ["status", str(root), "--json"])
    assert set(json.loads(shown.stdout)["sinks"]) == {"stays"}
    assert "gone" not in CliRunner().invoke(app, ["status", str(root)]).output


def test_a_sink_of_a_stream_starts_from_now_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    log, root = Log(tmp_path / "log").create(1), tmp_path / "ledger"

    def run(letters: str, *sinks: str) -> dict[str, str | None]:
        log.append([{"k": letter} for letter in letters])
        storm = hs.Topology("streaming")
        stream = storm.spout("letters", log, schema="k STRING")
        for sink in sinks:
            stream.sink(sink, hs.Sqlite(tmp_path / "out.db", table=sink))
        notes: dict[str, str | None] = {}

        def told(progress: Progress) -> None:
            notes.update({name: state.note for name, state in progress.sinks.items()})

        assert run_topology(storm, ledger=root, until="caught-up", on_progress=told).undelivered == ()
        return notes

    def rows(table: str) -> str:
        connection = sqlite3.connect(tmp_path / "out.db")
        found = connection.execute(f"SELECT k FROM {table} ORDER BY rowid").fetchall()
        connection.close()
        return "".join(letter for (letter,) in found)

    assert run("ab", "first") == {"first": None}
    assert "starts from now: what came before commit" in str(run("cd", "first", "later")["later"])
    assert (rows("first"), rows("later")) == ("abcd", "cd")
    run("e", "later")
    assert "starts from now: what came before commit" in str(run("f", "first", "later")["first"])
    assert (rows("first"), rows("later")) == ("abcdf", "cdef")


def test_rows_that_wait_from_before_a_new_column_have_null_there(spark: SparkSession, tmp_path: Path) -> None:
    log, got, is_down = Log(tmp_path / "log").create(1), list[Any](), [True]

    def deliver(rows: list[Any]) -> None:
        if is_down[0]:
            raise ValueError("a bug")
        got.extend(map(dict, rows))

    def run(schema: str, row: dict[str, Any]) -> Summary:
        log.append([row])
        storm = hs.Topology("wider")
        storm.spout("rows", log, schema=schema).sink("out", hs.Call(deliver))
        return run_topology(storm, ledger=tmp_path / "ledger", until="caught-up")

    assert len(run("k STRING", {"k": "a"}).undelivered) == 1
    is_down[0] = False
    assert run("k STRING, n INT", {"k": "b", "n": 1}).undelivered == ()
    assert got == [{"k": "a", "n": None}, {"k": "b", "n": 1}]
