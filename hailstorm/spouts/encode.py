"""Rows as JSON bytes: what `Log.append` and the test driver write, and `decode="json"` reads back without loss.

JSON has no NaN and no infinities. They are written as `NaN`, `Infinity` and `-Infinity`, as Python and Java do, and so
the decoder reads them. msgspec, which is quick, writes null for them, and knows no boolean keys: rows that may have
such values take the slower way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec


def encoded(row: Any) -> bytes:
    """Text and bytes as they are, anything else as JSON."""
    if isinstance(row, bytes):
        return row
    if isinstance(row, str):
        return row.encode()
    try:
        text = msgspec.json.encode(row)
    except TypeError:  # a key that it does not take
        return msgspec.json.encode(_spelled(row))
    # A null may stand for a number that msgspec cannot write.
    return msgspec.json.encode(_spelled(msgspec.to_builtins(row))) if b"null" in text else text


def _spelled(value: Any) -> Any:
    """With every float that has no digits as its name."""
    if isinstance(value, float):
        return value if math.isfinite(value) else msgspec.Raw(_name(value).encode())
    if isinstance(value, Mapping):
        return {_key(key): _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_spelled(item) for item in value]
    return value


def _key(key: Any) -> Any:
    if isinstance(key, bool):
        return "true" if key else "false"
    return _name(key) if isinstance(key, float) and not math.isfinite(key) else key


def _name(number: float) -> str:
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
