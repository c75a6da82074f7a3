"""The plans of a run: each number of tasks is compiled once, and of many numbers the newest are kept."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

import pytest

from hailstorm.engine.ticks import plans as module
from hailstorm.engine.ticks.plans import Plans


def test_an_executor_that_comes_back_finds_its_plan_and_numbers_of_long_ago_have_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled: list[int] = []

    def compile_one(spark: Any, topology: Any, tasks: int) -> str:
        compiled.append(tasks)
        return f"plan of {tasks}"

    monkeypatch.setattr(module, "compile_topology", compile_one)
    plans = Plans(MagicMock(), MagicMock(), MagicMock(rosters={}))
    for way in (0, 2, 5, 3, 5, 2, 1):  # 0 is run with the plan of one task
        assert plans.of(way) == f"plan of {max(way, 1)}"
    assert compiled == [1, 2, 5, 3]
    for way in (6, 7, 8, 0, 5, 7):
        plans.of(way)
    assert compiled == [1, 2, 5, 3, 6, 7, 8, 5], "the plan of one task stays, whatever comes and goes"
