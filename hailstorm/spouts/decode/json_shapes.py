"""What the JSON parser can read, and the way from there to the schema's types.

Arrow's parser reads numbers, booleans, text, lists and structs. Timestamps, dates and bytes are therefore read as
text and converted by `leaves`; a map is rewritten to a list of {key, value} before it is parsed. `wire_type` says
what is parsed, `shaped` goes on to the type, at any depth and without Python per element.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.errors import TopologyError
from hailstorm.spouts.decode.decoder import Indexes
from hailstorm.spouts.decode.leaves import narrowed, parsed
from hailstorm.topology.arrow_types import spark_name

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_INTEGER = re.compile("-?(0|[1-9][0-9]*)")
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw])


def wire_type(type_: pa.DataType, *, wide: bool = True) -> pa.DataType:
    """The type that the parser is told to read for a column of this type.

    Decimals are read `wide`, because the parser compares the digits of the text with the precision, and not the
    digits of the value: it would read 99999 as DECIMAL(6,2).
    """
    if wide and pa.types.is_decimal(type_):
        return pa.decimal128(38, type_.scale)
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_) or pa.types.is_binary(type_):
        return pa.string()
    if pa.types.is_map(type_):
        if not (pa.types.is_string(type_.key_type) or pa.types.is_integer(type_.key_type)):
            raise TopologyError(43, f"a map in JSON has STRING or integer keys, not {type_.key_type}")
        return pa.list_(
            pa.struct([("key", wire_type(type_.key_type, wide=wide)), ("value", wire_type(type_.item_type, wide=wide))])
        )
    if pa.types.is_list(type_):
        return pa.list_(wire_type(type_.value_type, wide=wide))
    if pa.types.is_struct(type_):
        return pa.struct([pa.field(field.name, wire_type(field.type, wide=wide)) for field in type_])
    return type_


def has_map(type_: pa.DataType) -> bool:
    return pa.types.is_map(type_) or any(has_map(type_.field(i).type) for i in range(type_.num_fields))


def shaped(array: pa.Array, type_: pa.DataType, owner: Indexes, field: str, bad: dict[int, str]) -> pa.Array:
    """What was parsed, as the type. `owner` is the record of each element: a text that does not fit makes it bad."""
    if pa.types.is_decimal(type_) or (pa.types.is_string(array.type) and not pa.types.is_string(type_)):
        values, failed = narrowed(array, type_) if pa.types.is_decimal(type_) else parsed(array, type_)
        for index in failed:
            reason = f"field '{field}' is not {spark_name(type_)}: {array[index].as_py()!r:.80}"
            bad.setdefault(int(owner[index]), reason)
        return values
    if array.type == type_:
        return array
    nothing = array.is_null()
    if pa.types.is_struct(type_):
        parts = [
            shaped(part, child.type, owner, f"{field}.{child.name}", bad)
            for part, child in zip(array.flatten(), type_, strict=True)
        ]
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=nothing)
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = pa.array(np.concatenate(([0], np.cumsum(lengths))), pa.int32())
    owners = np.repeat(owner, lengths)
    elements = array.flatten()
    if pa.types.is_map(type_):
        keys, items = elements.flatten()
        items = shaped(items, type_.item_type, owners, f"{field}.*", bad)
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=nothing)
    values = shaped(elements, type_.value_type, owners, f"{field}[]", bad)
    return pa.ListArray.from_arrays(offsets, values, type=type_, mask=nothing)


def with_lists_for_maps(record: bytes, schema: pa.Schema) -> bytes:
    """The record with every map of the schema as a list of {key, value}; a record that is not JSON as it was."""
    try:
        fields = _FIELDS.decode(record)
        parts = [
            b"%s:%s" % (msgspec.json.encode(name), _rewritten(raw, schema.field(name).type))
            for name, raw in fields.items()
            if name in schema.names
        ]
    except (msgspec.DecodeError, RecursionError):
        return record
    return b"{" + b",".join(parts) + b"}"


def _rewritten(raw: msgspec.Raw, type_: pa.DataType) -> bytes | msgspec.Raw:
    """A value that is not of the type's shape stays as it is: the parser will say so."""
    if not has_map(type_):
        return raw
    text = bytes(raw).lstrip()
    if pa.types.is_list(type_) and text.startswith(b"["):
        return b"[" + b",".join(_rewritten(element, type_.value_type) for element in _ELEMENTS.decode(raw)) + b"]"
    if not text.startswith(b"{"):
        # Unlike an object, a list must not be taken for a map that was already rewritten.
        return b'{"not":"a map"}' if text.startswith(b"[") else raw
    fields = _FIELDS.decode(raw)
    if pa.types.is_struct(type_):
        types = {field.name: field.type for field in type_}
        kept = [
            b"%s:%s" % (msgspec.json.encode(name), _rewritten(value, types[name]))
            for name, value in fields.items()
            if name in types
        ]
        return b"{" + b",".join(kept) + b"}"
    if pa.types.is_list(type_):
        return raw
    numbered = pa.types.is_integer(type_.key_type)
    pairs = [
        b'{"key":%s,"value":%s}'
        % (
            key.encode() if numbered and _INTEGER.fullmatch(key) else msgspec.json.encode(key),
            _rewritten(value, type_.item_type),
        )
        for key, value in fields.items()
    ]
    return b"[" + b",".join(pairs) + b"]"
