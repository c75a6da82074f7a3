"""Clocks, coverage and watermarks by example; their laws are in tests/laws."""

from __future__ import annotations

import pytest

from hailstorm.clock.clock import Clock, Interval, Range
from hailstorm.clock.coverage import Coverage, Overlap
from hailstorm.clock.watermark import Patience, Watermark, of_steps

SECOND = 1_000_000


def test_join_takes_the_later_of_each_partition() -> None:
    a, b = Clock({"tweets": {0: 5, 1: 2}}), Clock({"tweets": {0: 3, 2: 9}})
    assert a.join(b) == Clock({"tweets": {0: 5, 1: 2, 2: 9}})


def test_a_clock_covers_what_lies_before_it() -> None:
    clock = Clock({"tweets": {0: 5}})
    assert clock.covers(Clock({"tweets": {0: 5}}))
    assert clock.covers(Clock())
    assert not clock.covers(Clock({"tweets": {0: 6}}))
    assert not clock.covers(Clock({"tweets": {1: 1}}))


def test_an_interval_reads_a_new_partition_from_its_beginning() -> None:
    interval = Interval(Clock({"tweets": {0: 5}}), Clock({"tweets": {0: 7, 1: 3}, "posts": {0: 0}}))
    assert interval.ranges() == (Range("tweets", 0, 5, 7), Range("tweets", 1, 0, 3))
    assert len(interval) == 5


def test_coverage_of_ticks_that_follow_each_other_is_one_span() -> None:
    coverage = Coverage()
    for start in range(0, 100, 10):
        tick = Interval(Clock({"tweets": {0: start}}), Clock({"tweets": {0: start + 10}}))
        coverage = coverage.union(Coverage.of_interval(tick))
    assert coverage.to_json() == {"tweets": {"0": [[0, 100]]}}


def test_a_record_is_never_counted_twice() -> None:
    live = Coverage.of_ranges([Range("tweets", 0, 50, 100)])
    assert live.union(Coverage.of_ranges([Range("tweets", 0, 0, 50)])).spans == {"tweets": {0: ((0, 100),)}}
    with pytest.raises(Overlap, match="3 records from tweets/0@50 on are in both"):
        live.union(Coverage.of_ranges([Range("tweets", 0, 0, 53)]))


def test_the_slowest_partition_sets_the_watermark() -> None:
    patience = {"tweets": Patience(lateness=10)}
    watermark = Watermark().advance({"tweets": {0: 100, 1: 50}}, now=0, patience=patience)
    assert watermark.time == 40
    assert watermark.advance({"tweets": {1: 200}}, now=1, patience=patience).time == 90


def test_a_partition_that_is_idle_is_left_out_until_it_speaks_again() -> None:
    patience = {"tweets": Patience(idle=5 * SECOND)}
    watermark = Watermark().advance({"tweets": {0: 100, 1: 50}}, now=0, patience=patience)
    waiting = watermark.advance({"tweets": {0: 200}}, now=5 * SECOND, patience=patience)
    assert waiting.time == 50
    gone = waiting.advance({"tweets": {0: 300}}, now=6 * SECOND, patience=patience)
    assert gone.time == 300
    back = gone.advance({"tweets": {1: 60}}, now=7 * SECOND, patience=patience)
    assert back.time == 300


def test_when_all_are_idle_time_goes_on_from_the_highest_with_the_wall_clock() -> None:
    patience = {"tweets": Patience(lateness=10, idle=SECOND)}
    watermark = Watermark().advance({"tweets": {0: 100, 1: 50}}, now=0, patience=patience)
    assert watermark.advance({}, now=SECOND, patience=patience).time == 40
    idle = watermark.advance({}, now=9 * SECOND, patience=patience)
    assert idle.time == 100 + 8 * SECOND - 10
    assert idle.advance({"tweets": {0: 200}}, now=10 * SECOND, patience=patience).time == idle.time


def test_a_spout_that_never_had_a_record_holds_back_what_is_below_it() -> None:
    steps = [("tweets", ()), ("posts", ()), ("words", ("tweets",)), ("both", ("words", "posts")), ("top", ("words",))]
    watermark = Watermark().advance({"tweets": {0: 100}}, 0, {"tweets": Patience(10), "posts": Patience()})
    times = of_steps(steps, watermark.spouts, lambda step, time: time - 5 if step == "words" and time else time)
    assert times == {
        "tweets": (90, 90),
        "posts": (None, None),
        "words": (90, 85),
        "both": (None, None),
        "top": (85, 85),
    }


def test_a_spout_that_was_removed_holds_nothing_back() -> None:
    both = {"tweets": Patience(), "posts": Patience()}
    watermark = Watermark().advance({"tweets": {0: 100}, "posts": {0: 5}}, now=0, patience=both)
    assert watermark.time == 5
    assert watermark.advance({"tweets": {0: 110}}, now=1, patience={"tweets": Patience()}).time == 110
