"""Rows that a table of the user's own does not take: dead letters of their sink, and their second chance.

Against Sqlite and DuckDB, with real delivery and a real ledger, and without Spark.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from hailstorm.engine.delivery.courier import columns_of
from hailstorm.engine.delivery.second_chance import SecondChance, second_chance
from hailstorm.errors import SinkError
from hailstorm.faults import inject
from hailstorm.ledger.ledger import next_commit
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.stores.store import read_table
from hailstorm.sinks.duckdb import DuckDB
from hailstorm.sinks.sink import Delivery, Parcel, Rejected
from hailstorm.sinks.sqlite import Sqlite
from hailstorm.topology import ends
from tests.connectors.delivering import Outgoing, board
from tests.connectors.sink_contract import COUNTS, changes, got, stream, stream_delivery

Table = Sqlite | DuckDB
LIMITED = "CREATE TABLE words (word TEXT, n BIGINT CHECK (n < 100))"


class Database:
    """A database file of one kind, and what SQL says of it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.path = folder / f"own.{kind}"
        self.connect: Callable[[str], Any] = sqlite3.connect if kind == "sqlite" else duckdb.connect
        self.sink: Table = Sqlite(self.path, "words") if kind == "sqlite" else DuckDB(self.path, "words")

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        connection = self.connect(str(self.path))
        try:
            rows: list[tuple[Any, ...]] = connection.execute(statement).fetchall()
            connection.commit()
            return rows
        finally:
            connection.close()

    def mend(self) -> None:
        """The same rows in a table without constraints."""
        self.query("CREATE TABLE copied AS SELECT * FROM words")
        self.query("DROP TABLE words")
        self.query("ALTER TABLE copied RENAME TO words")

    def rows(self) -> list[tuple[Any, ...]]:
        return sorted(self.query("SELECT word, n FROM words"))


