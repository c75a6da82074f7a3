"""Arrow columns as Python's values: for targets without Arrow.

`plain_values` is for those that know numbers, texts and bytes only (SQLite, Redis, a screen); `python_rows` is for a
user's function, which gets Python's own types.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.ledger.json_value import Beyond
from hailstorm.sinks.json_rows import json_values
from hailstorm.sinks.texts import is_named, texts


def plain_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """One dict per row, with plain values."""
    columns = [plain_values(column) for column in rows.columns]
    return [dict(zip(rows.column_names, values, strict=True)) for values in zip(*columns, strict=True)]


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """The column as None, bool, int, float, str and bytes only; nested values as JSON text, NaN as its name."""
    kind = column.type
    array = pa.concat_arrays(column.chunks or [pa.array([], kind)])
    if pa.types.is_nested(kind):
        return list(pc.if_else(array.is_null(), None, json_values(array)).to_pylist())
    if pa.types.is_duration(kind):
        return list(array.cast(pa.duration("us")).cast(pa.int64()).to_pylist())
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return list(texts(array).to_pylist())
    values = list(array.to_pylist())
    if pa.types.is_floating(kind):
        is_nan = pc.and_(is_named(array), pc.fill_null(pc.is_nan(array), False))
        for place in pc.indices_nonzero(is_nan).to_pylist():
            values[place] = "NaN"
    return values


def python_values(column: pa.ChunkedArray) -> list[Any]:
    """The column as Python's own types: maps as dicts, unless their keys are nested: then as lists of pairs."""
    maps: Literal["lossy"] | None = None if _has_nested_keys(column.type) else "lossy"
    try:
        return list(column.to_pylist(maps_as_pydicts=maps))
    except (OverflowError, ValueError):
        return [_python_value(column.slice(place, 1), maps) for place in range(len(column))]


def python_rows(rows: pa.Table) -> Iterator[dict[str, Any]]:
    """One dict per row."""
    columns = [python_values(column) for column in rows.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(rows.column_names, values, strict=True))


def _python_value(single: pa.ChunkedArray, maps: Literal["lossy"] | None) -> Any:
    try:
        return single.to_pylist(maps_as_pydicts=maps)[0]
    except (OverflowError, ValueError):
        return Beyond(json_values(single)[0].as_py())


def _has_nested_keys(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind) and pa.types.is_nested(kind.key_type):
        return True
    return any(_has_nested_keys(kind.field(number).type) for number in range(kind.num_fields))
