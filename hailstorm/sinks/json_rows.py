"""Rows as JSON, a column at a time: what a sink writes when each row, or a nested value, is a document.

No line of Python runs per row for numbers, texts, times, and whatever is nested of them. The representation is the one
of docs/reference/sinks.md: decimals, times and bytes as texts (texts.py), NaN and the infinities as texts of their
names, a map as an object whose keys are the texts of its keys; a nested key is its JSON as a text.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.sinks.texts import TEXT, is_named, texts

_BYTES = pa.large_binary()
_MUST_ESCAPE = r'[\x00-\x1f"\\]'


def json_text(value: Any) -> str:
    """A value of ours (a name, a cursor) as JSON."""
    return msgspec.json.encode(value).decode()


def json_rows(rows: pa.Table) -> pa.Array:
    """One JSON object per row, as text; `{}` for rows without columns."""
    return _object(rows.column_names, [json_values(column) for column in rows.columns], rows.num_rows)


def json_values(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Each value as JSON; `null` for null."""
    array = _whole(column)
    return pc.if_else(array.is_null(), _scalar("null"), _present(array))


def bare_values(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Texts and bytes as they are, other single values as their texts, nested ones as JSON. Null stays null."""
    array = _whole(column)
    if pa.types.is_nested(array.type):
        return pc.if_else(array.is_null(), None, _present(array)).cast(_BYTES)
    is_bytes = pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type)
    return (array if is_bytes else texts(array)).cast(_BYTES)


def _present(array: pa.Array) -> pa.Array:
    """JSON of the values that are there. What stands in the place of a null may be anything."""
    kind = array.type
    if pa.types.is_null(kind):
        return pa.nulls(len(array), TEXT)
    if pa.types.is_struct(kind):
        return _object([field.name for field in kind], [json_values(part) for part in array.flatten()], len(array))
    if pa.types.is_map(kind):
        pairs = pc.binary_join_element_wise(_keys(array.keys), json_values(array.items), _scalar(":"))
        return _joined("{", array, pairs, "}")
    if pa.types.is_nested(kind):
        return _joined("[", array, json_values(array.values), "]")
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_duration(kind):
        return texts(array)
    if pa.types.is_floating(kind):
        return pc.if_else(is_named(array), _quoted(texts(array)), texts(array))
    return _quoted(texts(array))


def _keys(array: pa.Array) -> pa.Array:
    return _quoted(_present(array) if pa.types.is_nested(array.type) else texts(array))


def _object(names: list[str], values: list[pa.Array], count: int) -> pa.Array:
    parts: list[pa.Array | pa.Scalar] = []
    for name, column in zip(names, values, strict=True):
        parts += [_scalar(f"{',' if parts else '{'}{json_text(name)}:"), column]
    if not parts:
        return pa.repeat(_scalar("{}"), count)
    return pc.binary_join_element_wise(*parts, _scalar("}"), _scalar(""))


def _joined(begin: str, array: pa.Array, items: pa.Array, end: str) -> pa.Array:
    """The items of each list, or the pairs of each map. `items` are those of the buffers: slices have all of them."""
    lists = pa.ListArray.from_arrays(array.offsets, items)
    return pc.binary_join_element_wise(_scalar(begin), pc.binary_join(lists, _scalar(",")), _scalar(end), _scalar(""))


def _quoted(written: pa.Array) -> pa.Array:
    """Texts as JSON strings. Most need no escapes, and a column without any costs no Python."""
    quote, nothing = _scalar('"'), _scalar("")
    simple = pc.binary_join_element_wise(quote, written, quote, nothing)
    difficult = pc.fill_null(pc.match_substring_regex(written, _MUST_ESCAPE), False)
    if pc.any(difficult).as_py():
        escaped = [json_text(text) for text in written.filter(difficult).to_pylist()]
        simple = pc.replace_with_mask(simple, difficult, pa.array(escaped, TEXT))
    return simple


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        return pa.concat_arrays(column.chunks or [pa.array([], column.type)])
    return column


def _scalar(text: str) -> pa.Scalar:
    return pa.scalar(text, TEXT)
