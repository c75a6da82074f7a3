"""Sessions against plain Python: rows in any order, in any cut into ticks, with every monoid's way to merge."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver
from tests.spark.longest import Longest

START = datetime(2026, 1, 1, tzinfo=UTC)
GAP = 30
Row = tuple[str, int, int]


def visits(kinds: str, **options: Any) -> hs.Topology:
    storm = hs.Topology("visits")
    schema = "u STRING, n INT, at TIMESTAMP"
    clicks = storm.spout("clicks", hs.Log("x"), schema=schema, event_time="at", lateness="20 seconds")
    more: dict[str, Any] = {
        "sketch": {"d": hs.count_distinct("n")},
        "own": {"d": Longest("n")},
        "list": {"d": hs.set("n > 2"), "longest": Longest("n")},
        "plain": {},
    }[kinds]
    table = clicks.session(f"{GAP} seconds", **options).fold("visits", by="u", n=hs.count(), s=hs.sum("n"), **more)
    assert table.late.name == "visits.late"
    return storm


def as_json(rows: list[Row]) -> list[dict[str, object]]:
    return [{"u": u, "n": n, "at": (START + timedelta(seconds=at)).isoformat()} for u, n, at in rows]


def seconds(time: datetime) -> int:
    return round((time - START).total_seconds())


def batch(rows: list[Row]) -> dict[tuple[str, int, int], tuple[int, int]]:
    found: dict[tuple[str, int, int], tuple[int, int]] = {}
    for user in {u for u, _, _ in rows}:
        mine = sorted((at, n) for u, n, at in rows if u == user)
        session = [mine[0]]
        for at, n in [*mine[1:], (1 << 40, 0)]:
            if at - session[-1][0] >= GAP:
                found[(user, session[0][0], session[-1][0] + GAP)] = (len(session), sum(value for _, value in session))
                session = []
            session.append((at, n))
    return found


def of_table(driver: Driver) -> dict[tuple[str, int, int], tuple[int, int]]:
    return {
        (row["u"], seconds(row["window_start"]), seconds(row["window_end"])): (row["n"], row["s"])
        for row in driver.table("visits")
    }


@pytest.mark.parametrize("tasks", [0, 2], ids=["resident", "planned"])
@pytest.mark.parametrize(
    ("kinds", "emit"),
    [("plain", "updates"), ("plain", "final"), ("sketch", "final"), ("own", "updates"), ("list", "updates")],
)
def test_sessions_are_those_of_all_rows_however_they_came(
    spark: SparkSession, tasks: int, kinds: str, emit: str
) -> None:
    chance = random.Random(f"{kinds} {emit}")
    rows: list[Row] = [(chance.choice("ab"), chance.randint(1, 5), chance.randint(0, 400)) for _ in range(40)]
    with Driver(visits(kinds, emit=emit), spark, tasks=(tasks,)) as driver:
        given = list(rows)
        while given:
            cut = chance.randint(1, 12)
            driver.feed("clicks", as_json(given[:cut]))
            driver.advance()
            given = given[cut:]
        driver.complete()
        assert of_table(driver) == batch(rows), "late rows correct what they belong to"
        if kinds == "own":
            longest = {len(row["d"]) for row in driver.table("visits")}
            assert longest <= {1, 2, 3, 4, 5} and max(longest) == max(n for _, n, _ in rows)
        if kinds == "list":
            for row in driver.table("visits"):
                start, end = seconds(row["window_start"]), seconds(row["window_end"])
                mine = {n for u, n, at in rows if u == row["u"] and start <= at < end}
                assert row["d"] == sorted({n > 2 for n in mine})
                assert row["longest"] == "x" * max(mine)


def test_a_row_that_bridges_two_sessions_makes_one_of_them(spark: SparkSession) -> None:
    with Driver(visits("plain"), spark) as driver:
        for rows in ([("a", 1, 0), ("a", 1, 50)], [("a", 1, 25)]):
            driver.feed("clicks", as_json(rows))
            driver.advance()
        kinds = [(c["_kind"], seconds(c["window_start"]), seconds(c["window_end"])) for c in driver.rows("visits")]
        assert sorted(kinds[:2]) == [("insert", 0, 30), ("insert", 50, 80)]
        assert sorted(kinds[2:]) == [("delete", 0, 30), ("delete", 50, 80), ("insert", 0, 80)]


def test_events_exactly_a_gap_apart_are_two_sessions(spark: SparkSession) -> None:
    with Driver(visits("plain"), spark) as driver:
        driver.feed("clicks", as_json([("a", 1, 0), ("a", 1, GAP), ("a", 1, 2 * GAP - 1)]))
        driver.advance()
        assert of_table(driver) == {("a", 0, 30): (1, 1), ("a", 30, 89): (2, 2)}


def test_an_ended_session_is_closed_for_good_when_late_rows_go_aside(spark: SparkSession) -> None:
    with Driver(visits("plain", emit="final", late="side"), spark) as driver:
        # The watermark is 85: the session [10, 40) has ended; 60 is on time, because [60, 90) has not.
        for rows in ([("a", 1, 10)], [("b", 1, 105)], [("a", 1, 60), ("a", 7, 20)], [("a", 2, 200)]):
            driver.feed("clicks", as_json(rows))
            driver.advance()
        assert [(row["n"], seconds(row["at"])) for row in driver.rows("visits.late")] == [(7, 20)]
        assert driver.ledger.head.late == 1
        driver.complete()
        assert of_table(driver) == {
            ("a", 10, 40): (1, 1),
            ("a", 60, 90): (1, 1),
            ("a", 200, 230): (1, 2),
            ("b", 105, 135): (1, 1),
        }


@pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])
def test_final_sessions_of_many_keys_that_end_at_once_all_come_out(spark: SparkSession, tasks: int) -> None:
    users = [f"user-{number}" for number in range(50)]
    with Driver(visits("plain", emit="final"), spark, tasks=(tasks,)) as driver:
        driver.feed("clicks", as_json([(user, 1, 0) for user in users]))
        driver.advance()
        assert driver.rows("visits") == []
        driver.feed("clicks", as_json([("last", 1, 1_000)]))
        driver.advance()
        assert sorted(row["u"] for row in driver.rows("visits")) == sorted(users)
