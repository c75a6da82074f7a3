"""A tick is bounded in bytes: by what a log says of its ranges, or by what its records weighed before."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine.stages.order import Seen
from hailstorm.engine.ticks.weighing import Weights
from hailstorm.spouts import Files, Log, Rate
from hailstorm.topology.settings import Settings


@dataclass(frozen=True)
class Heavy:
    """A log whose record n has so many bytes, or that does not know."""

    weights: tuple[int, ...] | None = None

    def size(self, partition: int, start: int, end: int) -> int | None:
        return None if self.weights is None else sum(self.weights[start:end])


def interval(end: int, partitions: int = 1) -> Interval:
    whole = dict.fromkeys(range(partitions), end)
    return Interval(Clock({"s": dict.fromkeys(whole, 0)}), Clock({"s": whole}))


def bounded(weights: Weights, source: Heavy, found: Interval, most: int) -> Interval:
    sources: dict[str, Any] = {"s": source}
    return weights.bounded(found, sources, most)


@pytest.mark.parametrize("sizes", [(10,) * 100, (1,) * 50 + (1000,) * 50, (1000,) * 50 + (1,) * 50, (5000,) * 100])
def test_an_interval_holds_no_more_bytes_than_asked_for_or_a_single_record(sizes: tuple[int, ...]) -> None:
    light = bounded(Weights(), Heavy(sizes), interval(100), 400)
    (range_,) = light.ranges()
    assert range_.start == 0
    assert sum(sizes[: range_.end]) <= 400 or range_.end == 1


def test_what_is_light_enough_stays_as_it_is() -> None:
    found = interval(100)
    assert bounded(Weights(), Heavy((1,) * 100), found, 100) is found


def test_every_partition_gets_its_record_however_heavy() -> None:
    light = bounded(Weights(), Heavy((5000,) * 10), interval(10, partitions=3), 1000)
    assert light.end == Clock({"s": {0: 1, 1: 1, 2: 1}})


def test_records_of_which_nothing_is_known_are_taken_for_large_ones_until_some_were_read() -> None:
    weights, source = Weights(), Heavy(None)
    assert len(bounded(weights, source, interval(100_000), 256_000_000)) == 256
    weights.learn({"s": {0: Seen(rows=90, bytes=9_000), 1: Seen(rows=10, bytes=1_000)}})
    assert len(bounded(weights, source, interval(100_000), 1_000_000)) == 10_000
    weights.learn({"s": {0: Seen(rows=10, bytes=100_000)}})  # heavier at once
    assert len(bounded(weights, source, interval(100_000), 1_000_000)) == 100
    weights.learn({"s": {0: Seen(rows=10, bytes=1_000)}})  # lighter by and by
    assert 100 < len(bounded(weights, source, interval(100_000), 1_000_000)) < 1_000


def test_logs_say_roughly_what_their_ranges_weigh(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.append([b"x" * 100_000] * 20)  # packs well: what counts is what it takes once it is read
    log.append([b"y"] * 20)
    assert 900_000 < log.size(0, 0, 10) < 1_100_000
    assert 0 < log.size(0, 20, 40) < 10_000
    assert 1_900_000 < log.size(0, 0, 40) < 2_100_000
    (tmp_path / "a.txt").write_bytes(b"z" * 99 + b"\n")
    (tmp_path / "b.txt").write_bytes((b"z" * 999 + b"\n") * 10)
    files = Files(str(tmp_path), format="text")
    assert files.latest() == {0: 11}
    assert (files.size(0, 0, 1), files.size(0, 1, 6), files.size(0, 3, 3)) == (100, 5000, 0)
    assert 0 < Rate(1, limit=10).size(0, 0, 10) < 2000


def test_a_size_may_be_said_in_units() -> None:
    read = Settings().with_options({"max_tick_bytes": "64 MB"})
    assert read.max_tick_bytes == 64_000_000
    assert Settings().with_options({"max_tick_bytes": 1_000}).max_tick_bytes == 1_000
