"""Times of a table's rows: what reads them does not depend on how the input was cut into ticks, and nobody else sees
that a time has moved."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver
from tests.length import seeds

STATES = ("users", "by_city", "big_last", "place_last", "top_last", "counts", "city_last", "upper_last")


def topology() -> hs.Topology:
    storm = hs.Topology("times")
    rows = storm.spout("rows", hs.Log("x"), schema="user STRING, city STRING, n INT, at TIMESTAMP", event_time="at")
    users = rows.fold("users", by="user", city=hs.latest("city"), n=hs.latest("n"))
    users.sink("changes", hs.Console())
    users.fold("by_city", by="city", n=hs.count(), last=hs.latest("user"), first=hs.earliest("user"))
    users.where("big", "n > 1").fold("big_last", by="city", last=hs.latest("n"), first=hs.earliest("n"))
    # In Arrow, and (upper) in the JVM.
    users.select("places", city="city").fold("place_last", last=hs.latest("city"), first=hs.earliest("city"))
    users.select("uppers", city="upper(city)").fold("upper_last", last=hs.latest("city"))
    top = users.top("top", 2, by="n")
    top.sink("board", hs.Console())
    top.fold("top_last", last=hs.latest("user"), first=hs.earliest("user"))
    # These counts could be subtracted from; but what is below them reads their time.
    counts = users.fold("counts", by="city", n=hs.count())
    counts.fold("city_last", last=hs.latest("city"), first=hs.earliest("city"))
    users.bolt(is_equal, name="seen", returns="equal BOOLEAN").sink("saw", hs.Console())
    return storm


def is_equal(change: Any) -> dict[str, Any]:
    return {"equal": change._kind == "update" and change._old == {"city": change.city, "n": change.n}}


def draw_rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    """Few users and cities, so that rows come, go and come again; many rows repeat what was; times are out of order."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = []
    for _ in range(count):
        at = start + timedelta(seconds=chance.randrange(60))
        user, city = chance.choice("abcd"), chance.choice(["x", "y", "z", None])
        rows.append({"user": user, "city": city, "n": chance.randrange(4), "at": at.isoformat()})
        if chance.random() < 0.4:
            rows.append({**rows[-1], "at": (at + timedelta(seconds=chance.randrange(9))).isoformat()})
    return rows


def states(driver: Driver) -> dict[str, list[str]]:
    return {name: sorted(map(repr, driver.table(name))) for name in STATES}


@pytest.mark.parametrize("seed", seeds(1, 2))
def test_every_cut_into_ticks_gives_the_same_states(spark: SparkSession, seed: int) -> None:
    chance = random.Random(seed)
    rows = draw_rows(chance, 24)
    found = []
    for pieces in (1, 4, 10):
        borders = sorted({0, len(rows), *(chance.randrange(len(rows)) for _ in range(pieces - 1))})
        with Driver(topology(), spark, tasks=(1 + pieces % 2,)) as driver:
            for start, end in pairwise(borders):
                driver.feed("rows", rows[start:end])
                driver.advance()
            found.append(states(driver))
            assert {row["equal"] for row in driver.rows("seen")} == {False}
            for name in ("users", "top"):
                updates = [row for row in driver.rows(name) if row["_kind"] == "update"]
                assert updates or pieces == 1
                for row in updates:
                    assert any(row[column] != value for column, value in row["_old"].items()), row
    for other in found[1:]:
        assert other == found[0]
