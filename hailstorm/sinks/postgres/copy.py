"""Arrow rows in PostgreSQL's binary COPY format, built by columns and not by values.

A row is a count of fields, then for each field its length in bytes and the bytes, all big-endian. NumPy computes where
each field goes and scatters whole columns there, so no Python runs per value.
The Postgres sink is the only caller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.sinks.json_rows import json_values

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_ROWS_AT_ONCE = 1 << 16
_DAYS_TO_2000, _MICROSECONDS_TO_2000 = 10_957, 946_684_800_000_000
_JSONB_VERSION, _NOTHING = (pa.scalar(part, pa.large_binary()) for part in (b"\x01", b""))
_FIXED: dict[pa.DataType, tuple[str, str]] = {  # what PostgreSQL calls it, and its layout
    pa.bool_(): ("boolean", "u1"),
    pa.int8(): ("smallint", ">i2"),
    pa.int16(): ("smallint", ">i2"),
    pa.int32(): ("integer", ">i4"),
    pa.int64(): ("bigint", ">i8"),
    pa.float32(): ("real", ">f4"),
    pa.float64(): ("double precision", ">f8"),
    pa.date32(): ("date", ">i4"),
}


def sql_type(kind: pa.DataType) -> str:
    """The type of a column in the table, as PostgreSQL itself spells it."""
    if kind in _FIXED:
        return _FIXED[kind][0]
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp with time zone" if kind.tz else "timestamp without time zone"
    if pa.types.is_duration(kind):
        return "interval"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "bytea"
    return "jsonb" if pa.types.is_nested(kind) else "text"


def copied_type(kind: pa.DataType) -> str:
    """The type that `copy_data` writes: text for a decimal, for PostgreSQL to read, and otherwise that of the table."""
    return "text" if pa.types.is_decimal(kind) else sql_type(kind)


def copy_data(rows: pa.Table) -> Iterator[bytes]:
    """The rows as `COPY ... FROM STDIN (FORMAT BINARY)` takes them, in pieces."""
    yield _HEADER
    for start in range(0, rows.num_rows, _ROWS_AT_ONCE):
        yield _tuples(rows.slice(start, _ROWS_AT_ONCE))
    yield _TRAILER


@dataclass(frozen=True)
class _Fields:
    """One column: the bytes of all fields one after the other, their lengths (0 for a null), and which are there."""

    data: Bytes
    lengths: Places
    present: npt.NDArray[np.bool_]
    width: int | None  # when all fields have the same


def _tuples(rows: pa.Table) -> bytes:
    columns = [_fields(column.combine_chunks()) for column in rows.columns]
    sizes = sum((column.lengths for column in columns), np.full(rows.num_rows, 2 + 4 * len(columns), np.int64))
    ends = np.cumsum(sizes)
    place = ends - sizes
    out = np.zeros(int(ends[-1]), np.uint8)
    _scatter(out, place, np.full(rows.num_rows, len(columns), ">i2"))
    place = place + 2
    for column in columns:
        _scatter(out, place, np.where(column.present, column.lengths, -1).astype(">i4"))
        place = place + 4
        if column.width is None:
            # Field by field the source is dense: its bytes move by the distance of the field they belong to.
            starts = np.cumsum(column.lengths) - column.lengths
            out[np.repeat(place - starts, column.lengths) + np.arange(len(column.data))] = column.data
        elif column.width:
            fields = column.data.reshape(-1, column.width)
            here = column.present
            out[place[here][:, None] + np.arange(column.width)] = fields if here.all() else fields[here]
        place = place + column.lengths
    return out.tobytes()


def _scatter(out: Bytes, places: Places, values: npt.NDArray[Any]) -> None:
    width = values.dtype.itemsize
    out[places[:, None] + np.arange(width)] = np.ascontiguousarray(values).view(np.uint8).reshape(-1, width)


def _fields(column: pa.Array) -> _Fields:
    kind = column.type
    present = np.ones(len(column), bool)
    if column.null_count:
        present = column.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_null(kind):
        return _Fields(np.zeros(0, np.uint8), np.zeros(len(column), np.int64), present, 0)
    if kind in _FIXED or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        data = _fixed(column)
        width = data.dtype.itemsize
        return _Fields(np.ascontiguousarray(data).view(np.uint8), np.where(present, width, 0), present, width)
    if pa.types.is_nested(kind):
        documents = pc.if_else(column.is_null(), None, json_values(column)).cast(pa.large_binary())
        column = pc.binary_join_element_wise(_JSONB_VERSION, documents, _NOTHING)
    elif pa.types.is_decimal(kind):
        column = column.cast(pa.string())
    return _variable(column.cast(pa.large_binary()), present)


def _fixed(column: pa.Array) -> npt.NDArray[Any]:
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _numbers(column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()), ">i8", _MICROSECONDS_TO_2000)
    if pa.types.is_duration(kind):
        interval = np.zeros(len(column), [("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")])
        interval["microseconds"] = _numbers(column.cast(pa.duration("us")).cast(pa.int64()), ">i8")
        return interval
    if pa.types.is_date(kind):
        return _numbers(column.cast(pa.int32()), ">i4", _DAYS_TO_2000)
    return _numbers(column.cast(pa.uint8()) if pa.types.is_boolean(kind) else column, _FIXED[kind][1])


def _numbers(column: pa.Array, layout: str, zero: int = 0) -> npt.NDArray[Any]:
    """The values, counted from `zero`, which is also what stands in the place of a null."""
    filled = pc.fill_null(column, zero) if column.null_count else column
    values: npt.NDArray[Any] = filled.to_numpy(zero_copy_only=False)
    if zero:
        # Counted from later, the earliest numbers would wrap around and be the latest. One above the smallest (which
        # means -infinity) is before all that PostgreSQL takes, and so it is refused.
        earliest = np.iinfo(values.dtype).min + 1
        values = np.maximum(values, earliest + zero) - zero
    return values.astype(layout)


def _variable(column: pa.Array, present: npt.NDArray[np.bool_]) -> _Fields:
    # Arrow says nothing about the bytes behind a null; filled, there are none.
    column = pc.fill_null(column, b"") if column.null_count else column
    _, offsets_buffer, data_buffer = column.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.zeros(0, np.uint8)
    return _Fields(data[offsets[0] : offsets[-1]], np.diff(offsets), present, None)