@pytest.fixture(params=["sqlite", "duckdb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    return Database(request.param, tmp_path)


def keeping(letters: dict[int, list[Rejected]], key: tuple[str, ...] = ()) -> Delivery:
    def reject(commit: int, rows: Any) -> None:
        letters[commit] = list(rows)

    return Delivery("trending", "board", "ledger", COUNTS, key, bool(key), reject=reject)


# Rejecting


def test_a_row_that_breaks_a_constraint_is_rejected_and_the_others_arrive(database: Database) -> None:
    database.query(LIMITED)
    letters: dict[int, list[Rejected]] = {}
    database.sink.open(keeping(letters))
    database.sink.deliver(Parcel.of(1, stream(("rain", 1), ("hail", 100), ("snow", 3), ("sleet", 101))))
    assert got(database.sink) == 1
    database.sink.close()
    assert [letter.row for letter in letters[1]] == [1, 3]
    assert "CHECK constraint failed" in letters[1][0].reason
    assert database.rows() == [("rain", 1), ("snow", 3)]


def test_a_refused_update_leaves_the_row_that_was_there(database: Database) -> None:
    database.query("CREATE TABLE words (word TEXT PRIMARY KEY, n BIGINT CHECK (n < 100))")
    letters: dict[int, list[Rejected]] = {}
    database.sink.open(keeping(letters, ("word",)))
    database.sink.deliver(Parcel.of(1, changes(("insert", "rain", 1), ("insert", "hail", 1))))
    database.sink.deliver(Parcel.of(2, changes(("update", "rain", 100), ("update", "hail", 2))))
    database.sink.deliver(Parcel.of(3, changes(("delete", "hail", None), ("insert", "snow", 5))))
    database.sink.close()
    assert {commit: [letter.row for letter in found] for commit, found in letters.items()} == {2: [0]}
    assert database.rows() == [("rain", 1), ("snow", 5)]


def test_of_rows_that_exclude_each_other_the_first_is_taken(database: Database) -> None:
    database.query("CREATE TABLE words (word TEXT, n BIGINT UNIQUE)")
    letters: dict[int, list[Rejected]] = {}
    database.sink.open(keeping(letters))
    database.sink.deliver(Parcel.of(1, stream(("rain", 1), ("hail", 2), ("snow", 1), ("sleet", 3), ("fog", 2))))
    database.sink.close()
    assert [letter.row for letter in letters[1]] == [2, 4]
    assert database.rows() == [("hail", 2), ("rain", 1), ("sleet", 3)]


def test_many_rows_with_few_bad_ones_between_them(database: Database) -> None:
    database.query("CREATE TABLE words (word TEXT NOT NULL, n BIGINT CHECK (n % 997 <> 5))")
    letters: dict[int, list[Rejected]] = {}
    database.sink.open(keeping(letters))
    database.sink.deliver(Parcel.of(1, stream(*((None if n == 4000 else f"word {n}", n) for n in range(5000)))))
    database.sink.close()
    bad = sorted([4000, *(n for n in range(5000) if n % 997 == 5)])
    assert [letter.row for letter in letters[1]] == bad
    assert database.query("SELECT count(*), sum(n) FROM words") == [(5000 - len(bad), sum(range(5000)) - sum(bad))]


def test_a_target_that_refuses_everything_stops_its_sink_and_is_given_all_when_mended(
    database: Database, tmp_path: Path
) -> None:
    database.query("CREATE TABLE words (word TEXT, n BIGINT CHECK (n < 0))")
    outgoing = Outgoing(tmp_path / "ledger")
    outgoing.commit(changes(*(("insert", f"word {n}", n) for n in range(300))))
    states = outgoing.deliver(board(database.sink))
    assert "HS-SNK-013" in str(states["board"].stopped)
    assert (outgoing.letters(), database.rows()) == ([], [])
    database.mend()
    assert outgoing.deliver(board(database.sink))["board"].cursor == 1
    assert len(database.rows()) == 300


def test_where_nobody_keeps_dead_letters_a_rejected_row_stops_the_sink(database: Database) -> None:
    database.query(LIMITED)
    database.sink.open(stream_delivery("board"))
    with pytest.raises(SinkError, match="HS-SNK-011"):
        database.sink.deliver(Parcel.of(1, stream(("rain", 1), ("hail", 100))))
    assert got(database.sink) is None
    database.sink.close()
    assert database.rows() == []


@pytest.mark.parametrize("fault", ["during-delivery:1", "after-delivery:1"])
def test_a_kill_around_the_cursor_doubles_neither_rows_nor_letters(
    database: Database, tmp_path: Path, fault: str
) -> None:
    database.query(LIMITED)
    outgoing = Outgoing(tmp_path / "ledger")
    outgoing.commit(stream(("rain", 1), ("hail", 100)))
    outgoing.commit(stream(("snow", 2)))
    outgoing.deliver_killed(fault, board(database.sink, key=()))
    assert outgoing.deliver(board(database.sink, key=()))["board"].stopped is None
    assert database.rows() == [("rain", 1), ("snow", 2)]
    assert [letter["raw"] for letter in outgoing.letters()] == [b'{"word":"hail","n":100}']


# The second chance


def retry(outgoing: Outgoing, sink: ends.Sink) -> SecondChance:
    """What the negotiator does between two deliveries."""
    ledger = outgoing.ledger
    offered = second_chance(ledger, {sink.name: (columns_of(sink), sink.key)})
    if offered.retried:
        fields = {"outbox": offered.outbox, "retried_rejects": offered.retried}
        ledger.commit(next_commit(ledger.head, "retry", 1, datetime.now(UTC), **fields))
    return offered


def rejected(outgoing: Outgoing) -> list[bytes]:
    return [letter["raw"] for letter in open_ledger(outgoing.folder).errors().to_pylist()]


def test_a_rejected_row_of_a_stream_gets_its_second_chance_once(database: Database, tmp_path: Path) -> None:
    database.query(LIMITED)
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(database.sink, key=())
    outgoing.commit(stream(("rain", 1), ("hail", 100)))
    outgoing.commit(stream(("hail", 100)))
    outgoing.deliver(sink)
    assert len(rejected(outgoing)) == 2
    database.mend()
    assert retry(outgoing, sink).rows == 2
    assert rejected(outgoing) == [], "they are in the outbox now"
    for _ in range(2):
        outgoing.deliver(sink)
        assert retry(outgoing, sink).rows == 0
    assert database.rows() == [("hail", 100), ("hail", 100), ("rain", 1)]


def test_what_is_rejected_again_stays_a_dead_letter(database: Database, tmp_path: Path) -> None:
    database.query(LIMITED)
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(database.sink, key=())
    outgoing.commit(stream(*((f"word {n}", n) for n in range(100 - 12 * 9, 100 + 12))))
    outgoing.deliver(sink)
    letters = rejected(outgoing)
    assert len(letters) == 12
    for _ in range(2):
        assert retry(outgoing, sink).rows == 12
        assert outgoing.deliver(sink)["board"].stopped is None
        assert rejected(outgoing) == letters


def test_an_older_row_of_a_table_never_overwrites_a_newer_one(database: Database, tmp_path: Path) -> None:
    database.query("CREATE TABLE words (word TEXT, n BIGINT CHECK (n < 100))")
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(database.sink)
    outgoing.commit(changes(("insert", "rain", 100), ("insert", "hail", 101), ("insert", None, 102)))
    outgoing.commit(changes(("update", "rain", 7)))  # newer, and taken
    outgoing.commit(changes(("update", None, 103)))  # newer, and rejected as well
    outgoing.deliver(sink)
    assert len(rejected(outgoing)) == 4
    database.mend()
    offered = retry(outgoing, sink)
    assert (offered.rows, offered.outdated) == (2, 2)
    outgoing.deliver(sink)
    assert set(database.query("SELECT word, n FROM words")) == {("rain", 7), ("hail", 101), (None, 103)}
    assert rejected(outgoing) == []


def test_the_one_row_of_a_table_without_a_key_is_out_of_date_when_it_has_changed(
    database: Database, tmp_path: Path
) -> None:
    database.query(LIMITED)
    outgoing, sink = Outgoing(tmp_path / "ledger"), board(database.sink, key=())
    outgoing.commit(changes(("insert", "all", 100)))
    outgoing.commit(changes(("update", "all", 5)))
    outgoing.deliver(sink)
    offered = retry(outgoing, sink)
    assert (offered.rows, offered.outdated, offered.outbox) == (0, 1, {})
    outgoing.deliver(sink)
    assert (database.rows(), rejected(outgoing)) == ([("all", 5)], [])


def with_a_second_chance(database: Database, folder: Path) -> tuple[Outgoing, ends.Sink]:
    """One of two rows was rejected, and would be taken by now."""
    database.query(LIMITED)
    outgoing, sink = Outgoing(folder / "ledger"), board(database.sink, key=())
    outgoing.commit(stream(("rain", 1), ("hail", 100)))
    outgoing.deliver(sink)
    database.mend()
    return outgoing, sink


@pytest.mark.parametrize("point", ["before-commit", "after-commit"])
def test_a_retry_that_dies_around_its_commit_loses_and_doubles_nothing(
    database: Database, tmp_path: Path, point: str
) -> None:
    outgoing, sink = with_a_second_chance(database, tmp_path)
    with inject(point, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        retry(outgoing, sink)
    outgoing = Outgoing(tmp_path / "ledger")  # as the next process finds it
    retry(outgoing, sink)
    outgoing.deliver(sink)
    assert database.rows() == [("hail", 100), ("rain", 1)]
    assert rejected(outgoing) == []


@pytest.mark.parametrize("fault", ["before-delivery:1", "during-delivery:1", "after-delivery:1"])
def test_a_kill_while_the_second_chance_is_delivered_doubles_nothing(
    database: Database, tmp_path: Path, fault: str
) -> None:
    outgoing, sink = with_a_second_chance(database, tmp_path)
    retry(outgoing, sink)
    outgoing.deliver_killed(fault, sink)
    outgoing.deliver(sink)
    assert database.rows() == [("hail", 100), ("rain", 1)]


def test_a_column_that_was_added_since_is_null_and_other_types_are_an_error(tmp_path: Path) -> None:
    outgoing = Outgoing(tmp_path / "ledger")
    outgoing.ledger.store_rejected("board", 1, [("no", b"{}")], stream(("rain", 1)))
    wider = pa.schema([*COUNTS, ("at", pa.timestamp("us", tz="UTC"))])
    (file,) = second_chance(outgoing.ledger, {"board": (wider, ())}).outbox["board"]
    found = read_table(outgoing.ledger.store, file.path).to_pylist()
    assert found == [{"word": "rain", "n": 1, "at": None}]
    other = pa.schema([("word", pa.int64()), ("n", pa.int64())])
    with pytest.raises(SinkError, match="HS-SNK-023"):
        second_chance(outgoing.ledger, {"board": (other, ())})
