"""Spark's order of values, for Arrow: columns that sort, in Arrow's simple way, as Spark sorts the one they stand for.

To Spark, NaN is larger than every number, -0.0 equals 0.0, null is smaller than everything, structs are compared field
by field and arrays element by element, the shorter one first. Arrow knows none of this for floats, and sorts no nested
values at all.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def sortable(column: pa.Array) -> list[pa.Array]:
    """The columns to sort by, the most important first. Nulls stay nulls, or become the smallest value."""
    type_ = column.type
    if pa.types.is_floating(type_):
        return [_ordered_floats(column)]
    if pa.types.is_struct(type_):
        fields = (pc.struct_field(column, [place]) for place in range(type_.num_fields))
        return [_present(column), *(part for field in fields for part in (_present(field), *sortable(field)))]
    if pa.types.is_nested(type_):
        return [_ranks(column)]
    return [column]


def _present(column: pa.Array) -> pa.Array:
    """Arrow puts nulls last in either direction; to Spark they are the smallest."""
    return column.is_valid().cast(pa.int8())


def _ordered_floats(column: pa.Array) -> pa.Array:
    """Integers in the order of the floats: the bits of positive ones are in order, those of negative ones reversed."""
    values = column.cast(pa.float64())
    numbers = values.fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 + 0.0 is 0.0
    numbers = np.where(np.isnan(numbers), np.nan, numbers)  # one NaN, whatever its bits
    bits = np.ascontiguousarray(numbers).view(np.int64)
    ordered = np.where(bits < 0, np.int64(-(2**63)) - bits, bits)
    return pa.array(ordered, mask=~values.is_valid().to_numpy(zero_copy_only=False))


def _ranks(column: pa.Array) -> pa.Array:
    """The place of each value among all, equal ones at one place. Python compares: such columns are rare."""
    keys = [None if value is None else _key(value) for value in column.to_pylist()]
    places = {key: place for place, key in enumerate(sorted({key for key in keys if key is not None}))}
    return pa.array([None if key is None else places[key] for key in keys], pa.int64())


def _key(value: Any) -> Any:
    """What Python compares as Spark compares the value: tuples, and a flag in front where null or NaN may be."""
    if value is None:
        return (0,)
    if isinstance(value, dict):
        return (1, tuple(_key(inner) for inner in value.values()))
    if isinstance(value, list):
        return (1, tuple(_key(inner) for inner in value))
    if isinstance(value, float):
        return (2, 0.0) if math.isnan(value) else (1, value)
    return (1, value)
