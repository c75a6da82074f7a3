"""Folds with a time to live: keys that were not updated for so long leave, and what is below is told."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver
from tests.spark.oracle import after_changes, as_set

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
TTL = 10  # minutes
WAYS = pytest.mark.parametrize("tasks", [1, 2], ids=["prepared", "planned"])


def row(k: str, minute: float, x: int = 1) -> dict[str, Any]:
    return {"k": k, "at": (BEGIN + timedelta(minutes=minute)).isoformat(), "x": x}


def topology() -> hs.Topology:
    storm = hs.Topology("forgetful")
    rows = storm.spout(
        "rows", hs.Log("x"), schema="k STRING, at TIMESTAMP, x INT", event_time="at", lateness="2 minutes"
    )
    sums = rows.fold("sums", by="k", ttl="10 minutes", n=hs.count(), total=hs.sum("x"), words=hs.set("x"))
    sums.fold("sizes", by="n", keys=hs.count())
    return storm


@WAYS
def test_a_key_whose_only_row_came_too_late_to_live_was_never_there(spark: SparkSession, tasks: int) -> None:
    with Driver(topology(), spark, tasks=(tasks,)) as driver:
        for rows in ([row("a", 0), row("b", 60)], [row("c", 1), row("b", 61)]):
            driver.feed("rows", rows)
            driver.advance()
        changes = [(change["k"], change["_kind"]) for change in driver.rows("sums")]
        assert sorted(changes) == [("a", "delete"), ("a", "insert"), ("b", "insert"), ("b", "update")]
        assert driver.table("sizes") == [{"n": 2, "keys": 1}]
        assert driver.errors() == []
        assert driver.ledger.head.late == 1, "what nobody sees is counted"


@WAYS
def test_keys_expire_by_rule_however_the_input_is_cut(spark: SparkSession, tasks: int) -> None:
    chance = random.Random(tasks)
    state: dict[str, tuple[float, list[int]]] = {}  # key -> last update, and the rows since it began
    watermark: float | None = None
    highest = 0.0
    with Driver(topology(), spark, tasks=(tasks,)) as driver:
        for tick in range(6):
            rows = [
                (chance.choice("abcdefgh"), tick * 7 + chance.randrange(-4, 4), chance.randrange(5)) for _ in range(5)
            ]
            driver.feed("rows", [row(*one) for one in rows])
            driver.advance()
            # By the watermark of the tick's start what is old is gone, before the rows of the tick come.
            if watermark is not None:
                state = {k: kept for k, kept in state.items() if kept[0] + TTL > watermark}
            for k, minute, x in rows:
                last, seen = state.get(k, (minute, []))
                state[k] = (max(last, minute), [*seen, x])
            if watermark is not None:  # a row can be so late that its key is over already
                state = {k: kept for k, kept in state.items() if kept[0] + TTL > watermark}
            highest = max(highest, *(minute for _, minute, _ in rows))
            watermark = highest - 2
            state = {k: kept for k, kept in state.items() if kept[0] + TTL > watermark}
            expected = [
                {"k": k, "n": len(seen), "total": sum(seen), "words": sorted(set(seen))}
                for k, (_, seen) in state.items()
            ]
            assert as_set(driver.table("sums")) == as_set(expected), f"tick {tick}"
            assert as_set(after_changes(driver.rows("sums"), ("k",), ["n", "total", "words"])) == as_set(expected)
            sizes: dict[int, int] = {}
            for _, seen in state.values():
                sizes[len(seen)] = sizes.get(len(seen), 0) + 1
            assert as_set(driver.table("sizes")) == as_set([{"n": n, "keys": keys} for n, keys in sizes.items()])
        before = driver.table("sums")
        driver.complete()  # the end of input lets nothing expire
        assert driver.table("sums") == before
