"""Between Arrow and numpy without pandas, which `pa.array` and `to_numpy` import at once: 0.4 seconds, and 50 MB.
And what Arrow does with columns, without `pyarrow.compute`, which makes Python functions of all that it can: 0.07.

A command that reads one key takes less than that in all. So what lies on its way uses these; the rest, which runs for
long, need not care.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.ledger.same_value import same_value

try:
    from pyarrow import _compute as _arrow  # what pyarrow.compute itself calls
except ImportError:
    import pyarrow.compute as _arrow


def numbers(values: npt.NDArray[Any]) -> pa.Array:
    """Numbers (no booleans) of numpy, on the same memory."""
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def texts(values: Sequence[str]) -> pa.Array:
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )


def integers(column: pa.Array) -> npt.NDArray[np.int64]:
    """64-bit integers without nulls, as numpy sees them on the same memory."""
    assert column.type == pa.int64() and not column.null_count
    return _seen(column, np.int64)


def flags(column: pa.Array) -> npt.NDArray[np.bool_]:
    """Booleans without nulls."""
    assert not column.null_count
    data = column.buffers()[1]
    if data is None:
        return np.zeros(0, dtype=np.bool_)
    start, end = column.offset, column.offset + len(column)
    bits = np.frombuffer(data, dtype=np.uint8)[start // 8 : -(-end // 8)]
    return np.unpackbits(bits, count=end - start // 8 * 8, bitorder="little")[start % 8 :].view(np.bool_)


def flags_at(column: pa.Array, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Booleans without nulls, at these places. Only what holds them is read, of a column as long as a file."""
    assert not column.null_count
    data = column.buffers()[1]
    if data is None:
        return np.zeros(0, dtype=np.bool_)
    at = places + column.offset
    bits: npt.NDArray[np.uint8] = np.frombuffer(data, dtype=np.uint8)[at >> 3] >> (at & 7).astype(np.uint8)
    return (bits & 1).view(np.bool_)


def cast(values: Any, type_: pa.DataType) -> Any:
    """A column as another type. Raises ArrowInvalid when a value has none there."""
    return values if values.type == type_ else _arrow.call_function("cast", [values], _arrow.CastOptions.safe(type_))


def taken(rows: Any, places: npt.NDArray[np.int64]) -> Any:
    """These rows of a column or a table."""
    return _arrow.call_function("take", [rows, numbers(places)], _arrow.TakeOptions(boundscheck=True))


def where(rows: Any, wanted: Any) -> Any:
    """The rows of a column or a table for which this is true."""
    return _arrow.call_function("filter", [rows, wanted], _arrow.FilterOptions("drop"))


def negated(values: Any) -> Any:
    return _arrow.call_function("invert", [values])


def equals(one: Any, other: Any) -> Any:
    """Whether the values of two columns are equal; null where one is null."""
    return _arrow.call_function("equal", [one, other])


def there(values: Any) -> Any:
    """Whether each value is not null."""
    return _arrow.call_function("is_valid", [values])


def highest(values: Any) -> pa.Scalar:
    """The highest value of a column; null where it has none."""
    return _arrow.call_function("max", [values])


def among(values: Any, known: pa.Array) -> Any:
    """Whether each value is one of these."""
    if known.type.num_fields:  # nested: Arrow cannot look those up
        wanted = known.to_pylist()
        return pa.array([any(same_value(value, one) for one in wanted) for value in values.to_pylist()], pa.bool_())
    return _arrow.call_function("is_in", [values], _arrow.SetLookupOptions(value_set=known))


def distinct(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The different ones, sorted. `np.unique` does the same, and imports all of numpy.ma for it."""
    return first_of_each(np.sort(values))


def first_of_each(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The different ones of sorted values."""
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return values[first]


_FEW_PIECES = 16  # sorted ones: numpy's stable sort merges them, and that is quickest


def order_of(values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The order that sorts integers; equal ones stay in theirs. As `np.argsort(values, kind="stable")`, in a quarter of
    its time where they are in no order.

    numpy sorts integers with the processor's vector instructions, but their places without: so each value gets its
    place as its last bits, and the values are sorted.
    """
    count, values = len(values), values.astype(np.int64, copy=False)
    if count < 2 or np.count_nonzero(values[1:] < values[:-1]) < _FEW_PIECES:
        return np.argsort(values, kind="stable")
    bits = count.bit_length()
    places = np.int64((1 << bits) - 1)
    least = int(values.min())
    fits = int(values.max()) - least < 1 << 63 - bits
    packed = (values - least) << bits if fits else values & ~places
    packed |= np.arange(count)
    packed.sort()
    packed &= places
    if not fits:  # two values that differ in their last bits only may be mixed up: then this is nearly sorted
        ordered = values[packed]
        if (ordered[1:] < ordered[:-1]).any():
            packed = packed[np.argsort(ordered, kind="stable")]
    return packed


def order_by(*columns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The order that sorts rows by these columns of integers, by the first one first. Equal rows stay in theirs."""
    order = order_of(columns[-1])
    for column in reversed(columns[:-1]):
        order = order[order_of(column[order])]
    return order


def _seen(column: pa.Array, kind: type[Any]) -> npt.NDArray[Any]:
    data = column.buffers()[1]
    if data is None:
        return np.zeros(0, dtype=kind)
    return np.frombuffer(data, dtype=kind)[column.offset : column.offset + len(column)]
