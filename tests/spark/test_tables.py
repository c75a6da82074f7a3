"""Tables on tables: tops that lose members, folds of folds, and collisions of hashes. Checked after every tick."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import cycle
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import hailstorm as hs
from hailstorm.engine.stages import group
from hailstorm.testing import Driver
from tests.spark.longest import Longest
from tests.spark.oracle import after_changes, as_set, folded, topped

Row = dict[str, Any]


def total(values: Any) -> int:
    return sum(values)


def alternating(driver: Driver) -> Driver:
    """Let prepared and planned ticks take turns: both must read what the other has written."""
    ways = cycle(driver._negotiator._pace.ways)
    driver._negotiator._pace.way = lambda *asked: next(ways)  # type: ignore[method-assign]
    return driver


def check(driver: Driver, step: str, expected: list[Row], place: str) -> None:
    table = driver.topology.step(step)
    values = [name for name in table.schema.names if name not in table.key]
    assert as_set(after_changes(driver.rows(step), table.key, values)) == as_set(expected), f"{place}: {step}"
    if table.kind in ("fold", "top"):
        assert as_set(driver.table(step)) == as_set(expected), f"{place}: {step}"


def tables() -> hs.Topology:
    storm = hs.Topology("tables")
    moves = storm.spout("moves", hs.Log("x"), schema="k STRING, by BIGINT")
    sums = moves.fold("sums", by="k", s=hs.sum("by"), n=hs.count())
    sums.top("best", 3, by="s")
    wide = sums.top("wide", 6, by="-s")
    wide.select("unranked", s="s").top("narrow", 2, by="s")
    large = sums.where("large", "s > 0")
    large.top("best_large", 2, by="s")
    large.fold("sizes", by="s", keys=hs.count(), most=hs.max("n"))
    parity = large.select("parity", odd="s % 2 = 1", s="s")
    parity.fold("by_parity", by="odd", total=hs.sum("s"), least=hs.min("s"), keys=hs.set("k"))
    parity.fold("whole", total=hs.sum("s"), keys=hs.count())
    return storm


def oracle(rows: list[Row]) -> dict[str, list[Row]]:
    sums = folded(rows, ["k"], {"s": ("by", total), "n": ("by", len)})
    large = [row for row in sums if row["s"] > 0]
    parity = [{"k": row["k"], "odd": row["s"] % 2 == 1, "s": row["s"]} for row in large]
    wide = topped([{**row, "minus": -row["s"]} for row in sums], ["k"], 6, "minus")
    wide = [{name: value for name, value in row.items() if name != "minus"} for row in wide]
    unranked = [{"k": row["k"], "s": row["s"]} for row in wide]
    return {
        "sums": sums,
        "best": topped(sums, ["k"], 3, "s"),
        "wide": wide,
        "narrow": topped(unranked, ["k"], 2, "s"),
        "large": large,
        "best_large": topped(large, ["k"], 2, "s"),
        "sizes": folded(large, ["s"], {"keys": ("k", len), "most": ("n", max)}),
        "parity": parity,
        "by_parity": folded(parity, ["odd"], {"total": ("s", total), "least": ("s", min), "keys": ("k", sorted)}),
        "whole": folded(parity, [], {"total": ("s", total), "keys": ("k", len)}),
    }


def random_moves(chance: random.Random, keys: int, count: int) -> list[Row]:
    return [{"k": f"k{chance.randrange(keys):02}", "by": chance.randint(-4, 4)} for _ in range(count)]


def test_tables_on_tables_are_right_after_every_tick_when_values_rise_and_fall(spark: SparkSession) -> None:
    chance = random.Random(7)
    rows: list[Row] = []
    with alternating(Driver(tables(), spark, tasks=(0, 1, 2))) as driver:
        for tick in range(5):
            more = random_moves(chance, 12, 25)
            if tick == 2:  # everybody falls: all tops lose their members, and every group is emptied
                more = [{"k": f"k{key:02}", "by": -40 - key % 3} for key in range(12)]
            if tick == 3:  # and some rise again
                more = [{"k": f"k{key:02}", "by": 60} for key in range(5)]
            rows += more
            driver.feed("moves", more, tick % 3)
            driver.advance()
            for step, expected in oracle(rows).items():
                check(driver, step, expected, f"tick {tick}")


@pytest.fixture
def one_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key has the same hash."""
    constant: Callable[..., Any] = lambda *columns: F.lit(7).cast("bigint")  # noqa: E731
    monkeypatch.setattr("hailstorm.engine.plan.fold.F.xxhash64", constant)
    # Workers get these stages by pickle, so that a patch of this process would not reach them: let the JVM group.
    monkeypatch.setattr("hailstorm.engine.plan.fold.can_hash", lambda type_: False)


@pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])
def test_keys_whose_hashes_collide_are_not_merged(spark: SparkSession, one_hash: None, tasks: int) -> None:
    chance = random.Random(11)
    rows: list[Row] = []
    with Driver(tables(), spark, tasks=(tasks,)) as driver:
        for tick in range(3):
            more = random_moves(chance, 9, 20)
            if tick == 2:
                more += [{"k": f"k{key:02}", "by": -30} for key in range(0, 9, 2)]
            rows += more
            driver.feed("moves", more)
            driver.advance()
            for step, expected in oracle(rows).items():
                check(driver, step, expected, f"tick {tick}")


def test_grouping_in_arrow_keeps_colliding_keys_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    import numpy as np
    import pyarrow as pa

    from hailstorm.algebra.counting import count

    lift = count().pieces(()).arrow.lift  # type: ignore[union-attr]
    assert lift is not None
    monkeypatch.setattr(group, "hash_columns", lambda columns, count: np.full(count, 7, dtype=np.int64))
    stage = group.GroupRows(("k",), (group.Lifted("n", (), lift),))
    batch = pa.record_batch(
        {"k": ["a", "b", "a", None, "b", None, "c"], "_time": pa.nulls(7, pa.timestamp("us", "UTC"))}
    )
    rows = next(iter(stage(iter([batch]), None))).to_pylist()  # type: ignore[arg-type]
    assert sorted(((row["k"], row["_state_n"]) for row in rows), key=repr) == [("a", 2), ("b", 2), ("c", 1), (None, 2)]


def test_ties_in_a_top_are_broken_by_key_whatever_the_order_of_arrival(spark: SparkSession) -> None:
    storm = hs.Topology("ties")
    moves = storm.spout("moves", hs.Log("x"), schema="k STRING, by BIGINT")
    moves.fold("sums", by="k", s=hs.sum("by")).top("best", 3, by="s")
    with Driver(storm, spark) as driver:
        for batch in (["d", "c"], ["b"], ["a", "e"]):
            driver.feed("moves", [{"k": k, "by": 1} for k in batch])
            driver.advance()
        assert [(row["k"], row["rank"]) for row in driver.table("best")] == [("a", 1), ("b", 2), ("c", 3)]
        driver.feed("moves", [{"k": "e", "by": 1}])
        driver.advance()
        assert sorted((row["rank"], row["k"]) for row in driver.table("best")) == [(1, "e"), (2, "a"), (3, "b")]
        kinds = [(row["k"], row["_kind"]) for row in driver.rows("best")]
        assert kinds[-1] == ("c", "delete") or ("c", "delete") in kinds


def test_a_top_of_a_filter_that_nobody_else_reads_sees_all_rows_in_every_way_to_run(spark: SparkSession) -> None:
    storm = hs.Topology("filtered")
    moves = storm.spout("moves", hs.Log("x"), schema="k STRING, by BIGINT")
    moves.fold("sums", by="k", s=hs.sum("by")).where("large", "s > 0").top("best", 2, by="s")
    with Driver(storm, spark, tasks=(2,)) as driver:
        driver.feed("moves", [{"k": f"k{number}", "by": number} for number in range(20)])
        driver.advance()
        assert [(row["k"], row["rank"]) for row in driver.table("best")] == [("k18", 2), ("k19", 1)]


@pytest.mark.parametrize("tasks", [1, 2], ids=["prepared", "planned"])
def test_a_group_that_loses_its_last_row_asks_nothing_of_ones_own_monoid(spark: SparkSession, tasks: int) -> None:
    storm = hs.Topology("emptied")
    moves = storm.spout("moves", hs.Log("x"), schema="k STRING, by BIGINT")
    sums = moves.fold("sums", by="k", s=hs.sum("by"), n=hs.count())
    sums.fold("sizes", by="s", longest=Longest("n"))
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        for by in (1, 1):
            driver.feed("moves", [{"k": "a", "by": by}])
            driver.advance()
        assert driver.table("sizes") == [{"s": 2, "longest": "xx"}]
        assert not driver.errors()
