"""The Arrow schema of a step's columns, from Spark's type strings.

Delivery calls it once per sink, so that a sink can prepare its table before the first row comes. It must agree with
what Spark writes to the outbox: timestamps are microseconds in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa

from hailstorm.errors import SinkError
from hailstorm.topology.schema import Schema

_SIMPLE: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "void": pa.null(),
}


def arrow_schema(schema: Schema) -> pa.Schema:
    """The columns as Arrow fields. Every type must be known: the engine fills them in before it delivers."""
    fields = []
    for column in schema:
        if column.type is None:
            raise SinkError(10, f"the type of column '{column.name}' is not known")
        fields.append(pa.field(column.name, arrow_type(column.type)))
    return pa.schema(fields)


def arrow_type(text: str) -> pa.DataType:
    """`array<struct<a:int,b:decimal(10,2)>>` as an Arrow type."""
    text = text.strip()
    name = text.lower()
    if name in _SIMPLE:
        return _SIMPLE[name]
    if match := re.fullmatch(r"decimal(?:\((\d+)\s*,\s*(\d+)\))?", name):
        return pa.decimal128(int(match[1] or 10), int(match[2] or 0))
    if re.match("interval (day|hour|minute|second)", name):
        return pa.duration("us")
    if match := re.fullmatch(r"(array|map|struct)<(.*)>", text, re.IGNORECASE | re.DOTALL):
        return _NESTED[match[1].lower()](match[2])
    raise SinkError(
        10, f"sinks cannot take columns of type {text.upper()}", hint="Cast it in a select before the sink."
    )


def _array(inner: str) -> pa.DataType:
    return pa.list_(arrow_type(inner))


def _map(inner: str) -> pa.DataType:
    key, value = _parts(inner)
    return pa.map_(arrow_type(key), arrow_type(value))


def _struct(inner: str) -> pa.DataType:
    fields = (match for part in _parts(inner) if (match := _FIELD.match(part)))
    return pa.struct([pa.field(_unquoted(match[1]), arrow_type(match[2])) for match in fields])


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


_FIELD = re.compile(r"\s*(`(?:[^`]|``)*`|[^:]+?)\s*:(.*)", re.DOTALL)
_NESTED: dict[str, Callable[[str], pa.DataType]] = {"array": _array, "map": _map, "struct": _struct}


def _parts(inner: str) -> Iterator[str]:
    """Split at the commas that are inside neither brackets nor backquotes."""
    depth, start, in_name = 0, 0, False
    for position, letter in enumerate(inner):
        in_name ^= letter == "`"
        if in_name:
            continue
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            yield inner[start:position]
            start = position + 1
    if inner:
        yield inner[start:]
