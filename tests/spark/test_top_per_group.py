"""Tops of each group: exact under updates, deletes and moves from one group to another, in both ways to run."""

from __future__ import annotations

import random
from itertools import cycle
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver
from tests.spark.oracle import after_changes, as_set

Row = dict[str, Any]


def topology(with_tops: bool = True) -> hs.Topology:
    storm = hs.Topology("leagues")
    moves = storm.spout("moves", hs.Log("x"), schema="player STRING, team STRING, by BIGINT")
    scores = moves.fold("scores", by="player", team=hs.latest("team"), s=hs.sum("by"))
    if with_tops:
        scores.top("best", 2, by="s", per="team")
        scores.where("positive", "s > 0").top("small", 3, by="-s", per="team").fold("per_team", by="team", n=hs.count())
    pairs = moves.fold("pairs", by=["player", "team"], s=hs.sum("by"))
    if with_tops:
        best = pairs.top("of_pairs", 1, by="s", per="team")
        best.select("unranked", s="s").top("champions", 2, by="s")
    return storm


def ranked(rows: list[Row], n: int, by: str, sign: int = 1) -> list[Row]:
    """The first n of each team, ties by player."""
    found = []
    for team in {row["team"] for row in rows}:
        mine = sorted((r for r in rows if r["team"] == team), key=lambda r: (-sign * r[by], r["player"]))
        found += [{**row, "rank": rank} for rank, row in enumerate(mine[:n], 1)]
    return found


def oracle(moves: list[Row]) -> dict[str, list[Row]]:
    scores: dict[str, Row] = {}
    pairs: dict[tuple[str, str], Row] = {}
    for move in moves:
        row = scores.setdefault(move["player"], {"player": move["player"], "team": "", "s": 0})
        row["team"], row["s"] = move["team"], row["s"] + move["by"]
        pair = {"player": move["player"], "team": move["team"], "s": 0}
        pairs.setdefault((move["player"], move["team"]), pair)["s"] += move["by"]
    small = ranked([row for row in scores.values() if row["s"] > 0], 3, "s", -1)
    of_pairs = ranked(list(pairs.values()), 1, "s")
    champions = sorted(of_pairs, key=lambda r: (-r["s"], r["team"], r["player"]))[:2]
    counts: dict[str, int] = {}
    for row in small:
        counts[row["team"]] = counts.get(row["team"], 0) + 1
    return {
        "best": ranked(list(scores.values()), 2, "s"),
        "small": small,
        "per_team": [{"team": team, "n": n} for team, n in counts.items()],
        "of_pairs": of_pairs,
        "champions_s": [{"s": row["s"]} for row in champions],
    }


def check(driver: Driver, moves: list[Row], place: str) -> None:
    expected = oracle(moves)
    for step in ("best", "small", "per_team", "of_pairs"):
        table = driver.topology.step(step)
        values = [name for name in table.schema.names if name not in table.key]
        assert as_set(driver.table(step)) == as_set(expected[step]), f"{place}: {step}"
        assert as_set(after_changes(driver.rows(step), table.key, values)) == as_set(expected[step]), f"{place}: {step}"
    got = [{"s": row["s"]} for row in sorted(driver.table("champions"), key=lambda row: row["s"], reverse=True)]
    assert got == expected["champions_s"], place


def drawn(chance: random.Random, count: int) -> list[Row]:
    return [
        {"player": f"p{chance.randrange(15):02}", "team": chance.choice("rgb"), "by": chance.randint(-5, 6)}
        for _ in range(count)
    ]


@pytest.mark.parametrize("ways", [(1,), (2,), (1, 2)], ids=["prepared", "planned", "both"])
def test_tops_of_groups_are_right_after_every_tick(spark: SparkSession, ways: tuple[int, ...]) -> None:
    chance = random.Random(len(ways) + ways[0])
    moves: list[Row] = []
    with Driver(topology(), spark, tasks=ways) as driver:
        turns = cycle(ways)
        driver._negotiator._pace.way = lambda *asked: next(turns)  # type: ignore[method-assign]
        for tick in range(5):
            more = drawn(chance, chance.choice([1, 5, 25]))
            if tick == 3:  # everybody moves to one team, and most fall below zero
                more = [{"player": f"p{number:02}", "team": "r", "by": -20} for number in range(12)]
            moves += more
            driver.feed("moves", more)
            driver.advance()
            check(driver, moves, f"tick {tick}")


def test_a_top_of_groups_that_is_new_to_an_old_table_sees_all_of_it(spark: SparkSession) -> None:
    chance = random.Random(3)
    moves = drawn(chance, 30)
    with Driver(topology(with_tops=False), spark) as driver:
        driver.feed("moves", moves)
        driver.advance()
        driver.restart(topology())
        more = drawn(chance, 2)
        driver.feed("moves", more)
        driver.advance()
        best = oracle([*moves, *more])["best"]
        assert as_set(driver.table("best")) == as_set(best)


ODD = "n INT, d DOUBLE, s STRUCT<a: INT, b: STRING>, l ARRAY<INT>"
NAN = float("nan")
VALUES: list[Row] = [
    {"n": 1, "d": NAN, "s": {"a": 1, "b": None}, "l": [1, None]},
    {"n": 2, "d": float("inf"), "s": {"a": None, "b": "x"}, "l": [1]},
    {"n": 3, "d": None, "s": None, "l": None},
    {"n": 4, "d": -0.0, "s": {"a": 1, "b": "a"}, "l": [1, 0]},
    {"n": 5, "d": 1.5, "s": {"a": 2, "b": None}, "l": []},
]


@pytest.mark.parametrize("tasks", [1, 2], ids=["prepared", "planned"])
def test_a_top_ranks_by_nan_structs_and_arrays_with_nulls_and_such_may_be_its_key(
    spark: SparkSession, tasks: int
) -> None:
    storm = hs.Topology("odd")
    rows = storm.spout("rows", hs.Log("x"), schema=ODD)
    newest = rows.table("newest", key="n")
    nested = rows.fold("nested", by=["s", "l"], n=hs.max("n"))
    for column in ("d", "s", "l"):
        newest.top(f"by_{column}", 5, by=column)
        newest.top(f"two_by_{column}", 2, by=column)
    nested.top("of_nested", 3, by="n")
    nested.top("per_struct", 1, by="l", per="s")
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        for some in (VALUES[:2], VALUES[2:], VALUES[:1]):
            driver.feed("rows", some)
            driver.advance()

        def order(step: str) -> list[int]:
            return [row["n"] for row in sorted(driver.table(step), key=lambda row: int(row["rank"]))]

        # As Spark orders them: NaN is the largest, then infinity; null is the smallest, also inside of a value.
        orders = {"d": [1, 2, 5, 4, 3], "s": [5, 4, 1, 2, 3], "l": [4, 1, 2, 5, 3]}
        for column, wanted in orders.items():
            assert order(f"by_{column}") == wanted
            assert order(f"two_by_{column}") == wanted[:2]
        # The third row has no key there: it is a dead letter of that fold.
        assert order("of_nested") == [5, 4, 2]
        assert sorted(row["n"] for row in driver.table("per_struct")) == [1, 2, 4, 5]
        assert [letter["step"] for letter in driver.errors()] == ["nested"]
