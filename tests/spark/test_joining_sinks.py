"""Sinks that join a table later, come back, or have lost what they had: they get the whole table first."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Summary
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
