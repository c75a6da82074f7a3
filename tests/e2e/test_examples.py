"""The shipped examples give what plain Python gives."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from hailstorm.cli.demo import EXAMPLES
from hailstorm.testing import Driver

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = Path(__file__).parents[2] / "hailstorm/examples"


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_gives_what_plain_python_gives(name: str, spark: SparkSession) -> None:
    example = import_module(f"hailstorm.examples.{name}")
    with Driver(example.storm, spark) as driver:
        (log,) = driver.logs.values()
        fed: list[dict[str, Any]] = []
        for seed in range(3):
            example.feed(log, 500, seed)
            fed += example.events(500, seed)
            assert driver.advance() == 500
        for step, expected in example.oracle(fed).items():
            assert canonical(driver.table(step)) == canonical(expected), step


def canonical(table: list[dict[str, Any]]) -> list[str]:
    """Rows that can be compared: in one order, floats to nine digits."""

    def value(cell: Any) -> Any:
        return f"{cell:.9g}" if isinstance(cell, float) else cell

    return sorted(json.dumps({name: value(row[name]) for name in sorted(row)}, default=str) for row in table)


def test_the_same_seed_feeds_the_same_events() -> None:
    for name in EXAMPLES:
        example = import_module(f"hailstorm.examples.{name}")
        assert example.events(50, seed=3) == example.events(50, seed=3)
        assert example.events(50, seed=3) != example.events(50, seed=4)


def test_every_example_is_a_demo() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} - {"__init__"} == set(EXAMPLES)
