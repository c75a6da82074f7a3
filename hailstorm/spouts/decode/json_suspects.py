"""Which records of a refused block are surely bad, found with Python's JSON parser and without Arrow's.

The JSON decoder's meaning is Arrow's reader, but each call of it costs as much as parsing a hundred records, so
finding many bad records by halving alone would be slow. This only speeds that up, and must stay on the safe side:
a record that is accused here is one that the reader refuses, always. (Otherwise a record's fate would depend on its
neighbours.) Where the two parsers may differ, the record is not accused, and halving decides.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from hailstorm.spouts.decode.json_shapes import wrong_kind
from hailstorm.topology.arrow_types import spark_name


class _Number(str):
    """A number's text: nothing is lost, and it is not mistaken for a string."""


class _Repeating(dict[str, Any]):
    """An object that gives a field twice."""

    repeated: frozenset[str]


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) == len(pairs):
        return found
    repeating = _Repeating(found)
    names = [name for name, _ in pairs]
    repeating.repeated = frozenset(name for name in names if names.count(name) > 1)
    return repeating


_INTEGER = re.compile("-?[0-9]+")
_PLAIN_DECIMAL = re.compile(r"-?0*(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]+))?")
_JSON = json.JSONDecoder(parse_int=_Number, parse_float=_Number, parse_constant=_Number, object_pairs_hook=_object)
_KINDS: dict[type, str] = {
    _Number: "number",
    str: "string",
    bool: "boolean",
    list: "array",
    dict: "object",
    _Repeating: "object",
}


class Suspicion:
    """`told` is what the reader is told to read, but with decimals as they are declared; `declared` are the columns."""

    def __init__(self, told: pa.Schema, declared: pa.Schema) -> None:
        self._told, self._declared = told, declared

    def of(self, record: bytes) -> str | None:
        """Why the record is surely bad, or None."""
        try:
            value = _JSON.decode(record.decode())
        except json.JSONDecodeError as error:
            # The reader knows more spellings of infinity than Python does.
            return None if b"Inf" in record or b"NaN" in record else f"is not valid JSON: {error}"
        except RecursionError:
            return None
        return self._misfit_in(value, self._told, "")

    def _misfit_in(self, value: dict[str, Any], fields: Iterable[pa.Field], path: str) -> str | None:
        repeated = value.repeated if isinstance(value, _Repeating) else ()
        for field in fields:
            if field.name in repeated:
                return f"field '{path}{field.name}' is given twice"
            if reason := self._misfit(value.get(field.name), field.type, path + field.name):
                return reason
        return None

    def _misfit(self, value: Any, type_: pa.DataType, path: str) -> str | None:
        if value is None:
            return None
        kind, wanted = _KINDS[type(value)], _wanted(type_)
        if kind != wanted and not (pa.types.is_decimal(type_) and kind == "string"):
            return wrong_kind(self._declared, path, wanted, kind)
        if wanted == "array":
            return next(filter(None, (self._misfit(element, type_.value_type, f"{path}[]") for element in value)), None)
        if wanted == "object":
            return self._misfit_in(value, type_, f"{path}.")
        if wanted == "number" and not _fits(value, type_):
            return f"field '{path}' is not {spark_name(type_)}: {value:.80}"
        return None


def _wanted(type_: pa.DataType) -> str:
    if pa.types.is_list(type_):
        return "array"
    if pa.types.is_struct(type_):
        return "object"
    if pa.types.is_string(type_):
        return "string"
    return "boolean" if pa.types.is_boolean(type_) else "number"


def _fits(text: str, type_: pa.DataType) -> bool:
    if pa.types.is_integer(type_):
        if not _INTEGER.fullmatch(text) or len(text) > 20:
            return False
        limit: int = 1 << (type_.bit_width - 1)
        return -limit <= int(text) < limit
    if pa.types.is_decimal(type_) and (match := _PLAIN_DECIMAL.fullmatch(text)):
        fraction = (match["part"] or "").rstrip("0")
        return bool(len(match["whole"]) <= type_.precision - type_.scale and len(fraction) <= type_.scale)
    return True
