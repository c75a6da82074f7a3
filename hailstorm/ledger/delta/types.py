"""Arrow's types as Delta's, for the tables that are published."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

NTZ = "timestampNtz"
_REFUSED_IN_NAMES = set(" ,;{}()\n\t=")

_PLAIN = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def delta_schema(columns: pa.Schema) -> str | None:
    """The schema as a Delta log has it; None when Delta cannot hold such columns."""
    try:
        return msgspec.json.encode(_struct(columns)).decode()
    except _NoDeltaTypeError:
        return None


def delta_features(columns: pa.Schema) -> list[str]:
    """The features of the protocol, beside deletion vectors, that a reader of these columns needs."""
    return [NTZ] if any(_has_ntz(field.type) for field in columns) else []


class _NoDeltaTypeError(Exception):
    pass


def _struct(fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    names = [field.name for field in fields]
    # To Delta `N` and `n` are one column.
    if any(_REFUSED_IN_NAMES & set(name) for name in names) or len({name.lower() for name in names}) < len(names):
        raise _NoDeltaTypeError
    described = [{"name": field.name, "type": _type(field.type), "nullable": True, "metadata": {}} for field in fields]
    return {"type": "struct", "fields": described}


def _type(type_: pa.DataType) -> Any:
    if type_ in _PLAIN:
        return _PLAIN[type_]
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_struct(type_):
        return _struct(type_)
    if pa.types.is_map(type_):
        key, value = _type(type_.key_type), _type(type_.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_list(type_):
        return {"type": "array", "elementType": _type(type_.value_type), "containsNull": True}
    raise _NoDeltaTypeError


def _has_ntz(type_: pa.DataType) -> bool:
    children = [type_.field(i).type for i in range(type_.num_fields)]
    return (pa.types.is_timestamp(type_) and type_.tz is None) or any(map(_has_ntz, children))
