"""The Postgres sink beside a bare psycopg COPY-and-upsert of the same rows: 100,000 a commit, over a million keys.

Both take turns on one server, each with a table of its own. The bare one is given Python tuples, made before the clock
starts; ours gets Arrow, as delivery gives it, and keeps its cursor in the transaction. The server does not wait for the
disk (`fsync` off) on either side. At the end both tables must hold the same rows. About a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from bench.bench import Bench, Outcome, Say, at_least, inverse
from bench.contest import Series, ratio
from bench.peers.peer import Tick
from hailstorm.columns import KIND
from hailstorm.sinks.postgres.sink import Postgres
from hailstorm.sinks.sink import Delivery, Parcel
from tests.connectors.servers.postgres import PostgresServer

_ROWS, _KEYS = 100_000, 1_000_000
_SCHEMA = pa.schema([("word", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


def measure(quick: bool, say: Say) -> Outcome:
    rounds, warm_up = (2, 1) if quick else (7, 3)
    ours: list[tuple[Tick, ...]] = []
    bare: list[tuple[Tick, ...]] = []
    with PostgresServer.start() as server:
        url = server.database()
        sink = Postgres(url, "ours")
        sink.open(Delivery("bench", "ours", "ledger", _SCHEMA, ("word",), True))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("CREATE TABLE bare (word text PRIMARY KEY, n bigint, at timestamptz)")
            for number, rows in enumerate(_commits(warm_up + rounds), 1):
                tuples = list(zip(*(rows[name].to_pylist() for name in _SCHEMA.names), strict=True))
                turns: list[tuple[list[tuple[Tick, ...]], Callable[[], None]]] = [
                    (ours, lambda number=number, rows=rows: sink.deliver(Parcel.of(number, rows))),
                    (bare, lambda tuples=tuples: _copy_and_upsert(connection, tuples)),
                ]
                for series, action in turns[:: 1 if number % 2 else -1]:
                    began = time.perf_counter()
                    action()
                    series.append((Tick((time.perf_counter() - began) * 1000, _ROWS),))
                say(f"commit {number}: ours {ours[-1][0].ms:,.0f} ms, bare {bare[-1][0].ms:,.0f} ms")
        sink.close()
        for one, other in (("ours", "bare"), ("bare", "ours")):
            [(different,)] = server.query(url, f"SELECT count(*) FROM (TABLE {one} EXCEPT TABLE {other}) AS different")
            assert different == 0, f"{different:,} rows of table {one} are not in table {other}"
    mine, theirs = Series("Hailstorm", tuple(ours[warm_up:])), Series("bare psycopg", tuple(bare[warm_up:]))
    share = inverse(ratio(mine, theirs))
    return Outcome((mine, theirs), (at_least("of the rows/s of a bare psycopg COPY-and-upsert", share, 0.6),))


def _commits(count: int) -> Iterator[pa.Table]:
    chance = np.random.default_rng(7)
    for _ in range(count):
        keys = chance.choice(_KEYS, _ROWS, replace=False)
        columns = {"word": [f"word {key}" for key in keys], "n": keys, "at": keys * 1_000_000}
        rows = pa.table([pa.array(columns[field.name]).cast(field.type) for field in _SCHEMA], schema=_SCHEMA)
        yield rows.append_column(KIND, pa.array(["update"] * _ROWS))


def _copy_and_upsert(connection: psycopg.Connection[Any], rows: list[tuple[Any, ...]]) -> None:
    with connection.transaction():
        connection.execute("CREATE TEMPORARY TABLE new (word text, n bigint, at timestamptz) ON COMMIT DROP")
        with connection.cursor() as cursor, cursor.copy("COPY new FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)
        connection.execute(
            "INSERT INTO bare SELECT * FROM new ON CONFLICT (word) DO UPDATE SET n = EXCLUDED.n, at = EXCLUDED.at"
        )


BENCH = Bench("postgres", "upserts into PostgreSQL, 100,000 rows a commit, 1M keys", measure)
