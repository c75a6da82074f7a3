"""An order that is too large to be sent with every task goes through a scratch file, which is gone after the tick."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.stages import order
from hailstorm.engine.stages.order import Order, TaskRange, received
from hailstorm.testing import Driver


def an_order(scratch: Path, ranges: int) -> Order:
    shares = tuple((TaskRange("rows", number, 0, 10),) for number in range(ranges))
    return Order(ledger="l", cache=None, scratch=str(scratch), seq=1, epoch=1, now=0, ranges=shares)


def test_a_small_order_is_sent_and_a_large_one_is_left(tmp_path: Path) -> None:
    small, large = an_order(tmp_path, 3), an_order(tmp_path, 20_000)
    assert received(small.sent(0)) == small
    assert not list(tmp_path.iterdir())
    text = large.sent(0)
    assert len(text) < 500
    assert received(text) == large


@pytest.mark.parametrize("tasks", [1, 2])
def test_ticks_with_large_orders_are_the_same(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, tasks: int) -> None:
    monkeypatch.setattr(order, "LARGEST", 0)
    storm = hs.Topology("large")
    rows = storm.spout("rows", hs.Log("x"), schema="word STRING")
    rows.fold("counts", by="word", n=hs.count()).top("top", 1, by="n")
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        for _ in range(2):
            driver.feed("rows", [{"word": word} for word in "aab"])
            driver.advance()
        assert sorted(driver.table("counts"), key=lambda row: str(row["word"])) == [
            {"word": "a", "n": 4},
            {"word": "b", "n": 2},
        ]
        assert [row["word"] for row in driver.table("top")] == ["a"]
        scratch = driver._negotiator.ledger.cache.folder / "scratch"
        assert not [path for path in scratch.rglob("*") if path.is_file()]
