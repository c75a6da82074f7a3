"""Merges of whole arrays of states in Arrow: the hot path of a fold.

Every function takes two arrays of one length and type, and a null is the zero on either side. The results are
the bits that the SQL merge gives. Nothing here may loop over rows in Python: a call has up to 200,000 of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def add(a: pa.Array, b: pa.Array) -> pa.Array:
    """a + b. Raises where a bigint or a decimal overflows, as Spark does."""
    total = pc.add_checked(a, b)
    if total.type != a.type:
        total = total.cast(a.type)  # Arrow gives a sum of decimals one more digit
    return pc.coalesce(total, a, b) if a.null_count or b.null_count else total


def sums_of_neighbours(states: pa.Array, starts: np.ndarray[Any, Any]) -> pa.Array | None:
    """The sum of each group of neighbours, as `add` of them one by one. None where that is not so simple: of other
    types than a bigint, and where it may overflow."""
    if states.type != pa.int64() or states.null_count or not len(states):
        return None
    values = np.asarray(states)
    largest = max(int(values.max()), -int(values.min()))
    return pa.array(np.add.reduceat(values, starts)) if largest < (1 << 62) // len(values) else None


def add_fields(a: pa.StructArray, b: pa.StructArray) -> pa.StructArray:
    """Structs added field by field. No field of a state that is there is null."""
    columns = [add(left, right) for left, right in zip(a.flatten(), b.flatten(), strict=True)]
    return pa.StructArray.from_arrays(columns, fields=list(a.type), mask=_neither(a, b))


def greatest(a: pa.Array, b: pa.Array) -> pa.Array:
    return _choose(a, b, _greater(a, b))


def least(a: pa.Array, b: pa.Array) -> pa.Array:
    return _choose(a, b, _greater(b, a))


def whole_numbers(decimals: pa.Array) -> pa.Array:
    """decimal(p,0) as int64, and null where it does not fit, as `try_cast(... as bigint)`."""
    # A decimal is two 64-bit words, the low one first; it fits when the high word only repeats the sign.
    words = np.frombuffer(decimals.buffers()[1], dtype=np.int64)
    words = words[2 * decimals.offset : 2 * (decimals.offset + len(decimals))]
    low, high = words[0::2], words[1::2]
    unfit = high != (low >> 63)
    if decimals.null_count:
        unfit |= _mask(decimals.is_null())
    return pa.array(low, type=pa.int64(), mask=unfit)


def doubles(decimals: pa.Array) -> pa.Array:
    """decimal(p,0) as float64, rounded to the nearest as Java does."""
    whole = whole_numbers(decimals)
    near = whole.cast(pa.float64(), safe=False)
    if whole.null_count == decimals.null_count:
        return near
    # Totals beyond a bigint: Arrow's own cast may be off by one bit, Python's is not. They are few.
    beyond = pc.and_(whole.is_null(), decimals.is_valid())
    exact = pa.array([float(total.as_py()) for total in decimals.filter(beyond)], pa.float64())
    return pc.replace_with_mask(near, beyond, exact)


def _greater(a: pa.Array, b: pa.Array) -> pa.Array:
    """Where a > b in Spark's order: a null is the smallest, NaN the largest and equal to itself; structs by field."""
    if pa.types.is_struct(a.type):
        return _greater_struct(a, b)
    above = pc.greater(a, b)
    if pa.types.is_floating(a.type):
        above = pc.or_(above, pc.and_(pc.is_nan(a), pc.invert(pc.is_nan(b))))
    return pc.coalesce(above, pc.and_(a.is_valid(), b.is_null())) if a.null_count or b.null_count else above


def _equal(a: pa.Array, b: pa.Array) -> pa.Array:
    same = pc.equal(a, b)
    if pa.types.is_floating(a.type):
        same = pc.or_(same, pc.and_(pc.is_nan(a), pc.is_nan(b)))
    return pc.coalesce(same, pc.and_(a.is_null(), b.is_null())) if a.null_count or b.null_count else same


def _greater_struct(a: pa.StructArray, b: pa.StructArray) -> pa.Array:
    """Field by field, and each only in the rows that the fields before it left undecided: mostly the first decides."""
    above = np.zeros(len(a), dtype=bool)
    # Where one of the states is null there is nothing to compare: _choose knows.
    rows = np.flatnonzero(_mask(pc.and_(a.is_valid(), b.is_valid())))
    for left, right in zip(a.flatten(), b.flatten(), strict=True):
        if len(rows) < len(a):
            left, right = left.take(pa.array(rows)), right.take(pa.array(rows))
        above[rows] = _mask(_greater(left, right))
        rows = rows[_mask(_equal(left, right))]
        if not len(rows):
            break
    return pa.array(above)


def _choose(a: pa.Array, b: pa.Array, first: pa.Array) -> pa.Array:
    """a where `first`, else b; where one of them is null, the other."""
    if a.null_count or b.null_count:
        first = pc.or_(pc.and_(first, a.is_valid()), b.is_null())
    rows = np.arange(len(a))
    rows[~_mask(first)] += len(a)
    taken = pa.array(rows)
    if not pa.types.is_struct(a.type):
        return pa.concat_arrays([a, b]).take(taken)
    # By field: Arrow takes whole structs at a fraction of the speed.
    fields = zip(a.flatten(), b.flatten(), strict=True)
    columns = [pa.concat_arrays([left, right]).take(taken) for left, right in fields]
    return pa.StructArray.from_arrays(columns, fields=list(a.type), mask=_neither(a, b))


def _neither(a: pa.Array, b: pa.Array) -> pa.Array | None:
    return pc.and_(a.is_null(), b.is_null()) if a.null_count and b.null_count else None


def _mask(flags: pa.Array) -> Any:
    """Booleans without nulls, as numpy has them."""
    return flags.to_numpy(zero_copy_only=False)
