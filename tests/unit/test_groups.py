"""Groups of rows by key: neighbours in an order by hash, also where different keys have one hash."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from hailstorm.engine.stages.group import groups_of


@pytest.mark.parametrize("in_any_order", [False, True])
@pytest.mark.parametrize("beyond", [5, None])
def test_keys_of_one_hash_are_groups_of_their_own(in_any_order: bool, beyond: int | None) -> None:
    """The second column says the same as the first, or tells apart what the first does not."""
    chance = np.random.default_rng(1)
    first = chance.integers(0, 4, 500)
    second = first + beyond if beyond is not None else chance.integers(0, 3, 500)
    keys = pa.table({"start": first, "end": second})
    order, starts = groups_of(keys, first // 2, in_any_order)  # each hash is that of two keys, or of six
    assert sorted(order.tolist()) == list(range(500))
    found = [
        list(zip(first[part].tolist(), second[part].tolist(), strict=True)) for part in np.split(order, starts[1:])
    ]
    assert all(len(set(group)) == 1 for group in found)
    assert len(found) == len(set(zip(first.tolist(), second.tolist(), strict=True)))


def test_rows_of_a_key_stay_in_their_order() -> None:
    keys = pa.table({"k": pa.array([1, 2, 1, 1, 2])})
    order, starts = groups_of(keys, np.array([9, 3, 9, 9, 3]))
    assert (order.tolist(), starts.tolist()) == ([1, 4, 0, 2, 3], [0, 2])
