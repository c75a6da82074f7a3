"""Types and values: what the columns of a drawn topology hold, with everything that is odd about it.

A type knows its DDL, its Arrow type, how to draw a value (nulls, NaN, infinities, -0.0, the first and the last times),
how a value is written as JSON for a log, and how as an SQL literal. Values are what Arrow takes: structs are dicts,
maps are lists of pairs.
"""

from __future__ import annotations

import base64
import json
import math
import random
import struct
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

Chance = random.Random
EXACT = Context(prec=80)  # Python's own arithmetic of decimals rounds to 28 digits


@dataclass(frozen=True)
class Type:
    """A type that is not nested, by Spark's simple string."""

    text: str

    @property
    def arrow(self) -> pa.DataType:
        return _ARROW[self.text]

    @property
    def is_whole(self) -> bool:
        return self.text in WHOLE

    @property
    def is_float(self) -> bool:
        return self.text in ("float", "double")

    @property
    def is_number(self) -> bool:
        return self.is_whole or self.is_float or isinstance(self, Decimals)

    @property
    def orderable(self) -> bool:
        return "map<" not in self.text

    def draw(self, chance: Chance) -> Any:
        """A value, or null."""
        return None if chance.random() < 0.12 else self.known(chance)

    def known(self, chance: Chance) -> Any:
        """A value that is not null."""
        common, rare = _VALUES[self.text]
        return chance.choice(rare) if chance.random() < 0.15 else chance.choice(common)

    @property
    def plainest(self) -> Any:
        """What the shrinker makes of a value."""
        return _VALUES[self.text][0][0]

    def json(self, value: Any) -> str:
        if value is None:
            return "null"
        if isinstance(value, bytes):
            return json.dumps(base64.b64encode(value).decode())
        if isinstance(value, datetime):
            text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
            return json.dumps(text + ("Z" if value.tzinfo else ""))
        return json.dumps(value.isoformat() if isinstance(value, date) else value, ensure_ascii=False)

    def literal(self, value: Any) -> str:
        """SQL of this very type."""
        if value is None:
            return f"cast(NULL AS {self.text})"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, int):
            return f"cast('{value}' AS {self.text})" if value < 0 else f"{value}{_SUFFIX[self.text]}"
        if isinstance(value, float):
            return f"cast('{value!r}' AS {self.text})"
        if isinstance(value, bytes):
            return f"X'{value.hex()}'"
        if isinstance(value, datetime):
            text = value.replace(tzinfo=None).isoformat(" ", timespec="microseconds")
            return f"{'TIMESTAMP' if value.tzinfo else 'TIMESTAMP_NTZ'} '{text}{'Z' if value.tzinfo else ''}'"
        if isinstance(value, date):
            return f"DATE '{value.isoformat()}'"
        return "'" + str(value).replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n") + "'"


@dataclass(frozen=True)
class Decimals(Type):
    precision: int
    scale: int

    @staticmethod
    def of(precision: int, scale: int) -> Decimals:
        return Decimals(f"decimal({precision},{scale})", precision, scale)

    @property
    def arrow(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)

    def known(self, chance: Chance) -> Any:
        most = 10**self.precision - 1
        digits = chance.choice([most, -most, 1]) if chance.random() < 0.15 else chance.randint(-30, 30)
        return Decimal(max(min(digits, most), -most)).scaleb(-self.scale, EXACT)

    @property
    def plainest(self) -> Any:
        return Decimal(0).scaleb(-self.scale)

    def json(self, value: Any) -> str:
        return "null" if value is None else f'"{value:f}"'

    def literal(self, value: Any) -> str:
        return f"cast({'NULL' if value is None else repr(format(value, 'f'))} AS {self.text})"


