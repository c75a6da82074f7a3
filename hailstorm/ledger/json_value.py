"""Single values, as Python has them, as JSON: what commands print of a row, a key or a trace.

`sinks/json_rows.py` is the same for columns. Without Arrow, which takes long to load for who reads one key.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import msgspec


class Beyond(str):
    """JSON of a value that Python has no type for: it is, or has in it, a time outside of the years 1 to 9999."""


def to_json(value: Any) -> str:
    """One line. Times are ISO 8601 in UTC, decimals are text with all their digits (a float would change them), bytes
    are base64. NaN and the infinities, which JSON has no words for, are texts of their names. A map is an object of
    the texts of its keys."""
    return msgspec.json.encode(_plain(value)).decode()


def _plain(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else "NaN" if math.isnan(value) else f"{'-' * (value < 0)}Infinity"
        case Decimal():
            return format(value, "f")  # str() writes a small one with an exponent
        case Beyond():
            return msgspec.Raw(value.encode())
        case dict():
            return {_name(name): _plain(item) for name, item in value.items()}
        case list() | tuple():
            return [_plain(item) for item in value]
        case _:
            return value


def _name(key: Any) -> str:
    if type(key) is str:
        return key
    text = to_json(key)
    return str(msgspec.json.decode(text)) if text.startswith('"') else text
