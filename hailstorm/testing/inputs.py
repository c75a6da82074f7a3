"""Values of Spark's types without Spark, as hypothesis strategies.

The laws call it. Values look as user code sees them: structs are dicts, maps are lists of pairs, times are in UTC.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hailstorm.types import Misread, Type, read_type, spark_type

_FIRST, _LAST = datetime(1970, 1, 1), datetime(2100, 1, 1)

_SIMPLE: dict[str, Callable[[], SearchStrategy[Any]]] = {
    "boolean": st.booleans,
    "tinyint": lambda: _whole(8),
    "smallint": lambda: _whole(16),
    "int": lambda: _whole(32),
    # Not to the ends: a sum of the largest bigints is out of range for every monoid that keeps it in one.
    "bigint": lambda: _whole(48),
    "float": lambda: st.floats(-1e6, 1e6, width=32),
    "double": lambda: st.floats(-1e9, 1e9),
    "string": lambda: st.text(max_size=6),
    "binary": lambda: st.binary(max_size=6),
    "date": st.dates,
    "timestamp": lambda: st.datetimes(_FIRST, _LAST).map(_in_utc),
    "timestamp_ntz": lambda: st.datetimes(_FIRST, _LAST),
}


def _in_utc(at: datetime) -> datetime:
    return at.replace(tzinfo=UTC)


def _whole(bits: int) -> SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def canonical(type_: str) -> str:
    """A type as people write it, as Spark's simple string. Raises ValueError for what is not a type."""
    try:
        return str(read_type(type_))
    except Misread:
        raise ValueError(f"{type_!r} is not a type; write it as in a schema, such as STRING or ARRAY<INT>") from None


def values(type_: str) -> SearchStrategy[Any]:
    """Values of this type, without nulls and without NaN."""
    return _values(spark_type(type_))


def _values(type_: Type) -> SearchStrategy[Any]:
    if type_.word in _SIMPLE:
        return _SIMPLE[type_.word]()
    inside = [_values(part) for part in type_.inside]
    if type_.word == "decimal":
        precision, scale = type_.numbers
        most = 10**precision - 1
        return st.integers(-most, most).map(lambda digits: _decimal(digits, scale))
    if type_.word == "array":
        return st.lists(inside[0], max_size=3)
    if type_.word == "map":
        return st.lists(st.tuples(*inside), max_size=3, unique_by=lambda pair: repr(pair[0]))
    if type_.word == "struct":
        return st.fixed_dictionaries(dict(zip(type_.names, inside, strict=True)))
    raise ValueError(f"no values of {type_.shouted} can be made: pass a hypothesis strategy as `inputs`")


def _decimal(digits: int, scale: int) -> Decimal:
    """Made of its digits: Python's arithmetic would round to 28 of them."""
    return Decimal((digits < 0, tuple(map(int, str(abs(digits)))), -scale))
