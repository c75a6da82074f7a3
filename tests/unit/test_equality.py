"""Equality of columns, against Python: any type, any nesting, with nulls, NaN and slices."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from hailstorm.ledger.equality import equal_values
from hailstorm.ledger.same_value import same_value
from tests.length import examples

PLAIN: dict[pa.DataType, some.SearchStrategy[Any]] = {
    pa.int64(): some.integers(0, 2),
    pa.float64(): some.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf]),
    pa.string(): some.sampled_from(["", "a", "b"]),
    pa.bool_(): some.booleans(),
    pa.binary(): some.sampled_from([b"", b"a"]),
    pa.null(): some.none(),
}


def nested(types: some.SearchStrategy[pa.DataType]) -> some.SearchStrategy[pa.DataType]:
    return some.one_of(
        types.map(pa.list_),
        types.map(pa.large_list),
        types.map(lambda one: pa.list_(one, 2)),
        types.map(lambda one: pa.map_(pa.string(), one)),
        some.lists(types, max_size=3).map(lambda all_: pa.struct([(f"f.{i}", one) for i, one in enumerate(all_)])),
    )


TYPES = some.recursive(some.sampled_from(list(PLAIN)), nested, max_leaves=4)


def values(of: pa.DataType) -> some.SearchStrategy[Any]:
    """Few different ones, so that many are equal."""
    if of in PLAIN:
        found = PLAIN[of]
    elif pa.types.is_struct(of):
        found = some.fixed_dictionaries({field.name: values(field.type) for field in of})
    elif pa.types.is_map(of):
        found = some.lists(some.tuples(PLAIN[pa.string()], values(of.item_type)), max_size=2)
    else:
        size = of.list_size if pa.types.is_fixed_size_list(of) else None
        found = some.lists(values(of.value_type), min_size=size or 0, max_size=2 if size is None else size)
    return some.none() | found


def same(a: Any, b: Any) -> bool:
    """The oracle."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return all(same(a[name], b[name]) for name in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.slow
@settings(max_examples=examples(60, 300), deadline=None)
@given(some.data(), TYPES)
def test_columns_are_compared_as_python_compares_their_values(data: some.DataObject, of: pa.DataType) -> None:
    pairs = data.draw(some.lists(some.tuples(values(of), values(of)) | values(of).map(lambda one: (one, one))))
    new, old = (pa.array([pair[place] for pair in pairs], of) for place in (0, 1))
    start = data.draw(some.integers(0, len(pairs)))
    other = pa.concat_arrays([old.slice(0, 1), old]).slice(1) if len(old) else old  # the same, at another offset
    for left, right in ((new, old), (old, new), (new, other), (pa.chunked_array([new]), old)):
        expected = [same(a, b) for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)]
        assert equal_values(left, right).to_pylist() == expected
        assert [same_value(a, b) for a, b in zip(left.to_pylist(), right.to_pylist(), strict=True)] == expected
        assert equal_values(left.slice(start), right.slice(start)).to_pylist() == expected[start:]


def test_times_that_python_cannot_hold_are_compared() -> None:
    far = pa.array([[2**62], [2**62 + 1], [0]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us", "UTC")))
    with pytest.raises((OverflowError, ValueError)):
        far.to_pylist()
    near = pa.concat_arrays([far.slice(0, 1), far.slice(0, 1), far.slice(2)])
    assert equal_values(far, near).to_pylist() == [True, False, True]


def test_what_is_below_a_null_counts_for_nothing() -> None:
    values_ = pa.array([1, 2, 3, 4])
    hidden = pa.ListArray.from_arrays(pa.array([0, 2, 4]), values_, mask=pa.array([True, False]))
    other = pa.ListArray.from_arrays(pa.array([0, 0, 2]), pa.array([3, 4]), mask=pa.array([True, False]))
    assert equal_values(hidden, other).to_pylist() == [True, True]


def test_a_million_lists_take_no_python_per_row() -> None:
    offsets = pa.array(np.arange(0, 2_000_001, 2, dtype=np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array(np.arange(2_000_000)))
    began = time.process_time()
    assert equal_values(lists, lists).true_count == 1_000_000
    assert time.process_time() - began < 1.0
