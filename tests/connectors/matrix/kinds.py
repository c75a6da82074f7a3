"""Every type that a column can have, with values of it, generated; and what such values look like as JSON and text.

A value is *sent* as Python has it, but for what Python cannot hold: a date is its days and a timestamp its microseconds
since 1970, and a map is a list of pairs. Whatever a target shows is turned back into that form by its type, strictly,
with nothing of Hailstorm's: so what arrives is compared with what was sent.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa

from hailstorm.topology.arrow_types import arrow_type

Sent = Any

_CYCLE = 146_097  # days of 400 years: after these, the calendar is the same again
_DAY = 86_400_000_000  # microseconds
NAMES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

FLOATS = [1.5, -0.0, math.nan, math.inf, -math.inf, 0.10000000149011612]
DAYS = {
    "1970-01-01": 0,
    "1969-12-31": -1,
    "0001-01-01": -719_162,
    "1500-02-28": -171_606,
    "9999-12-31": 2_932_896,
    "10000-01-01": 2_932_897,
    "-0001-12-31": -719_529,
}
TIMES = [0, 1, -1, *(day * _DAY + 43_200_000_001 for day in DAYS.values()), 2**63 - 2, -(2**63) + 2]
SCALARS: dict[str, list[Sent]] = {
    "boolean": [True, False],
    "tinyint": [0, -128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1, 2**53 + 1],
    "float": [*FLOATS, 3.4028234663852886e38, 1.401298464324817e-45],
    "double": [*FLOATS, 0.1, 1e16, 1.7976931348623157e308, 5e-324],
    "decimal(5,2)": [Decimal("1.50"), Decimal("-999.99"), Decimal("0.00")],
    "decimal(38,10)": [Decimal("0E-10"), Decimal("1E-10"), Decimal("-1234567890123456789012345678.0123456789")],
    "string": ["", "a", "null", "true", "Grüße 雹 🌧 \u2028", "quo\"te's \\ ; -- \n\t\x01", "a\0b", "[bold] {x} %s ?"],
    "binary": [b"", b"\x00\xff", b"text"],
    "date": list(DAYS.values()),
    "timestamp": TIMES,
    "timestamp_ntz": TIMES,
}

INSIDE = ("boolean", "bigint", "double", "decimal(38,10)", "string", "binary", "date", "timestamp", "timestamp_ntz")


def _kinds() -> Iterator[tuple[str, list[Sent]]]:
    yield from SCALARS.items()
    for leaf in INSIDE:
        yield from _containers(leaf, SCALARS[leaf])
    # Twice: times are what most targets have trouble with.
    for inner, values in _containers("timestamp", [0, SCALARS["timestamp"][-2]]):
        yield from _containers(inner, values)


def _containers(leaf: str, values: list[Sent]) -> Iterator[tuple[str, list[Sent]]]:
    first = values[0]
    yield f"array<{leaf}>", [*([value] for value in values), [], [None], [first, None, values[-1]]]
    yield f"map<string,{leaf}>", [*([("k", value)] for value in values), [], [('a "key"', first), ("", None)]]
    if "map<" not in leaf:
        yield f"map<{leaf},int>", [*([(value, 1)] for value in values), [(first, None), (values[1], 2)]]
    fields = [{"x": value, "two `words`.\"'": 1} for value in (*values, None)]
    yield f"struct<x:{leaf},`two ``words``.\"'`:int>", fields


KINDS: dict[str, list[Sent]] = {kind: [*values, None] for kind, values in _kinds()}
"""Every kind of column, by its name, with values of it. The last one is null."""
ODD_NAMES = [
    "two words",
    'quo"te',
    "apo's",
    "back`tick",
    "do.t",
    "select",
    "Grüße",
    "a;--",
    "per%cent%s",
    "x\\y",
    "new\nline",
]


def arrow_column(kind: str, values: list[Sent]) -> pa.Array:
    return pa.array(values, arrow_type(kind))


def is_key(kind: str) -> bool:
    """Whether Spark takes it in a key: no maps."""
    return "map<" not in kind


def exact(value: Sent) -> Any:
    """For comparison: every NaN is one value, -0.0 is not 0.0, True is not 1, and a map has no order."""
    match value:
        case float():
            return ("float", repr(value))
        case dict():
            return {name: exact(inner) for name, inner in value.items()}
        case tuple():
            return tuple(exact(inner) for inner in value)
        case list():
            items = [exact(inner) for inner in value]
            is_map = items and all(isinstance(item, tuple) and len(item) == 2 for item in value)
            return sorted(items, key=repr) if is_map else items
    return (type(value).__name__, value)


def leaves(kind: pa.DataType, value: Sent) -> Iterator[tuple[pa.DataType, Sent]]:
    """The scalars in a value, keys of maps included, each with its type. Nulls are left out."""
    if value is None:
        return
    if pa.types.is_list(kind):
        parts = [(kind.value_type, one) for one in value]
    elif pa.types.is_map(kind):
        parts = [part for key, item in value for part in ((kind.key_type, key), (kind.item_type, item))]
    elif pa.types.is_struct(kind):
        parts = [(field.type, value[field.name]) for field in kind]
    else:
        yield kind, value
        return
    for part in parts:
        yield from leaves(*part)


def replaced(kind: pa.DataType, value: Sent, replace: Any) -> Sent:
    """The value with every scalar in it replaced by `replace(type, scalar)`; keys of maps stay."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [replaced(kind.value_type, one, replace) for one in value]
    if pa.types.is_map(kind):
        return [(key, replaced(kind.item_type, item, replace)) for key, item in value]
    if pa.types.is_struct(kind):
        return {field.name: replaced(field.type, value[field.name], replace) for field in kind}
    return replace(kind, value)


