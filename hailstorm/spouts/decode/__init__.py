"""Decoders: the bytes of a record become typed columns.

`decoder(decode, columns)` is the one entry; the engine calls it when it compiles a spout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hailstorm.errors import TopologyError, suggestion
from hailstorm.spouts.decode.decoder import Decoded, Decoder
from hailstorm.spouts.decode.delimited import CsvDecoder
from hailstorm.spouts.decode.format import Format, FormatDecoder
from hailstorm.spouts.decode.function import FunctionDecoder
from hailstorm.spouts.decode.json_lines import JsonDecoder
from hailstorm.spouts.decode.kafka_columns import KafkaColumns, in_value
from hailstorm.spouts.decode.plain import BytesDecoder, TextDecoder
from hailstorm.topology.arrow_types import Columns

__all__ = ["Decoded", "Decoder", "decoder"]

_NAMED: dict[str, type[Decoder]] = {"json": JsonDecoder, "text": TextDecoder, "bytes": BytesDecoder, "csv": CsvDecoder}


def decoder(
    decode: str | Callable[[bytes], Any], columns: Iterable[tuple[str, str]], required: Iterable[str] = ()
) -> Decoder:
    """The decoder for a spout's `decode` and its columns (name, Spark's simple type); `required` must not be null."""
    fixed = tuple((name, type_) for name, type_ in columns)
    from_value = in_value(fixed)
    found = _decoder(decode, from_value)
    if from_value != fixed:
        found = KafkaColumns(found, fixed)
    found.required = tuple(required)
    return found


def _decoder(decode: str | Callable[[bytes], Any], fixed: Columns) -> Decoder:
    if isinstance(decode, Format):
        return FormatDecoder(decode, fixed)
    if not isinstance(decode, str):
        return FunctionDecoder(decode, fixed)
    if decode not in _NAMED:
        known = ", ".join(f'"{name}"' for name in _NAMED)
        raise TopologyError(
            41,
            f"there is no decoder '{decode}'",
            hint=f"decode is {known}, or a function from bytes to a dict. {suggestion(decode, _NAMED)}",
        )
    return _NAMED[decode](fixed)
