"""Arrow's booleans as numpy sees them, wherever a slice begins."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hailstorm.ledger.arrays import flags, flags_at

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
