"""Single values as exact texts, a column at a time: what sinks write that have no types of their own for them.

A decimal has all its digits, a timestamp is ISO 8601 in UTC with six decimals, and a float is the shortest text that is
read back as the same number. JSON has no word for NaN and the infinities: they are `NaN`, `Infinity` and `-Infinity`.
Used by json_rows.py, values.py and the sinks; nested values are json_rows.py's.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()  # a commit may hold more text than 2 GB

_DAY = 86_400_000_000  # microseconds
_YEAR_0, _YEAR_10000 = -719_528, 2_932_897  # in days since 1970: between them a year has four digits
_CYCLE, _EPOCH = 146_097, 719_163  # days of 400 years, after which the calendar repeats; and of 1970 in Python's count
_NAMES = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def texts(column: pa.Array) -> pa.Array:
    """The values as texts; null stays null. For every type that is not nested."""
    kind = column.type
    if pa.types.is_floating(kind):
        return _floats(column)
    if pa.types.is_decimal(kind):
        return _decimals(column)
    if pa.types.is_timestamp(kind):
        return _times(column)
    if pa.types.is_date(kind):
        return _dates(column)
    if pa.types.is_duration(kind):
        return column.cast(pa.duration("us")).cast(pa.int64()).cast(TEXT)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array([None if one is None else base64.b64encode(one).decode() for one in column.to_pylist()], TEXT)
    return column.cast(TEXT)


def is_named(column: pa.Array) -> pa.Array:
    """Which numbers of a column of floats have names and no digits."""
    return pc.fill_null(pc.invert(pc.is_finite(column)), False)


def _floats(column: pa.Array) -> pa.Array:
    written = column.cast(pa.float64()).cast(TEXT)
    # Arrow writes 1.0 as 1, and -0.0 as -0, which a reader of JSON would take for the integer 0.
    written = pc.replace_substring_regex(written, r"^(-?\d+)$", r"\1.0")
    return _except(written, is_named(column), column, lambda value: _NAMES[repr(value)])


def _decimals(column: pa.Array) -> pa.Array:
    written = column.cast(TEXT)
    has_exponent = pc.fill_null(pc.match_substring(written, "E"), False)
    return _except(written, has_exponent, column, lambda value: format(value, "f"))


def _times(column: pa.Array) -> pa.Array:
    # A zone is a way of showing the instant: the microseconds below it are UTC already.
    zone = "Z" if column.type.tz else ""
    times = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.timestamp("us"))
    numbers = times.cast(pa.int64())
    far = pc.or_(pc.less(numbers, _YEAR_0 * _DAY), pc.greater_equal(numbers, _YEAR_10000 * _DAY))
    far = pc.fill_null(far, False)
    near = pc.strftime(pc.if_else(far, pa.scalar(0, times.type), times), format=f"%Y-%m-%dT%H:%M:%S{zone}")
    return _except(near.cast(TEXT), far, numbers, lambda number: _time(number) + zone)


def _dates(column: pa.Array) -> pa.Array:
    days = column.cast(pa.date32()).cast(pa.int32())
    far = pc.fill_null(pc.or_(pc.less(days, _YEAR_0), pc.greater_equal(days, _YEAR_10000)), False)
    near = pc.if_else(far, pa.scalar(0, pa.int32()), days).cast(pa.date32()).cast(TEXT)
    return _except(near, far, days, _date)


def _except(written: pa.Array, others: pa.Array, column: pa.Array, write: Callable[[Any], str]) -> pa.Array:
    """The texts, but where Arrow does not write as we do. That is rare, so Python does it one by one."""
    if not pc.any(others).as_py():
        return written
    return pc.replace_with_mask(written, others, pa.array(map(write, column.filter(others).to_pylist()), TEXT))


def _date(days: int) -> str:
    """Years that do not have four digits have a sign, as ISO 8601 asks for."""
    cycles = days // _CYCLE
    near = date.fromordinal(days - cycles * _CYCLE + _EPOCH)
    year = near.year + 400 * cycles
    sign = "-" if year < 0 else "+" if year > 9999 else ""
    return f"{sign}{abs(year):04d}-{near:%m-%d}"


def _time(microseconds: int) -> str:
    days, rest = divmod(microseconds, _DAY)
    seconds, fraction = divmod(rest, 1_000_000)
    return f"{_date(days)}T{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