@dataclass(frozen=True)
class Array(Type):
    of: Type

    @staticmethod
    def holding(of: Type) -> Array:
        return Array(f"array<{of.text}>", of)

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(self.of.arrow)

    def known(self, chance: Chance) -> Any:
        return [self.of.draw(chance) for _ in range(chance.choice([0, 1, 1, 2, 3]))]

    @property
    def plainest(self) -> Any:
        return []

    def json(self, value: Any) -> str:
        return "null" if value is None else "[" + ", ".join(self.of.json(item) for item in value) + "]"

    def literal(self, value: Any) -> str:
        items = "NULL" if value is None else f"array({', '.join(self.of.literal(item) for item in value)})"
        return f"cast({items} AS {self.text})"


@dataclass(frozen=True)
class Map(Type):
    key: Type
    value: Type

    @staticmethod
    def holding(key: Type, value: Type) -> Map:
        return Map(f"map<{key.text},{value.text}>", key, value)

    @property
    def arrow(self) -> pa.DataType:
        return pa.map_(self.key.arrow, self.value.arrow)

    def known(self, chance: Chance) -> Any:
        keys = {self.key.known(chance) for _ in range(chance.choice([0, 1, 2]))}
        return [(key, self.value.draw(chance)) for key in sorted(keys)]

    @property
    def plainest(self) -> Any:
        return []

    def json(self, value: Any) -> str:
        if value is None:
            return "null"
        return "{" + ", ".join(f"{STRING.json(str(k))}: {self.value.json(v)}" for k, v in value) + "}"

    def literal(self, value: Any) -> str:
        pairs = ", ".join(f"{self.key.literal(k)}, {self.value.literal(v)}" for k, v in value or ())
        return f"cast({'NULL' if value is None else f'map({pairs})'} AS {self.text})"


@dataclass(frozen=True)
class Struct(Type):
    fields: tuple[tuple[str, Type], ...]

    @staticmethod
    def holding(fields: tuple[tuple[str, Type], ...]) -> Struct:
        inside = ",".join(f"{quoted(name)}:{type_.text}" for name, type_ in fields)
        return Struct(f"struct<{inside}>", fields)

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct([(name, type_.arrow) for name, type_ in self.fields])

    def known(self, chance: Chance) -> Any:
        return {name: type_.draw(chance) for name, type_ in self.fields}

    @property
    def plainest(self) -> Any:
        return {name: type_.plainest for name, type_ in self.fields}

    def json(self, value: Any) -> str:
        if value is None:
            return "null"
        return "{" + ", ".join(f"{STRING.json(n)}: {t.json(value[n])}" for n, t in self.fields) + "}"

    def literal(self, value: Any) -> str:
        if value is None:
            return f"cast(NULL AS {self.text})"
        parts = ", ".join(f"{Type('string').literal(n)}, {t.literal(value[n])}" for n, t in self.fields)
        return f"named_struct({parts})"


def quoted(name: str) -> str:
    """The name in backquotes, unless it is a plain word that is no word of SQL."""
    plain = name.isascii() and name.isidentifier() and name.lower() not in _WORDS
    return name if plain else "`" + name.replace("`", "``") + "`"


