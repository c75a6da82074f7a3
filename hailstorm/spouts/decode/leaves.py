"""Text to values, a whole column at a time: the timestamps, dates and bytes of JSON, and every field of CSV.

Both decoders convert here, so a text means the same in both. A text that does not fit is reported by its index and
left null; the caller knows the field and the record.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.halving import failing_parts, halved
from hailstorm.spouts.decode.decoder import Indexes

_UTC = pa.timestamp("us", tz="UTC")
_LOCAL = pa.timestamp("us")
# The first and the last microsecond of the years 1 to 9999, since 1970.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
# The date alone is ten characters, and its "-02" is not an offset.
_ZONE = r"^.{11,}(Z|[+-]\d\d(:?\d\d)?)$"
# Java and Go write nanoseconds; a timestamp holds microseconds, and the rest is cut off, as Spark does.
_TOO_FINE = r"(\.\d{6})\d+"

_PYTHON: dict[pa.DataType, Callable[[str], object]] = {
    pa.date32(): date.fromisoformat,
    pa.float32(): float,
    pa.float64(): float,
}


def parsed(texts: pa.StringArray, type_: pa.DataType) -> tuple[pa.Array, list[int]]:
    """The texts as values of a type, and the indexes of those that do not fit; a null stays null."""
    if type_ == pa.string():
        return texts, []
    if type_ == pa.binary():
        return _from_base64(texts)
    if type_ == _UTC:
        return _within_years(*_isolated(texts, _instants, datetime.fromisoformat))
    if type_ == _LOCAL:
        return _within_years(*_isolated(texts, _local_times, datetime.fromisoformat))
    if pa.types.is_integer(type_):
        # Arrow would read 0x1F.
        return _isolated(pc.if_else(pc.match_substring(texts, "x", ignore_case=True), "?", texts), _caster(type_), int)
    return _isolated(texts, _caster(type_), _PYTHON.get(type_))


def narrowed(decimals: pa.Array, type_: pa.DataType) -> tuple[pa.Array, list[int]]:
    """Decimals of the right scale in their declared precision, and the indexes of those that are too large for it."""
    largest = pa.scalar(Decimal((0, (9,) * type_.precision, -type_.scale)), pa.decimal128(38, type_.scale))
    fits = pc.less_equal(pc.abs(decimals), largest)
    kept = pc.if_else(fits, decimals, pa.scalar(None, decimals.type))
    return pc.cast(kept, type_), np.flatnonzero(~np.asarray(pc.fill_null(fits, True))).tolist()


def not_utf8(values: pa.BinaryArray) -> Indexes:
    """The indexes of the values that are not UTF-8."""
    return np.array(_isolated(values, lambda part: part.cast(pa.string()), bytes.decode)[1], np.int64)


def _caster(type_: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    return lambda part: pc.cast(part, type_)


def _instants(texts: pa.StringArray) -> pa.Array:
    try:
        return pc.cast(texts, _UTC)
    except pa.ArrowInvalid:
        shorter = pc.replace_substring_regex(texts, _TOO_FINE, r"\1")
        zoned = pc.match_substring_regex(shorter, _ZONE)
        nothing = pa.scalar(None, pa.string())
        with_zone = pc.cast(pc.if_else(zoned, shorter, nothing), _UTC)
        without_zone = pc.cast(pc.cast(pc.if_else(zoned, nothing, shorter), _LOCAL), _UTC)
        return pc.coalesce(with_zone, without_zone)


def _within_years(times: pa.Array, failed: list[int]) -> tuple[pa.Array, list[int]]:
    """Without times that an offset pushes out of the years 1 to 9999: neither Python nor most databases hold them."""
    outside = pc.or_(
        pc.less(times, pa.scalar(_FIRST, pa.int64()).cast(times.type)),
        pc.greater(times, pa.scalar(_LAST, pa.int64()).cast(times.type)),
    )
    if not pc.any(outside).as_py():
        return times, failed
    more = np.flatnonzero(np.asarray(pc.fill_null(outside, False))).tolist()
    return pc.if_else(outside, pa.scalar(None, times.type), times), sorted({*failed, *more})


def _local_times(texts: pa.StringArray) -> pa.Array:
    return pc.cast(pc.replace_substring_regex(texts, _TOO_FINE, r"\1"), _LOCAL)


def _from_base64(texts: pa.StringArray) -> tuple[pa.Array, list[int]]:
    values: list[bytes | None] = texts.to_pylist()
    failed = []
    for index, text in enumerate(values):
        if text is not None:
            try:
                values[index] = binascii.a2b_base64(text, strict_mode=True)
            except ValueError:
                values[index] = None
                failed.append(index)
    return pa.array(values, pa.binary()), failed


def _isolated(
    texts: pa.Array, convert: Callable[[pa.Array], pa.Array], python: Callable[[Any], Any] | None = None
) -> tuple[pa.Array, list[int]]:
    """Convert all at once; when that fails, halve until the failing texts are alone.

    `python` is a conversion of one text that fails where `convert` may fail: those texts are tried alone, which is
    quicker than halving when many are bad. What `convert` says decides.
    """
    made: list[pa.Array] = []

    def refused(part: range) -> bool | None:
        try:
            made.append(convert(texts[part.start : part.stop]))
        except pa.ArrowInvalid:
            return True
        return None

    whole = range(len(texts))
    if refused(whole) is None:
        return made[0], []
    if python is not None:
        failed = [index for index in _refused_by(python, texts) if _isolated(texts[index : index + 1], convert)[1]]
        innocent = np.ones(len(texts), bool)
        innocent[failed] = False
        rest, more = _isolated(pc.if_else(pa.array(innocent), texts, pa.scalar(None, texts.type)), convert)
        return rest, sorted(failed + more)
    failed = []
    for alone, _ in failing_parts(halved(whole) or [whole], refused, halved):
        made.append(convert(pa.array([None], texts.type)))
        failed.append(alone.start)
    return pa.concat_arrays(made), failed


def _refused_by(python: Callable[[Any], Any], texts: pa.Array) -> list[int]:
    refused = []
    for index, text in enumerate(texts.to_pylist()):
        try:
            if text is not None:
                python(text)
        except ValueError:
            refused.append(index)
    return refused