def of_json(kind: pa.DataType, value: Any) -> Sent:
    """The value that parsed JSON stands for."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [of_json(kind.value_type, one) for one in value]
    if pa.types.is_map(kind):
        assert isinstance(value, dict), value
        return [(of_key(kind.key_type, key), of_json(kind.item_type, item)) for key, item in value.items()]
    if pa.types.is_struct(kind):
        assert list(value) == [field.name for field in kind] or set(value) == {field.name for field in kind}, value
        return {field.name: of_json(field.type, value[field.name]) for field in kind}
    if pa.types.is_boolean(kind):
        assert isinstance(value, bool), value
        return value
    if pa.types.is_integer(kind):
        assert isinstance(value, int) and not isinstance(value, bool), value
        return value
    if pa.types.is_floating(kind):
        if isinstance(value, str):
            return NAMES[value]
        assert isinstance(value, int | float) and not isinstance(value, bool), value
        return float(value)
    assert isinstance(value, str), value
    return of_text(kind, value)


def of_key(kind: pa.DataType, text: str) -> Sent:
    """The key of a map, which is a text in JSON."""
    if pa.types.is_nested(kind) or pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return of_json(kind, json.loads(text))
    return of_text(kind, text)


def of_text(kind: pa.DataType, text: str) -> Sent:
    """The value that a text stands for."""
    if pa.types.is_floating(kind):
        return NAMES[text] if text in NAMES else float(text)
    if pa.types.is_decimal(kind):
        assert re.fullmatch(rf"-?\d+(\.\d{{{kind.scale}}})?", text), text
        return Decimal(text)
    if pa.types.is_binary(kind):
        return base64.b64decode(text, validate=True)
    if pa.types.is_date(kind):
        return days_of(text)
    if pa.types.is_timestamp(kind):
        day, _, clock = text.partition("T")
        found = re.fullmatch(r"(\d\d):(\d\d):(\d\d)\.(\d{6})" + ("Z" if kind.tz else ""), clock)
        assert found, text
        hours, minutes, seconds, rest = map(int, found.groups())
        return days_of(day) * _DAY + ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + rest
    assert pa.types.is_string(kind), kind
    return text


def days_of(text: str) -> int:
    """ISO 8601, with a sign in front of years that do not have four digits or are negative."""
    found = re.fullmatch(r"(\d{4}|\+\d{5,}|-\d{4,})-(\d\d)-(\d\d)", text)
    assert found, text
    year, month, day = int(found[1]), int(found[2]), int(found[3])
    cycles = (year - 2000) // 400
    return date(year - 400 * cycles, month, day).toordinal() - 719_163 + _CYCLE * cycles


def of_arrow(column: pa.ChunkedArray, kind: pa.DataType) -> list[Sent]:
    """The values of a column that another program has written or read, whatever it calls the parts of its types."""
    counted = column.cast(_counted(kind))
    return list(counted.to_pylist())


def _counted(kind: pa.DataType) -> pa.DataType:
    """The type with numbers in the place of times."""
    if pa.types.is_list(kind):
        return pa.list_(_counted(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_counted(kind.key_type), _counted(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _counted(field.type)) for field in kind])
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def of_python(kind: pa.DataType, value: Any) -> Sent:
    """The value that a Python function was given."""
    if value is None:
        return None
    if pa.types.is_list(kind):
        return [of_python(kind.value_type, one) for one in value]
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [(of_python(kind.key_type, key), of_python(kind.item_type, item)) for key, item in pairs]
    if pa.types.is_struct(kind):
        return {field.name: of_python(field.type, value[field.name]) for field in kind}
    if pa.types.is_date(kind):
        return value.toordinal() - 719_163
    if pa.types.is_timestamp(kind):
        assert (value.tzinfo is not None) == (kind.tz is not None)
        day = value.toordinal() - 719_163
        return day * _DAY + ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
    return value
