"""What the JSON parser can read, and the way from there to the schema's types.

Arrow's parser reads numbers, booleans, text, lists and structs. Timestamps, dates and bytes are therefore read as
text and converted by `leaves`; a map is rewritten to a list of {key, value} before it is parsed. `wire_type` says
what is parsed, `shaped` goes on to the type, at any depth and without Python per element.
"""

from __future__ import annotations

import itertools
import re
from decimal import Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.errors import TopologyError
from hailstorm.spouts.decode.decoder import Indexes
from hailstorm.spouts.decode.leaves import narrowed, parsed
from hailstorm.topology.arrow_types import spark_name

_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|NaN|-?Inf(inity)?")
_INTEGER = re.compile("-?(0|[1-9][0-9]*)")
# A whole text, which is passed over, or the name of a number that has no digits.
_UNSPELLED = re.compile(rb'("(?:[^"\\]|\\.)*")|(NaN|-?Inf(?:inity)?)', re.DOTALL)
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
        if pa.types.is_nested(type_.key_type):
            raise TopologyError(43, f"a map in JSON has keys that are one value, not {spark_name(type_.key_type)}")
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


def wrong_kind(schema: pa.Schema, path: str, wanted: str, given: str) -> str:
    """Why a value is bad that is, say, an array where a number belongs. `path` and kinds are those of what is parsed:
    there a map is a list of {key, value}, and an array in its place was made an object.
    """
    place, type_ = _place(pa.struct(list(schema)), path)
    if type_ is not None and pa.types.is_map(type_):
        wanted, given = "object", "array" if given == "object" else given
    return f"field '{place.removeprefix('.')}' must be {wanted}, not {given}"


def _place(type_: pa.DataType, path: str) -> tuple[str, pa.DataType | None]:
    """What stands at a path of what is parsed: its place in the record as written, and its type."""
    if not path:
        return "", type_
    if pa.types.is_struct(type_):
        rest = path.removeprefix(".")
        for field in sorted(type_, key=lambda field: -len(field.name)):
            if rest.startswith(field.name) and rest[len(field.name) :][:1] in ("", ".", "["):
                place, found = _place(field.type, rest[len(field.name) :])
                return f".{field.name}{place}", found
    elif pa.types.is_map(type_) and path.startswith("[].value"):
        place, found = _place(type_.item_type, path.removeprefix("[].value"))
        return f".*{place}", found
    elif pa.types.is_list(type_) and path.startswith("[]"):
        place, found = _place(type_.value_type, path.removeprefix("[]"))
        return f"[]{place}", found
    return path, None


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
        keys = shaped(keys, type_.key_type, owners, f"{field}.*", bad)
        if keys.null_count:  # of records that are bad; an array of maps cannot be made with them
            keys = pc.fill_null(keys, _nothing_of(keys.type))
        items = shaped(items, type_.item_type, owners, f"{field}.*", bad)
        return pa.MapArray.from_arrays(offsets, keys, items, type=type_, mask=nothing)
    values = shaped(elements, type_.value_type, owners, f"{field}[]", bad)
    return pa.ListArray.from_arrays(offsets, values, type=type_, mask=nothing)


def _nothing_of(type_: pa.DataType) -> pa.Scalar:
    empty = b"" if pa.types.is_binary(type_) else Decimal(0) if pa.types.is_decimal(type_) else 0
    return pa.scalar(empty, type_)


def with_lists_for_maps(record: bytes, schema: pa.Schema) -> bytes:
    """The record with every map of the schema as a list of {key, value}; a record that is not JSON as it was."""
    if _UNSPELLED.search(record):
        # msgspec does not know these names. As texts that the record does not have they come through.
        mark = next(text for n in itertools.count() if (text := b"hailstorm-%d-" % n) not in record)
        named = _UNSPELLED.sub(lambda found: b'"%s%s"' % (mark, found[2]) if found[2] else found[0], record)
        return re.sub(b'"%s([-a-zA-Z]+)"' % mark, rb"\1", _with_lists(named, schema, record))
    return _with_lists(record, schema, record)


def _with_lists(text: bytes, schema: pa.Schema, record: bytes) -> bytes:
    try:
        fields = _FIELDS.decode(text)
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
    pairs = [
        b'{"key":%s,"value":%s}' % (_key(key, type_.key_type), _rewritten(value, type_.item_type))
        for key, value in fields.items()
    ]
    return b"[" + b",".join(pairs) + b"]"


def _key(key: str, type_: pa.DataType) -> bytes:
    """The key as a value of its type, where JSON has one; what is not of the type stays text, and is refused."""
    bare = (
        (pa.types.is_integer(type_) and _INTEGER.fullmatch(key))
        or (pa.types.is_floating(type_) and _NUMBER.fullmatch(key))
        or (pa.types.is_boolean(type_) and key in ("true", "false"))
    )
    return key.encode() if bare else msgspec.json.encode(key)
