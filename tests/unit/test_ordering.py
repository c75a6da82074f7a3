"""Spark's order of values, as columns that Arrow sorts."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hailstorm.ledger.ordering import sortable


@pytest.mark.parametrize("direction", ["ascending", "descending"])
def test_a_null_in_a_struct_is_the_smallest(direction: str) -> None:
    values = [{"a": a, "b": b} for a, b in itertools.product([None, "", "x"], [None, 1, 2])]
    parts = sortable(pa.array(values))
    names = [str(place) for place in range(len(parts))]
    order = pc.sort_indices(pa.table(parts, names=names), sort_keys=[(name, direction) for name in names])
    found = [values[place] for place in order.to_pylist()]
    assert found == (values if direction == "ascending" else values[::-1])
