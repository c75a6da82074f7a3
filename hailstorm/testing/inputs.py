"""Values of Spark's types without Spark: as hypothesis strategies, and as the Arrow types that hold them.

The laws call it. Values look as user code sees them: structs are dicts, maps are lists of pairs, times are in UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hailstorm.algebra.types import decimal_of
from hailstorm.topology.ddl import read_type, struct_fields

_FIRST, _LAST = datetime(1970, 1, 1), datetime(2100, 1, 1)

_SIMPLE: dict[str, tuple[pa.DataType, Callable[[], SearchStrategy[Any]]]] = {
    "boolean": (pa.bool_(), st.booleans),
    "tinyint": (pa.int8(), lambda: _whole(8)),
    "smallint": (pa.int16(), lambda: _whole(16)),
    "int": (pa.int32(), lambda: _whole(32)),
    # Not to the ends: a sum of the largest bigints is out of range for every monoid that keeps it in one.
    "bigint": (pa.int64(), lambda: _whole(48)),
    "float": (pa.float32(), lambda: st.floats(-1e6, 1e6, width=32)),
    "double": (pa.float64(), lambda: st.floats(-1e9, 1e9)),
    "string": (pa.string(), lambda: st.text(max_size=6)),
    "binary": (pa.binary(), lambda: st.binary(max_size=6)),
    "date": (pa.date32(), st.dates),
    "timestamp": (pa.timestamp("us", "UTC"), lambda: st.datetimes(_FIRST, _LAST).map(_in_utc)),
    "timestamp_ntz": (pa.timestamp("us"), lambda: st.datetimes(_FIRST, _LAST)),
}


def _in_utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC)


def _whole(bits: int) -> SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def canonical(type_: str) -> str:
    """A type as people write it, as Spark's simple string. Raises ValueError for what is not a type."""
    known = read_type(type_)
    if known is None:
        raise ValueError(f"{type_!r} is not a type; write it as in a schema, such as STRING or ARRAY<INT>")
    return known


def arrow_type(type_: str) -> pa.DataType:
    """The Arrow type that holds values of this (canonical) type in the ledger."""
    if type_ in _SIMPLE:
        return _SIMPLE[type_][0]
    decimal = decimal_of(type_)
    if decimal:
        return pa.decimal128(*decimal)
    if type_.startswith("array<"):
        return pa.list_(arrow_type(type_[6:-1]))
    if type_.startswith("map<"):
        return pa.map_(*(arrow_type(part) for part in _key_and_value(type_)))
    if type_.startswith("struct<"):
        return pa.struct([(name, arrow_type(part)) for name, part in struct_fields(type_).items()])
    raise ValueError(f"no values of {type_.upper()} can be made: pass a hypothesis strategy as `inputs`")


def values(type_: str) -> SearchStrategy[Any]:
    """Values of this (canonical) type, without nulls and without NaN."""
    if type_ in _SIMPLE:
        return _SIMPLE[type_][1]()
    decimal = decimal_of(type_)
    if decimal:
        most = 10 ** decimal[0] - 1
        return st.integers(-most, most).map(lambda digits: Decimal(digits).scaleb(-decimal[1]))
    if type_.startswith("array<"):
        return st.lists(values(type_[6:-1]), max_size=3)
    if type_.startswith("map<"):
        key, value = _key_and_value(type_)
        return st.lists(st.tuples(values(key), values(value)), max_size=3, unique_by=lambda pair: repr(pair[0]))
    if type_.startswith("struct<"):
        return st.fixed_dictionaries({name: values(part) for name, part in struct_fields(type_).items()})
    raise ValueError(f"no values of {type_.upper()} can be made: pass a hypothesis strategy as `inputs`")


def _key_and_value(type_: str) -> tuple[str, str]:
    inside, depth = type_[4:-1], 0
    for i, sign in enumerate(inside):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            return inside[:i], inside[i + 1 :]
    raise ValueError(f"{type_!r} is not a map")
