"""Which rows belong together, by key and time: against every pair tried."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from hailstorm.engine.stages.matching import key_numbers, newest_until, pairs

rows = st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5)), max_size=12)


def columns(found: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    keys, times = zip(*found, strict=True) if found else ((), ())
    return np.array(keys, np.int64), np.array(times, np.int64)


@settings(deadline=None)
@given(rows, rows, st.integers(0, 4), st.integers(0, 4))
def test_pairs_are_all_rows_with_equal_keys_within_the_bounds(
    mine: list[tuple[int, int]], others: list[tuple[int, int]], before: int, after: int
) -> None:
    keys, times = columns(mine)
    found = pairs(keys, times - before, times + after, *columns(others))
    expected = [
        (i, j)
        for i, (key, time) in enumerate(mine)
        for j, (other, at) in enumerate(others)
        if key == other and time - before <= at <= time + after
    ]
    assert sorted(zip(found[0].tolist(), found[1].tolist(), strict=True)) == expected


@settings(deadline=None)
@given(rows, rows)
def test_the_newest_until_a_time_is_the_last_one_that_is_not_after_it(
    mine: list[tuple[int, int]], others: list[tuple[int, int]]
) -> None:
    found = newest_until(*columns(mine), *columns(others))
    for (key, time), place in zip(mine, found.tolist(), strict=True):
        known = [(at, j) for j, (other, at) in enumerate(others) if other == key and at <= time]
        assert place == (max(known)[1] if known else -1)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.text("ab", max_size=2)), max_size=8), st.integers(0, 8))
def test_equal_keys_have_equal_numbers_and_no_others(keys: list[tuple[int, str]], cut: int) -> None:
    def table(part: list[tuple[int, str]]) -> pa.Table:
        return pa.table(
            {"a": pa.array([a for a, _ in part], pa.int32()), "b": pa.array([b for _, b in part], pa.string())}
        )

    one, two = key_numbers(table(keys[:cut]), table(keys[cut:]), ("a", "b"))
    numbers = [*one.tolist(), *two.tolist()]
    assert [[m == n for n in numbers] for m in numbers] == [[k == o for o in keys] for k in keys]


def test_zeros_of_both_signs_and_all_nans_are_one_key() -> None:
    nan = float("nan")
    for kind in (pa.float32(), pa.float64()):
        one = pa.table({"a": pa.array([0.0, nan, 1.0], kind)})
        two = pa.table({"a": pa.array([-0.0, -nan, -1.0], kind)})
        mine, theirs = key_numbers(one, two, ("a",))
        assert (mine == theirs).tolist() == [True, True, False]
        assert len({*mine.tolist(), *theirs.tolist()}) == 4
