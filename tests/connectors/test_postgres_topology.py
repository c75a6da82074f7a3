"""A whole topology into Postgres and Redis: killed again and again while it runs, then compared by plain SQL."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import duckdb
import pytest

from hailstorm.ledger.reader import open_ledger
from hailstorm.spouts import Log
from tests.connectors.killing import run_app
from tests.connectors.servers.postgres import PASSWORD, PostgresServer
from tests.connectors.servers.redis import RedisServer
from tests.jvm import WarmJvm

pytestmark = [pytest.mark.spark, pytest.mark.chaos]

APP = """
import hailstorm as hs

storm = hs.Topology("words", max_tick_rows=700)
lines = storm.spout("lines", hs.Log("data/lines"), schema="word STRING, n BIGINT")
counts = lines.fold("counts", by="word", times=hs.count(), total=hs.sum("n"))
URL = "{url}"
lines.sink("archive", hs.Postgres(URL, table="archive"))
lines.sink("picky", hs.Postgres(URL, table="picky"))
counts.sink("board", hs.Postgres(URL, tables={{"counts": "upsert", "changes": "append"}}))
counts.sink("cache", hs.Redis("{redis}", key="counts"))
"""
KILLS = ["during-delivery:2", "after-commit:2", "before-delivery:3"]
ROWS = 4000


def test_a_topology_that_is_killed_again_and_again_is_exact_in_postgres_and_redis(
    postgres_server: PostgresServer, redis_server: RedisServer, tmp_path: Path, jvm: WarmJvm
) -> None:
    url = postgres_server.database()
    with redis_server.client() as client:
        client.flushall()
    postgres_server.query(url, "CREATE TABLE picky (word text, n bigint CHECK (n <> 1234))")
    (tmp_path / "app.py").write_text(
        APP.format(
            url=url.replace(PASSWORD, "${env:DB_PASSWORD}"),
            redis=redis_server.url.replace(PASSWORD, "${env:DB_PASSWORD}"),
        )
    )
    rows = [{"word": f"word {n * n % 37}", "n": n} for n in range(ROWS)]
    log = Log(tmp_path / "data/lines")
    for start in range(0, ROWS, 500):
        log.append(rows[start : start + 500], partition=0)
    secrets = {"DB_PASSWORD": PASSWORD}
    killed = [run_app(tmp_path / "app.py", secrets, jvm, fault) for fault in KILLS]
    assert killed.count(-signal.SIGKILL) == 3, killed
    assert run_app(tmp_path / "app.py", secrets, jvm) == 0

    # Every row once, by plain SQL.
    found = postgres_server.query(url, "SELECT count(*), count(DISTINCT n), sum(n) FROM archive")
    assert found == [(ROWS, ROWS, sum(range(ROWS)))]
    # The table, and the last of its changes, as DuckDB counts the input.
    lines = f"SELECT 'word ' || n * n % 37 AS word, n FROM range({ROWS}) AS r(n)"
    expected = duckdb.sql(
        f"SELECT word, count(*), sum(n)::BIGINT FROM ({lines}) GROUP BY word ORDER BY word"
    ).fetchall()
    assert postgres_server.query(url, 'SELECT word, times, total FROM counts ORDER BY word COLLATE "C"') == expected
    newest = 'SELECT word, max(times) FROM changes GROUP BY word ORDER BY word COLLATE "C"'
    assert postgres_server.query(url, newest) == [(word, times) for word, times, _ in expected]
    assert postgres_server.query(url, "SELECT count(*) - count(DISTINCT (word, times)) FROM changes") == [(0,)]
    with redis_server.client() as client:
        cached = [client.hgetall(name) for name in client.keys("counts:*")]
    assert Counter((row[b"word"].decode(), int(row[b"times"])) for row in cached) == Counter(
        (word, times) for word, times, _ in expected
    )
    # The row that the picky table refuses is its dead letter, once, and the sink went on.
    assert postgres_server.query(url, "SELECT count(*) FROM picky") == [(ROWS - 1,)]
    (letter,) = open_ledger(tmp_path / ".hailstorm/words").errors().to_pylist()
    assert (letter["step"], b"1234" in letter["raw"]) == ("picky", True)
    ledger = b"".join(file.read_bytes() for file in (tmp_path / ".hailstorm/words").rglob("*.json"))
    assert PASSWORD.encode() not in ledger
