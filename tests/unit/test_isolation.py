"""Isolation finds exactly the records that fail by themselves, in few tries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine.isolation import poisoned_records
from hailstorm.errors import RunError


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    bad=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 39)), max_size=6),
)
def test_the_records_that_fail_are_found_and_no_others(lengths: list[int], bad: set[tuple[int, int]]) -> None:
    interval = Interval(
        Clock({"s": dict.fromkeys(range(len(lengths)), 5)}), Clock({"s": {p: 5 + n for p, n in enumerate(lengths)}})
    )
    wanted = {(p, offset + 5) for p, offset in bad if p < len(lengths) and offset < lengths[p]}
    tries = 0

    def attempt(part: Interval) -> RunError | None:
        nonlocal tries
        tries += 1
        inside = any(r.partition == p and r.start <= offset < r.end for r in part.ranges() for p, offset in wanted)
        return RunError(10, "bad") if inside else None

    found = poisoned_records(interval, attempt, most=100)
    assert found is not None
    assert {(p, offset) for p, offsets in found.get("s", {}).items() for offset in offsets} == wanted
    assert tries <= 2 + 2 * 8 * max(1, len(wanted))


def test_more_than_the_limit_is_no_accident() -> None:
    interval = Interval(Clock({"s": {0: 0}}), Clock({"s": {0: 16}}))
    assert poisoned_records(interval, lambda part: RunError(10, "bad"), most=3) is None
