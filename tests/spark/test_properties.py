"""Random topologies over random rows, cut into ticks at random, equal the batch oracle; and both ways to run agree."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import cycle
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from tests.length import seeds
from tests.spark.oracle import SCHEMA, Drawn, after_changes, as_set, draw, draw_rows, plain

SEEDS = [int(seed) for seed in os.environ.get("HAILSTORM_SEEDS", "").split()] or seeds(4, 8)


def check(driver: Driver, drawn: Drawn, inputs: dict[str, list[dict[str, Any]]], place: str) -> None:
    for name, node in drawn.nodes.items():
        expected = node.rows(inputs)
        changes = driver.rows(name)
        if name not in drawn.tables():
            got = sorted(repr(sorted(row.items())) for row in changes)
            assert got == sorted(repr(sorted(row.items())) for row in expected), f"{place}, stream {name}"
            continue
        step = node.handle.step
        values = [column for column in step.schema.names if column not in step.key]
        assert as_set(after_changes(changes, step.key, values)) == as_set(expected), f"{place}, changes of {name}"
        if step.kind in ("fold", "top"):
            assert as_set(driver.table(name)) == as_set(expected), f"{place}, state of {name}"


def alternating(driver: Driver) -> Driver:
    """Let prepared and planned ticks take turns: each must go on from what the other has written."""
    ways = cycle(driver._negotiator._pace.ways)
    driver._negotiator._pace.way = lambda *asked: next(ways)  # type: ignore[method-assign]
    return driver


@pytest.mark.parametrize("seed", SEEDS)
def test_random_topologies_equal_the_oracle_however_the_input_is_cut(spark: SparkSession, seed: int) -> None:
    chance = random.Random(1_000 + seed)
    drawn = draw(seed)
    print(f"seed {seed}: " + "; ".join(f"{s.name} {s.kind} of {s.inputs} by {s.key}" for s in drawn.topology.steps))
    inputs: dict[str, list[dict[str, Any]]] = {spout: [] for spout in drawn.spouts}
    partitions = chance.randint(1, 4)
    with alternating(Driver(drawn.topology, spark, tasks=(0, 1, 2))) as driver:
        for tick in range(3):
            for _ in range(chance.randint(1, 3)):
                spout = chance.choice(drawn.spouts)
                rows = draw_rows(chance, chance.choice([1, 2, 20, 80]), nulls=seed % 3 == 0)
                inputs[spout] += rows
                driver.feed(spout, rows, chance.randrange(partitions))
            driver.advance()
            check(driver, drawn, inputs, f"seed {seed}, tick {tick}")


def committed(driver: Driver) -> dict[str, Any]:
    """Everything that the last commit of a driver holds, as sets: state, outboxes, dead letters, counts."""
    commit = list(open_ledger(driver.ledger.root).commits())[-1]

    def rows(files: Iterable[str], hidden: tuple[str, ...]) -> list[str]:
        tables = [read_table(driver.ledger.store, file) for file in files]
        found = [{n: plain(v) for n, v in row.items() if n not in hidden} for t in tables for row in t.to_pylist()]
        return sorted(repr(sorted(row.items())) for row in found)

    state = {step: rows([run_name(step, r.id) for r in c.added], ("_updated",)) for step, c in commit.state.items()}
    outbox = {sink: rows([file.path for file in files], ()) for sink, files in commit.outbox.items()}
    letters = rows([file.path for file in commit.dead_letters], ("raw",))
    return {**{f"state of {s}": r for s, r in state.items()}, **outbox, "letters": letters, "rows": commit.rows}


def test_prepared_and_planned_execution_of_an_interval_commit_the_same_rows(spark: SparkSession) -> None:
    chance = random.Random(5)
    storm = hs.Topology("both_ways", error_limit=1)
    rows = storm.spout("rows", hs.Log("x"), schema=SCHEMA)
    inverse = rows.bolt(lambda row: {"a": row.a, "q": 60 // row.b}, name="inverse", returns="a STRING, q INT")
    counts = inverse.fold("counts", by=["a", "q"], n=hs.count())
    counts.fold("sizes", by="n", keys=hs.count(), most=hs.max("q"))
    rows.fold("by_a", by="a", n=hs.count(), total=hs.sum("x"), mean=hs.mean("x"), values=hs.set("x")).top(
        "best", 2, by="total"
    )
    rows.fold("whole", least=hs.min("x"), last=hs.latest("x"))
    with Driver(storm, spark, tasks=(1,)) as prepared, Driver(storm, spark, tasks=(3,)) as planned:
        for tick in range(3):
            for partition in range(2):
                fed = draw_rows(chance, 40, nulls=True)
                moment = datetime(2026, 1, 1 + tick, tzinfo=UTC)
                for driver in (prepared, planned):
                    driver.logs["rows"].append(fed, partition=partition, partitions=partition + 1, time=moment)
            prepared.advance()
            planned.advance()
            left, right = committed(prepared), committed(planned)
            assert left.keys() == right.keys()
            for name in left:
                assert left[name] == right[name], f"tick {tick}: {name}"
            assert len(left["letters"]) > 2
