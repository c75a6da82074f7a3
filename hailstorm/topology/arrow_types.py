"""Types of columns as Arrow's, in one place.

The decoders, `Rate`, delivery and the engine all ask here, so that a column has one Arrow type everywhere. What a type
is, and how its text is read: types.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from hailstorm.columns import shown
from hailstorm.errors import TopologyError
from hailstorm.types import Misread, Type, read_type

Columns = tuple[tuple[str, str], ...]

_PLAIN: dict[str, pa.DataType] = {
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
}


def arrow_type(text: str) -> pa.DataType:
    """`decimal(10,2)` as Arrow's type. Raises TopologyError for a type that a record cannot hold."""
    try:
        return _arrow(read_type(text))
    except Misread as wrong:
        raise TopologyError(
            40,
            f"cannot read the type '{text}': {wrong}",
            hint="Types are Spark's: BIGINT, DOUBLE, STRING, TIMESTAMP, DECIMAL(10,2), ARRAY<STRING>, STRUCT<a: INT>.",
        ) from None


def arrow_schema(columns: Iterable[tuple[str, str]]) -> pa.Schema:
    return pa.schema([pa.field(name, arrow_type(type_)) for name, type_ in columns])


def spark_name(type_: pa.DataType) -> str:
    """The type as people write it in a schema: what error messages say."""
    if pa.types.is_decimal(type_):
        return f"DECIMAL({type_.precision},{type_.scale})"
    if pa.types.is_map(type_):
        return f"MAP<{spark_name(type_.key_type)}, {spark_name(type_.item_type)}>"
    if pa.types.is_list(type_):
        return f"ARRAY<{spark_name(type_.value_type)}>"
    if pa.types.is_struct(type_):
        return f"STRUCT<{', '.join(f'{shown(field.name)}: {spark_name(field.type)}' for field in type_)}>"
    return next(name for name, known in _PLAIN.items() if known == type_).upper()


def _arrow(type_: Type) -> pa.DataType:
    inside = [_arrow(part) for part in type_.inside]
    if type_.word in _PLAIN:
        return _PLAIN[type_.word]
    if type_.word == "decimal":
        return pa.decimal128(*type_.numbers)
    if type_.word == "array":
        return pa.list_(*inside)
    if type_.word == "map":
        return pa.map_(*inside)
    if type_.word == "struct":
        return pa.struct(list(zip(type_.names, inside, strict=True)))
    raise Misread(f"there is no {type_.word.upper()} that a record can hold", 0, 0)
