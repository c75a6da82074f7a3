"""The way of a record from arrival to delivery, part by part."""

from __future__ import annotations

import time

import pytest

from hailstorm.engine.delivery.sink_state import Delivered
from hailstorm.engine.stages.order import Seen
from hailstorm.engine.ticks.journeys import Journeys


def seen(now: float, *waited: float) -> dict[str, dict[int, Seen]]:
    """One record in each of some partitions, that long ago."""
    return {"lines": {p: Seen(rows=1, arrived=(now - one) * 1e6) for p, one in enumerate(waited)}}


def test_the_parts_are_from_arrival_to_delivery_and_nothing_is_counted_twice() -> None:
    journeys, now = Journeys(), time.time()
    journeys.committed(7, seen(now - 0.05, 0.2, 0.4), began=now - 0.05, reading=0.01)
    committed = time.monotonic()
    (parts,) = journeys.ended([Delivered((7,), committed + 0.03, committed + 0.05)])
    assert list(parts) == ["waiting", "reading", "tick", "hand-over", "sink"]
    assert parts["waiting"] == pytest.approx(300, abs=1)
    assert parts["reading"] == pytest.approx(10)
    assert parts["tick"] >= 40
    assert 0 <= parts["hand-over"] <= 30.1
    assert parts["sink"] == pytest.approx(20)


def test_every_commit_of_a_transaction_has_its_own_way_and_others_have_none() -> None:
    journeys, now = Journeys(), time.time()
    journeys.committed(1, seen(now, 0.1), now, 0.0)
    journeys.committed(2, {"rate": {0: Seen(rows=5)}}, now, 0.0)  # a log that does not tell when records came
    journeys.committed(3, {}, now, 0.0)  # no records
    journeys.committed(4, seen(now, 0.1), now, 0.0)
    found = list(journeys.ended([Delivered((1, 2, 3, 4), time.monotonic(), time.monotonic())]))
    assert len(found) == 2
    assert list(journeys.ended([Delivered((99,), 0.0, 1.0)])) == []


def test_what_nobody_delivers_is_forgotten() -> None:
    journeys, now = Journeys(), time.time()
    for commit in range(1, 2_500):
        journeys.committed(commit, seen(now, 0.1), now, 0.0)
    assert len(journeys._ticks) == 1_000


def test_the_mean_arrival_counts_records_and_not_batches() -> None:
    one = Seen(rows=3, bytes=10, arrived=100.0)
    one.add(Seen(rows=1, bytes=5, highest=7, arrived=200.0))
    one.add(Seen(rows=4, bytes=1, highest=3))
    assert (one.rows, one.bytes, one.highest, one.arrived) == (8, 16, 7, 125.0)
