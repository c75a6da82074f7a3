"""Nexmark over generated events: every state equals the same query in DuckDB over all of them, in any cut."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.examples.nexmark import events as made
from hailstorm.examples.nexmark.queries import QUERIES, Events
from hailstorm.testing import Driver

ROUNDS, PER_SECOND = 30, 50.0
VALID = """SELECT b.*, a.category, a.seller FROM bid b JOIN auction a ON b.auction = a.id
           WHERE b.date_time BETWEEN a.date_time AND a.expires"""
CLOSING = f"SELECT auction, category, max(price) AS final FROM ({VALID}) GROUP BY ALL"
HOT = """SELECT auction, s AS window_start, count(*) AS num FROM bid, LATERAL (
           SELECT unnest(generate_series(0, 4)) AS i) , LATERAL (
           SELECT time_bucket(INTERVAL 2 SECONDS, date_time) - i * INTERVAL 2 SECONDS AS s) GROUP BY ALL"""
SQL = {
    "q3": """SELECT a.id, p.name, p.city, p.state FROM auction a JOIN person p ON a.seller = p.id
             WHERE a.category = 10 AND p.state IN ('or', 'id', 'ca')""",
    "q4": f"SELECT category, avg(final) AS avg FROM ({CLOSING}) GROUP BY ALL",
    "q5": f"""SELECT auction, window_start, num FROM ({HOT})
              QUALIFY num = max(num) OVER (PARTITION BY window_start)""",
    "q7": """SELECT auction, bidder, price, date_time FROM bid
             QUALIFY price = max(price) OVER (PARTITION BY time_bucket(INTERVAL 10 SECONDS, date_time))""",
    "q8": """SELECT DISTINCT p.id, p.name, time_bucket(INTERVAL 10 SECONDS, p.date_time) AS starttime
             FROM person p JOIN auction a ON a.seller = p.id AND time_bucket(INTERVAL 10 SECONDS, p.date_time)
               = time_bucket(INTERVAL 10 SECONDS, a.date_time)""",
    "q9": f"""SELECT auction AS id, bidder, price, date_time AS bid_date_time FROM ({VALID})
              QUALIFY row_number() OVER (PARTITION BY auction ORDER BY price DESC, date_time, bidder DESC) = 1""",
    "q11": """SELECT bidder, min(date_time) AS window_start, count(*) AS bids FROM (
                SELECT *, sum(new) OVER (PARTITION BY bidder ORDER BY date_time ROWS UNBOUNDED PRECEDING) AS part FROM (
                  SELECT *, CASE WHEN date_time - lag(date_time) OVER (PARTITION BY bidder ORDER BY date_time)
                    < INTERVAL 10 SECONDS THEN 0 ELSE 1 END AS new FROM bid)) GROUP BY bidder, part""",
    "q17": """SELECT auction, strftime(date_time, '%Y-%m-%d') AS day, count(*) AS total_bids,
                count(*) FILTER (price < 10000) AS rank1_bids, min(price) AS min_price, max(price) AS max_price,
                avg(price) AS avg_price, sum(price) AS sum_price FROM bid GROUP BY ALL""",
    "q18": """SELECT auction, bidder, price, extra FROM bid
              QUALIFY row_number() OVER (PARTITION BY bidder, auction ORDER BY date_time DESC, extra) = 1""",
    "q19": """SELECT auction, price, extra, row_number() OVER (
                PARTITION BY auction ORDER BY price DESC, bidder, date_time, extra) AS rank FROM bid
              QUALIFY rank <= 10""",
    "q20": """SELECT b.auction, b.bidder, b.extra, a.item_name FROM bid b JOIN auction a ON b.auction = a.id
              WHERE a.category = 10""",
    "q101": """SELECT a.id, a.item_name, max(b.price) AS current_highest_bid FROM auction a
               LEFT JOIN bid b ON a.id = b.auction GROUP BY ALL""",
    "q104": """SELECT id, item_name FROM auction WHERE id NOT IN (
                 SELECT auction FROM bid GROUP BY auction HAVING count(*) < 20)""",
    "q106": f"SELECT min(final) AS min_final FROM ({CLOSING})",
}
GROUPS = (("q3", "q4", "q9", "q20", "q106"), ("q5", "q7", "q8", "q11"), ("q17", "q18", "q19", "q101", "q104"))


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return round(float(value), 6) if isinstance(value, float | Decimal) else value


def all_events() -> dict[str, pa.Table]:
    shares = (("person", 1, made.people), ("auction", 3, made.auctions), ("bid", 46, made.bids))
    return {name: pa.table(rows(np.arange(ROUNDS * share), PER_SECOND)) for name, share, rows in shares}


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group[0])
def test_the_results_are_those_of_a_batch_query(spark: SparkSession, group: tuple[str, ...]) -> None:
    tables = all_events()
    storm = hs.Topology("nexmark")
    streams = Events(storm, *(hs.Log(name) for name in tables), lateness="1 hour")
    for name in group:
        QUERIES[name](streams).sink(f"out-{name}", hs.Console())
    for stream in (streams.person, streams.auction, streams.bid):
        if not storm.consumers(stream.name):
            stream.sink(f"unread-{stream.name}", hs.Console())
    chance = random.Random(f"{group}")
    with Driver(storm, spark, tasks=(chance.choice([0, 1, 2]),)) as driver:
        cuts = {
            name: sorted([0, *(chance.randint(0, len(rows)) for _ in range(2)), len(rows)])
            for name, rows in tables.items()
        }
        for tick in range(3):
            for name, rows in tables.items():
                part = rows.slice(cuts[name][tick], cuts[name][tick + 1] - cuts[name][tick])
                driver.feed(name, [as_json(row) for row in part.to_pylist()])
            driver.advance()
        driver.complete()
        database = duckdb.connect()
        database.execute("SET TimeZone = 'UTC'")
        for name, rows in tables.items():
            database.register(name, rows)
        for name in group:
            found = database.execute(SQL[name])
            columns = [column[0] for column in found.description]
            wanted = Counter(tuple(map(plain, row)) for row in found.fetchall())
            assert wanted
            assert Counter(tuple(plain(row[c]) for c in columns) for row in held(driver, name)) == wanted, name


def test_bids_by_arrival_and_with_a_side_input(spark: SparkSession) -> None:
    bids = all_events()["bid"]
    storm = hs.Topology("nexmark")
    logs = (hs.Log(name) for name in ("person", "auction", "bid", "side_input"))
    streams = Events(storm, *logs, lateness="1 hour")
    for name in ("q12", "q13"):
        QUERIES[name](streams).sink(f"out-{name}", hs.Console())
    side = pa.table({"key": np.arange(0, 10_000, 3), "value": [f"value-{key}" for key in range(0, 10_000, 3)]})
    begin = datetime(2026, 1, 2, 12, 0, 6, tzinfo=UTC)
    arrivals = [begin + timedelta(seconds=4 * (place * 6 // bids.num_rows)) for place in range(bids.num_rows)]
    chance = random.Random("side input")
    with Driver(storm, spark, tasks=(chance.choice([0, 1, 2]),), now=begin) as driver:
        driver.feed("side_input", side.to_pylist())
        for tick in range(3):
            part = range(bids.num_rows * tick // 3, bids.num_rows * (tick + 1) // 3)
            rows = [as_json(row) for row in bids.slice(part.start, len(part)).to_pylist()]
            driver.feed("bid", rows)
            for time in sorted(set(arrivals[part.start : part.stop])):
                came = [row for row, at in zip(rows, arrivals[part.start : part.stop], strict=True) if at == time]
                driver.feed("bid_arrivals", came, time=time)
            driver.advance()
        driver.complete()
        database = duckdb.connect()
        database.execute("SET TimeZone = 'UTC'")
        database.register("bid", bids.append_column("arrived", pa.array(arrivals, pa.timestamp("us", "UTC"))))
        database.register("side_input", side)
        by_arrival = database.execute(
            "SELECT bidder, time_bucket(INTERVAL 10 SECONDS, arrived) AS start, count(*) FROM bid GROUP BY ALL"
        ).fetchall()
        found = Counter((row["bidder"], plain(row["window_start"]), row["bids"]) for row in held(driver, "q12"))
        assert found == Counter((bidder, plain(start), n) for bidder, start, n in by_arrival)
        assert len({start for _, start, _ in by_arrival}) > 2
        joined = database.execute(
            "SELECT auction, bidder, price, value FROM bid JOIN side_input ON auction % 10000 = key"
        ).fetchall()
        rows = driver.rows("q13")
        assert Counter((row["auction"], row["bidder"], row["price"], row["value"]) for row in rows) == Counter(joined)
        assert 0 < len(rows) < bids.num_rows


def as_json(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in row.items()}


def held(driver: Driver, step: str) -> list[dict[str, Any]]:
    """What somebody holds who has followed the changes of a table."""
    key = driver.topology.step(step).key
    rows: dict[str, dict[str, Any]] = {}
    for change in driver.rows(step):
        rows.pop(repr([change[name] for name in key]), None)
        if change["_kind"] != "delete":
            rows[repr([change[name] for name in key])] = change
    return list(rows.values())


def test_events_are_a_function_of_their_number() -> None:
    for log, rows in zip(made.logs(1000.0), (made.people, made.auctions, made.bids), strict=True):
        some = np.array([0, 7, 1_000_003])
        assert log.rows is not None
        assert pa.table(log.rows(some, 0)).equals(pa.table(rows(some, 1000.0)))
    bids = made.bids(np.arange(46 * 50), 1000.0)
    auctions = made.auctions(np.arange(150), 1000.0)
    assert set(bids["auction"]) <= set(auctions["id"]), "a bid is on an auction that there is"
