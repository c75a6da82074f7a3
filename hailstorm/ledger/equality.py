"""Equality of two columns, row by row: whether a value is the same to those who read it.

Nulls are the same, and so is NaN; 0.0 and -0.0 are. Arrow compares no nested values, so these are taken apart until it
can: structs field by field, lists and maps by their lengths and then element by element. Maps are the same when they
have the same entries in the same order. Changes are found with it (keyed_state.py), for whole columns at a time: there
is no Python per row, and any value that Arrow can hold is compared, also times beyond the year 9999.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.ledger.arrays import flags

_Flags = npt.NDArray[np.bool_]
_Places = npt.NDArray[np.int64]


def equal_values(new: Any, old: Any) -> pa.Array:
    """Two columns of one type and length. The answer has no nulls."""
    return pa.array(_equal(one_chunk(new), one_chunk(old)))


def one_chunk(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _equal(new: pa.Array, old: pa.Array) -> _Flags:
    if not (new.null_count or old.null_count or pa.types.is_nested(new.type) or pa.types.is_null(new.type)):
        return _equal_plain(new, old)
    there, also = flags(new.is_valid()), flags(old.is_valid())
    both = there & also
    if pa.types.is_nested(new.type):
        same = _equal_nested(new, old, both)
    elif pa.types.is_null(new.type):
        same = both
    else:
        same = _equal_plain(new, old)
    return (both & same) | ~(there | also)


def _equal_plain(new: pa.Array, old: pa.Array) -> _Flags:
    same = pc.equal(new, old)
    if pa.types.is_floating(new.type):
        same = pc.or_(same, pc.and_(pc.is_nan(new), pc.is_nan(old)))
    return flags(pc.fill_null(same, False) if same.null_count else same)


def _equal_nested(new: pa.Array, old: pa.Array, both: _Flags) -> _Flags:
    """What is said of rows in which one of them is null counts for nothing."""
    if pa.types.is_struct(new.type):
        return reduce(np.logical_and, map(_equal, new.flatten(), old.flatten()), both)
    starts, lengths = _extents(new)
    others, lengths_there = _extents(old)
    same: _Flags = both & (lengths == lengths_there)
    rows = np.flatnonzero(same)
    counts = lengths[rows]
    owners = np.repeat(rows, counts)
    # The place of each element within its row: 0, 1, 2, 0, 1, ...
    within = np.arange(len(owners)) - np.repeat(np.cumsum(counts) - counts, counts)
    for mine, theirs in zip(_elements(new), _elements(old), strict=True):
        equal = _equal(mine.take(pa.array(starts[owners] + within)), theirs.take(pa.array(others[owners] + within)))
        same[owners[~equal]] = False
    return same


def _extents(lists: pa.Array) -> tuple[_Places, _Places]:
    """Where the elements of each row begin, and how many they are."""
    if pa.types.is_fixed_size_list(lists.type):
        size = lists.type.list_size
        return (lists.offset + np.arange(len(lists))) * size, np.full(len(lists), size)
    offsets: _Places = lists.offsets.to_numpy().astype(np.int64)
    return offsets[:-1], np.diff(offsets)


def _elements(lists: pa.Array) -> tuple[pa.Array, ...]:
    """What the rows are cut out of; of a map, the keys and the values."""
    return (lists.keys, lists.items) if pa.types.is_map(lists.type) else (lists.values,)
