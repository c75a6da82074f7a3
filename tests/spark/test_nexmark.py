"""Nexmark against what a public test suite expects (../shared/vectors), in random cuts of the events into ticks."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.examples.nexmark.queries import QUERIES, Events
from hailstorm.testing import Driver
from tests.length import only_long

VECTORS = Path(__file__).parents[3] / "shared" / "vectors" / "nexmark"
pytestmark = pytest.mark.skipif(not VECTORS.is_dir(), reason="the public vectors are not here")

# What each query calls a column, where it is not what the vectors call it.
NAMES: dict[str, dict[str, str]] = {
    "q9": {"auction": "id"},
    "q20": {
        "bid_date_time": "date_time",
        "bid_extra": "extra",
        "auction_date_time": "date_time_auction",
        "auction_extra": "extra_auction",
    },
    "q19": {"rank_number": "rank"},
    **{
        query: {"auction_id": "id", "auction_item_name": "item_name", "bid_count": "n"}
        for query in ("q101", "q102", "q103", "q104", "q105")
    },
}
GROUPS = (
    ("q0", "q1", "q2", "q10", "q14", "q21", "q22"),
    ("q3", "q4", "q9", "q20", "q106"),
    ("q5", "q7", "q8", "q11"),
    ("q15", "q16", "q17", "q18"),
    ("q101", "q102", "q103", "q104", "q105"),
    ("q6", "q19"),
)
# By other clocks than events', or with more than events: test_nexmark_batch.py has them.
ELSEWHERE = ("q12", "q13")


def plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return round(float(value), 6) if isinstance(value, float | Decimal) else value


def result(driver: Driver, query: str, columns: list[str]) -> Counter[tuple[Any, ...]]:
    step = driver.topology.step(query)
    rows = _rows_of_table(driver.rows(query), step.key) if step.is_table else driver.rows(query)
    names = [NAMES.get(query, {}).get(column, column) for column in columns]
    return Counter(tuple(plain(row[name]) for name in names) for row in rows)


def _rows_of_table(changes: list[dict[str, Any]], key: tuple[str, ...]) -> list[dict[str, Any]]:
    """What those who follow the changes hold; `where` and `select` keep no state that could be read instead."""
    held: dict[str, dict[str, Any]] = {}
    for change in changes:
        held.pop(repr([change[name] for name in key]), None)
        if change["_kind"] != "delete":
            held[repr([change[name] for name in key])] = change
    return list(held.values())


def test_every_query_is_tested() -> None:
    compared = [name for group in GROUPS for name in group]
    assert sorted(QUERIES) == sorted([*compared, *ELSEWHERE])
    expected = json.loads((VECTORS / "expected.json").read_text())
    assert {name.removesuffix("_group_top1") for name in expected} <= set(compared), "every vector is matched"


@pytest.mark.parametrize(
    ("tasks", "group"),
    [
        *((1, group) for group in GROUPS),
        *((2, group) for group in GROUPS[:2]),
        *(only_long(2, group) for group in GROUPS[2:]),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_the_results_are_those_of_the_public_suite(spark: SparkSession, group: tuple[str, ...], tasks: int) -> None:
    events = json.loads((VECTORS / "events.json").read_text())
    expected = json.loads((VECTORS / "expected.json").read_text())
    storm = hs.Topology("nexmark")
    streams = Events(storm, *(hs.Log(name) for name in ("person", "auction", "bid")), lateness="1 hour")
    for name in group:
        QUERIES[name](streams).sink(f"out-{name}", hs.Console())
    for stream in (streams.person, streams.auction, streams.bid):
        if not storm.consumers(stream.name):
            stream.sink(f"unread-{stream.name}", hs.Console())
    chance = random.Random(f"{group} {tasks}")
    rows = [(kind, row) for kind in ("person", "auction", "bid") for row in events[kind]]
    chance.shuffle(rows)
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        for start in range(0, len(rows), 40):
            for kind, row in rows[start : start + 40]:
                driver.feed(kind, [row])
            driver.advance()
        driver.complete()
        for name in group:
            if name == "q6":
                continue
            if name in expected:
                wanted = expected[name]
                rows_wanted = Counter(tuple(plain(value) for value in row) for row in wanted["rows"])
                assert result(driver, name, wanted["columns"]) == rows_wanted, name
        if "q6" in group:
            means = [(row["seller"], mean) for row in driver.table("q6") for mean in row["means"]]
            assert Counter((s, round(m, 6)) for s, m in means) == Counter(
                (s, round(float(m), 6)) for s, m in expected["q6_group_top1"]["rows"]
            )
