"""Arrow columns as the plain values that text and databases without rich types can hold.

Used by the console and by SQLite. Exactness first: a decimal becomes text with all its digits, a timestamp becomes
ISO 8601 text in UTC with six decimals, so that the order of texts is the order of times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

_ENCODER = msgspec.json.Encoder(decimal_format="string")


def json_text(value: Any) -> str:
    """JSON: decimals as strings, times as ISO 8601, bytes as base64; NaN becomes null."""
    return _ENCODER.encode(value).decode()


def python_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """One dict a row; maps become dicts (of two equal keys, the later one stays)."""
    for batch in rows.to_batches():
        yield from batch.to_pylist(maps_as_pydicts="lossy")


def plain_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """One dict a row, with plain values in all columns that are not nested."""
    columns = [
        column.to_pylist(maps_as_pydicts="lossy") if pa.types.is_nested(column.type) else plain_values(column)
        for column in rows.columns
    ]
    return [dict(zip(rows.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """The column as None, bool, int, float, str and bytes only; nested values as JSON text."""
    kind = column.type
    if pa.types.is_decimal(kind):
        return [None if value is None else format(value, "f") for value in column.to_pylist()]
    if pa.types.is_timestamp(kind):
        # A zone is a way of showing the instant: the microseconds below it are UTC already.
        naive = column.cast(pa.timestamp("us", tz=kind.tz)).cast(pa.timestamp("us")) if kind.tz else column
        texts = pc.strftime(naive.cast(pa.timestamp("us")), format="%Y-%m-%dT%H:%M:%S" + ("Z" if kind.tz else ""))
        return list(texts.to_pylist())
    if pa.types.is_duration(kind):
        return list(column.cast(pa.duration("us")).cast(pa.int64()).to_pylist())
    if pa.types.is_date(kind) or pa.types.is_time(kind):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_nested(kind):
        values = column.to_pylist(maps_as_pydicts="lossy")
        return [None if value is None else json_text(value) for value in values]
    return list(column.to_pylist())