WHOLE = ("tinyint", "smallint", "int", "bigint")
_WORDS = ("select", "order", "from", "by", "null", "true", "case", "end", "table", "union", "like", "interval", "name")
_SUFFIX = {"tinyint": "Y", "smallint": "S", "int": "", "bigint": "L"}
_ARROW = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def _single(value: float) -> float:
    """The nearest value that a FLOAT holds."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


_TIMES = [datetime(2026, 1, 1) + timedelta(minutes=15 * i, microseconds=i % 3) for i in range(12)]
_EXTREME_TIMES = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(1969, 12, 31, 23, 59, 59, 1)]
_REALS = [0.0, 1.0, -1.0, 0.5, 2.0, -2.75, 1.0, 3.0, 0.1]
_ODD_REALS = [math.nan, math.inf, -math.inf, -0.0]
# The value to shrink to is the first of the common ones.
_VALUES: dict[str, tuple[list[Any], list[Any]]] = {
    "boolean": ([False, True], [True]),
    "tinyint": (list(range(5)), [-128, 127]),
    "smallint": (list(range(-3, 6)), [-(2**15), 2**15 - 1]),
    "int": ([0, *range(-6, 9)], [-(2**31), 2**31 - 1]),
    "bigint": ([0, *range(-6, 9), 100], [-(2**63), 2**63 - 1, 2**53 + 1]),
    "float": ([_single(value) for value in _REALS], [*_ODD_REALS, _single(3.4e38), _single(1e-45)]),
    "double": (_REALS, [*_ODD_REALS, 1.7e308, 5e-324, 2.0**53]),
    "string": (
        ["", "a", "b", "c", "ab", "Rain", "rain and snow"],
        ["ß", "日本", "🌨", "it's", 'say "x"', "a\nb", "\\", " ", "e\u0301", "12"],
    ),
    "binary": ([b"", b"a", b"b", b"\x00"], [b"\xff\xfe", b"\x00" * 3]),
    "date": (
        [date(2026, 1, day) for day in range(1, 6)],
        [date(1, 1, 1), date(9999, 12, 31), date(1969, 12, 31), date(2024, 2, 29)],
    ),
    "timestamp": ([at.replace(tzinfo=UTC) for at in _TIMES], [at.replace(tzinfo=UTC) for at in _EXTREME_TIMES]),
    "timestamp_ntz": (_TIMES, _EXTREME_TIMES),
}

BASE_TIME = _TIMES[0].replace(tzinfo=UTC)
# Event times of topologies in which time matters. None is ahead of the wall clock: that would be a dead letter.
TIMES_OF_A_DAY = tuple(
    at.replace(tzinfo=UTC) for at in [*_TIMES, datetime(2025, 12, 31, 12), _TIMES[0] - timedelta(microseconds=1)]
)
TIMES_OF_YEARS = (
    *TIMES_OF_A_DAY,
    datetime(2000, 1, 1, tzinfo=UTC),
    datetime(2000, 2, 29, 0, 30, tzinfo=UTC),
    datetime(2012, 10, 28, 0, 59, 59, 999999, tzinfo=UTC),
)
BOOLEAN, INT, BIGINT, DOUBLE, STRING = (Type(text) for text in ("boolean", "int", "bigint", "double", "string"))
_DECIMALS = (Decimals.of(10, 2), Decimals.of(18, 0), Decimals.of(28, 3), Decimals.of(38, 6))
FLAT = tuple(Type(text) for text in _ARROW)


def draw_type(chance: Chance, depth: int = 2) -> Type:
    """Any type. The common ones come more often, so that columns meet partners of their own type."""
    roll = chance.random()
    if roll < 0.45:
        return chance.choice([STRING, INT, BIGINT, DOUBLE, BOOLEAN])
    if roll < 0.72 or not depth:
        return chance.choice([*FLAT, *FLAT, *_DECIMALS])
    if roll < 0.82:
        return Array.holding(draw_type(chance, depth - 1))
    if roll < 0.9:
        return Map.holding(chance.choice([STRING, INT, BIGINT]), draw_type(chance, depth - 1))
    names = chance.sample(FIELD_NAMES, chance.randint(1, 3))
    return Struct.holding(tuple((name, draw_type(chance, depth - 1)) for name in names))


FIELD_NAMES = ["p", "q", "r", "x", "Case", "p q", "ü"]
PLAIN_NAMES = ["a", "b", "c", "d", "x", "y", "z", "n", "at", "user", "Case"]
ODD_NAMES = [
    *("x y", "it's", "back`tick", "dot.ted", 'say "x"', "per%cent", "a-b", "{a}", "$x", "ß", "日本"),
    *("select", "order", "null", "key", "value", "count", "rank", "kind", "old", "time"),
    *("name", "by", "ttl", "columns", "self"),
]
