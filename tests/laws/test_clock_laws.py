"""The laws of clocks, intervals, coverage and watermarks, for any of them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hailstorm.clock.clock import Clock, Interval, Range
from hailstorm.clock.coverage import Coverage, Overlap, spans_without
from hailstorm.clock.watermark import Patience, Watermark

SPOUTS = st.sampled_from(["tweets", "posts"])
PARTITIONS = st.integers(0, 2)
OFFSETS = st.integers(0, 30)
CLOCKS = st.dictionaries(SPOUTS, st.dictionaries(PARTITIONS, OFFSETS, max_size=3), max_size=2).map(Clock)
RANGES = st.builds(
    lambda spout, partition, start, size: Range(spout, partition, start, start + size),
    SPOUTS,
    PARTITIONS,
    OFFSETS,
    st.integers(0, 8),
)


def same(one: Clock, two: Clock) -> bool:
    """Equal as positions: a spout without partitions says nothing."""
    return set(one) == set(two)


@given(CLOCKS, CLOCKS, CLOCKS)
def test_the_order_of_joins_is_no_matter(a: Clock, b: Clock, c: Clock) -> None:
    assert same(a.join(b), b.join(a))
    assert same(a.join(b.join(c)), a.join(b).join(c))
    assert same(a.join(a), a)


@given(CLOCKS, CLOCKS, CLOCKS)
def test_a_join_covers_both_and_is_covered_by_what_covers_both(a: Clock, b: Clock, c: Clock) -> None:
    assert a.join(b).covers(a)
    assert a.join(b).covers(b)
    assert all(join.covers(a.join(b)) for join in (a.join(b).join(c), c) if join.covers(a) and join.covers(b))


@given(CLOCKS, CLOCKS, CLOCKS)
def test_covers_is_an_order(a: Clock, b: Clock, c: Clock) -> None:
    assert a.covers(a)
    if a.covers(b) and b.covers(c):
        assert a.covers(c)


@given(CLOCKS)
def test_a_clock_survives_json(clock: Clock) -> None:
    assert Clock.from_json(clock.to_json()).offsets == clock.offsets


@given(CLOCKS, CLOCKS, CLOCKS)
def test_intervals_that_follow_each_other_have_every_record_once(a: Clock, b: Clock, c: Clock) -> None:
    first, second, third = a, a.join(b), a.join(b).join(c)
    whole = records(Interval(first, third).ranges())
    parts = records(Interval(first, second).ranges()) + records(Interval(second, third).ranges())
    assert sorted(whole) == sorted(parts)


def records(ranges: object) -> list[tuple[str, int, int]]:
    return [(r.spout, r.partition, offset) for r in ranges for offset in range(r.start, r.end)]  # type: ignore[attr-defined]


@given(st.lists(RANGES, max_size=8))
def test_coverage_holds_exactly_the_records_of_its_ranges_or_is_refused(ranges: list[Range]) -> None:
    wanted = records(ranges)
    if len(set(wanted)) < len(wanted):
        with pytest.raises(Overlap) as caught:
            Coverage.of_ranges(ranges)
        twice = records([caught.value.range])
        assert twice
        assert all(wanted.count(record) > 1 for record in twice)
    else:
        coverage = Coverage.of_ranges(ranges)
        assert records(coverage) == sorted(wanted)
        assert len(coverage) == len(wanted)


@given(st.lists(RANGES, max_size=6), st.lists(RANGES, max_size=6))
def test_union_is_commutative_and_counts_every_record_once(one: list[Range], two: list[Range]) -> None:
    try:
        a, b = Coverage.of_ranges(one), Coverage.of_ranges(two)
    except Overlap:
        return
    shared = set(records(a)) & set(records(b))
    if shared:
        with pytest.raises(Overlap) as caught:
            a.union(b)
        assert set(records([caught.value.range])) <= shared
    else:
        assert a.union(b) == b.union(a)
        assert set(records(a.union(b))) == set(records(a)) | set(records(b))


@given(st.lists(RANGES, max_size=8))
def test_spans_are_sorted_and_apart_and_survive_json(ranges: list[Range]) -> None:
    try:
        coverage = Coverage.of_ranges(ranges)
    except Overlap:
        return
    for partitions in coverage.spans.values():
        for spans in partitions.values():
            assert all(start < end for start, end in spans)
            assert all(left[1] < right[0] for left, right in pairwise(spans))
    assert Coverage.from_json(coverage.to_json()) == coverage


@given(st.lists(RANGES, max_size=6), st.lists(RANGES, max_size=6))
def test_spans_without_others_hold_what_only_they_hold(one: list[Range], two: list[Range]) -> None:
    offsets = [{at for range_ in ranges for at in range(range_.start, range_.end)} for ranges in (one, two)]
    spans, gaps = (Coverage.of_ranges(Range("t", 0, at, at + 1) for at in some).spans for some in offsets)
    left = spans_without(spans.get("t", {}).get(0, ()), gaps.get("t", {}).get(0, ()))
    assert [at for start, end in left for at in range(start, end)] == sorted(offsets[0] - offsets[1])


TICKS = st.lists(
    st.tuples(
        st.dictionaries(SPOUTS, st.dictionaries(PARTITIONS, st.integers(0, 1_000), max_size=3), max_size=2),
        st.integers(0, 100),  # how long after the tick before
    ),
    max_size=8,
)
PATIENCE = st.fixed_dictionaries(
    {name: st.builds(Patience, st.integers(0, 50), st.none() | st.integers(0, 150)) for name in ("tweets", "posts")}
)


@given(TICKS, PATIENCE)
def test_a_watermark_never_moves_back_and_never_passes_what_was_seen(
    ticks: list[tuple[dict[str, dict[int, int]], int]], patience: dict[str, Patience]
) -> None:
    watermark, now, highest = Watermark(), 0, -1
    for seen, later in ticks:
        now += later
        after = watermark.advance(seen, now, patience)
        assert watermark.time is None or (after.time is not None and after.time >= watermark.time)
        watermark = after
        highest = max([highest, *(time for row in seen.values() for time in row.values())])
    if watermark.time is not None:
        assert watermark.time <= highest + now  # where all partitions are idle it goes on with the wall clock


@given(TICKS)
def test_without_idle_it_is_the_least_of_all_partitions_at_its_highest(
    ticks: list[tuple[dict[str, dict[int, int]], int]],
) -> None:
    patience = {"tweets": Patience(10), "posts": Patience(20)}
    watermark, now = Watermark(), 0
    best: dict[str, dict[int, int]] = {}
    high: dict[str, int] = {}
    for seen, later in ticks:
        now += later
        watermark = watermark.advance(seen, now, patience)
        for spout, row in seen.items():
            for partition, time in row.items():
                known = best.setdefault(spout, {})
                known[partition] = max(time, known.get(partition, time))
        for spout, known in best.items():
            least = min(known.values()) - patience[spout].lateness
            high[spout] = max(least, high.get(spout, least))
    assert watermark.spouts == high


@given(TICKS, PATIENCE)
def test_a_watermark_goes_on_from_json_as_from_itself(
    ticks: list[tuple[dict[str, dict[int, int]], int]], patience: dict[str, Patience]
) -> None:
    watermark, now = Watermark(), 0
    for seen, later in ticks:
        now += later
        read = Watermark.from_json(watermark.time, watermark.spouts, watermark.to_json())
        assert read.advance(seen, now, patience) == watermark.advance(seen, now, patience)
        watermark = watermark.advance(seen, now, patience)
