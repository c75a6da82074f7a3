"""Lifts in Arrow: the state of groups of rows, from aggregates that are taken group by group.

The same states as the SQL lifts give, for types where both agree bit by bit. The engine takes the aggregates; these
functions say which, of what, and how the state is made of them. Everything is vectorised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hailstorm.algebra.monoid import ArrowLift

_SMALL_INTEGERS = ("tinyint", "smallint", "int")


def _only(results: Sequence[pa.Array]) -> pa.Array:
    return results[0]


COUNT_ROWS = ArrowLift(((None, "count_all"),), _only)
COUNT_VALUES = ArrowLift(((0, "count"),), _only)
MAX = ArrowLift(((0, "max"),), _only)
MIN = ArrowLift(((0, "min"),), _only)


@dataclass(frozen=True)
class _Truths:
    def __call__(self, results: Sequence[pa.Array]) -> pa.Array:
        yes, n = results
        return pa.StructArray.from_arrays([yes.fill_null(0), n], names=["yes", "n"])


def _as_numbers(inputs: Sequence[pa.Array]) -> Sequence[pa.Array]:
    return [inputs[0].cast(pa.int64())]


TRUTHS = ArrowLift(((0, "sum"), (0, "count")), _Truths(), _as_numbers)


@dataclass(frozen=True)
class _Doubles:
    def __call__(self, results: Sequence[pa.Array]) -> pa.Array:
        total, n = results
        return pa.StructArray.from_arrays([total.fill_null(0.0), n], names=["sum", "n"])


def _as_doubles(inputs: Sequence[pa.Array]) -> Sequence[pa.Array]:
    return [inputs[0].cast(pa.float64())]


SUM_OF_FLOATS = ArrowLift(((0, "sum"),), _only, _as_doubles)
MEAN_OF_FLOATS = ArrowLift(((0, "sum"), (0, "count")), _Doubles(), _as_doubles)


@dataclass(frozen=True)
class _Halves:
    """A number of at most 64 bits as its upper and lower 32: sums of these cannot overflow within a tick."""

    def __call__(self, inputs: Sequence[pa.Array]) -> Sequence[pa.Array]:
        column = inputs[0]
        values = _unscaled(column) if pa.types.is_decimal(column.type) else _filled(column)
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        high, low = values >> 32, values & 0xFFFFFFFF
        return [pa.array(high, mask=missing), pa.array(low, mask=missing)]


@dataclass(frozen=True)
class _Total:
    """The exact total of halves as decimal(37, scale), and the number of values."""

    scale: int

    def __call__(self, results: Sequence[pa.Array]) -> pa.Array:
        high, low, n = results
        upper, signed = _filled(high), _filled(low)  # where rows are taken back, the lower half may be negative
        lower = signed.view(np.uint64)
        shifted = (upper.view(np.uint64) << np.uint64(32)) + lower
        words = np.empty(2 * len(upper), dtype=np.int64)
        words[0::2] = shifted.view(np.int64)
        words[1::2] = (upper >> 32) + (shifted < lower) + (signed >> 63)  # what the addition carried over
        total = pa.Array.from_buffers(pa.decimal128(37, self.scale), len(upper), [None, pa.py_buffer(words)])
        return pa.StructArray.from_arrays([total, n], names=["sum", "n"])


def exact_total(type_: str, scale: int, precision: int | None) -> ArrowLift | None:
    """The lift of an exact sum; None for decimals that do not fit into 64 bits."""
    if type_ not in (*_SMALL_INTEGERS, "bigint") and (precision is None or precision > 18):
        return None
    return ArrowLift(((0, "sum"), (1, "sum"), (0, "count")), _Total(scale), _Halves())


def _filled(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    filled = column.fill_null(0) if column.null_count else column
    numbers: np.ndarray[tuple[int], np.dtype[np.int64]] = filled.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _unscaled(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The low words of decimals of at most 18 digits: their unscaled values."""
    words = np.frombuffer(column.buffers()[1], dtype=np.int64)
    values = words[2 * column.offset : 2 * (column.offset + len(column)) : 2].copy()
    if column.null_count:
        values[column.is_null().to_numpy(zero_copy_only=False)] = 0
    return values
