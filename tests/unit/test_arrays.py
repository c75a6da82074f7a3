"""Arrow's booleans as numpy sees them, wherever a slice begins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hailstorm.ledger.arrays import flags, flags_at, order_by, order_of

_BITS = np.random.default_rng(3).random(70) < 0.5


@pytest.mark.parametrize("start", [0, 1, 7, 8, 9, 64])
@pytest.mark.parametrize("count", [0, 1, 5, 8, 70])
def test_flags_are_those_of_the_slice(start: int, count: int) -> None:
    column, expected = pa.array(_BITS).slice(start, count), _BITS[start : start + count]
    assert flags(column).tolist() == expected.tolist()
    places = np.arange(len(expected))[::-1]
    assert flags_at(column, places).tolist() == expected[::-1].tolist()


def test_an_empty_column_has_none() -> None:
    assert flags(pa.array([], pa.bool_())).tolist() == []
    assert flags_at(pa.array([], pa.bool_()), np.zeros(0, np.int64)).tolist() == []


@pytest.mark.parametrize("count", [0, 1, 2, 17, 1_000, 4_097])
@pytest.mark.parametrize(
    ("least", "most"), [(-(2**63), 2**63 - 1), (0, 3), (2**62, 2**62 + 1_000), (-5, 2**51), (-(2**63), -(2**63) + 9)]
)
def test_an_order_is_that_of_a_stable_sort(count: int, least: int, most: int) -> None:
    values = np.random.default_rng(count).integers(least, most, count, endpoint=True)
    assert order_of(values).tolist() == np.argsort(values, kind="stable").tolist()


def test_values_that_differ_in_their_last_bits_only_are_told_apart() -> None:
    far = np.array([2**63 - 1, -(2**63)])
    values = np.concatenate([far, np.random.default_rng(2).integers(0, 30, 5_000)])
    assert order_of(values).tolist() == np.argsort(values, kind="stable").tolist()


def test_rows_are_in_order_by_the_first_column_first() -> None:
    chance = np.random.default_rng(3)
    columns = [
        chance.integers(0, 20, 3_000),
        chance.integers(-(2**62), 2**62, 3_000) // 2**60,
        chance.integers(0, 2, 3_000),
    ]
    assert order_by(*columns).tolist() == np.lexsort(columns[::-1]).tolist()
