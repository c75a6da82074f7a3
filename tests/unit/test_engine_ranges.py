"""How an interval is shared between tasks: every record once, and no task with more than its share."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from hailstorm.clock.clock import Range
from hailstorm.engine.advance import task_ranges
from tests.length import examples

RANGES = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 60)), max_size=6).map(
    lambda pairs: tuple(Range(f"s{i % 2}", i, start, start + count) for i, (start, count) in enumerate(pairs))
)


@settings(max_examples=examples(80, 200), deadline=None)
@given(RANGES, st.integers(1, 9))
def test_tasks_cover_the_ranges_exactly(ranges: tuple[Range, ...], tasks: int) -> None:
    shares = task_ranges(ranges, tasks)
    assert len(shares) == tasks
    read = [(r.spout, r.partition, offset) for share in shares for r in share for offset in range(r.start, r.end)]
    assert len(read) == len(set(read))
    assert set(read) == {(r.spout, r.partition, offset) for r in ranges for offset in range(r.start, r.end)}


@settings(max_examples=examples(80, 200), deadline=None)
@given(RANGES, st.integers(1, 9))
def test_no_task_gets_more_than_its_share_or_nothing_to_read(ranges: tuple[Range, ...], tasks: int) -> None:
    total = sum(len(r) for r in ranges)
    for share in task_ranges(ranges, tasks):
        assert sum(r.end - r.start for r in share) <= -(-total // tasks)
        assert all(r.start < r.end for r in share)


@settings(max_examples=examples(50, 100), deadline=None)
@given(RANGES, st.integers(1, 9))
def test_a_task_reads_a_partition_in_one_piece(ranges: tuple[Range, ...], tasks: int) -> None:
    for share in task_ranges(ranges, tasks):
        places = [(r.spout, r.partition) for r in share]
        assert len(places) == len(set(places)), "what a task has seen of a partition is counted by partition"
