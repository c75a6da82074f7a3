"""`errors --retry` with rows that a sink rejected and records that did not decode, in one topology."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Retried
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.spouts.log import Log


def test_rejected_rows_and_bad_records_get_their_second_chance_together(spark: SparkSession, tmp_path: Path) -> None:
    path, log = tmp_path / "own.db", Log(tmp_path / "log").create(1)
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE counts (k TEXT, n BIGINT CHECK (n < 3))")
        connection.execute("CREATE TABLE free (k TEXT, n BIGINT)")

    def started(table: str) -> Negotiator:
        storm = hs.Topology("counting")
        counts = storm.spout("letters", log, schema="k STRING").fold("counts", by="k", n=hs.count())
        counts.sink("out", hs.Sqlite(path, table))
        negotiator = Negotiator(spark, storm, Ledger(tmp_path / "ledger", create=True), ways=(1,))
        negotiator.start()
        return negotiator

    def delivered() -> dict[str, int]:
        return dict(connection.execute("SELECT k, n FROM counts").fetchall())

    log.append([{"k": letter} for letter in "aaabbbc"] + ["nonsense"])
    negotiator = started("counts")
    try:
        negotiator.tick()
        log.append([{"k": "b"}])  # newer than the row of b that was rejected, and rejected, too
        negotiator.tick()
        negotiator._beside.deliverer.drain(30)
        assert delivered() == {"c": 1}
        assert negotiator.retry() == Retried(letters=3, failed=3, outdated=1), "a, b, and the record"
        assert delivered() == {"c": 1}
    finally:
        negotiator.stop()
    assert len(open_ledger(tmp_path / "ledger").errors()) == 3
    connection.execute("DROP TABLE counts")
    connection.execute("ALTER TABLE free RENAME TO counts")
    connection.execute("INSERT INTO counts VALUES ('c', 1)")
    connection.commit()
    negotiator = started("counts")
    try:
        assert negotiator.retry() == Retried(letters=3, failed=1, outdated=0)
        assert delivered() == {"a": 3, "b": 4, "c": 1}
        assert negotiator.retry() == Retried(letters=1, failed=1)
    finally:
        negotiator.stop()
        connection.close()
    (letter,) = open_ledger(tmp_path / "ledger").errors().to_pylist()
    assert letter["raw"] == b"nonsense"
