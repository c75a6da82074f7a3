"""Random topologies over random rows, cut into ticks at random, equal the batch oracle; and both ways to run agree."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from hailstorm.testing import Driver
from tests.spark.oracle import Drawn, after_changes, as_set, draw, draw_rows

SEEDS = [int(seed) for seed in os.environ.get("HAILSTORM_SEEDS", "").split()] or list(range(8))


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


def letter(row: dict[str, Any]) -> str:
    """A dead letter without the moment at which its record was appended."""
    raw = {name: value for name, value in json.loads(row["raw"]).items() if name != "_time"}
    return repr([row["spout"], row["partition"], row["offset"], row["step"], row["reason"], raw])


@pytest.mark.parametrize("seed", SEEDS)
def test_random_topologies_equal_the_oracle_however_the_input_is_cut(spark: SparkSession, seed: int) -> None:
    chance = random.Random(1_000 + seed)
    drawn = draw(seed)
    print(f"seed {seed}: " + "; ".join(f"{s.name} {s.kind} of {s.inputs} by {s.key}" for s in drawn.topology.steps))
    inputs: dict[str, list[dict[str, Any]]] = {spout: [] for spout in drawn.spouts}
    with Driver(drawn.topology, spark, tasks=(1,)) as prepared, Driver(drawn.topology, spark, tasks=(2,)) as planned:
        for tick in range(4):
            for _ in range(chance.randint(1, 3)):
                spout, partition = chance.choice(drawn.spouts), chance.randint(0, 3)
                rows = draw_rows(chance, chance.choice([1, 2, 20, 80]))
                inputs[spout] += rows
                prepared.feed(spout, rows, partition)
                planned.feed(spout, rows, partition)
            prepared.advance()
            planned.advance()
            check(prepared, drawn, inputs, f"seed {seed}, tick {tick}, prepared")
            check(planned, drawn, inputs, f"seed {seed}, tick {tick}, planned")
            letters = [sorted(map(letter, driver.errors())) for driver in (prepared, planned)]
            assert letters[0] == letters[1], f"seed {seed}, tick {tick}: dead letters"
