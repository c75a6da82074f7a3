"""Every monoid: how it is written, and what it must give.

Most have an aggregate of Spark's own as their oracle. The others are computed in plain Python from the values of the
group, and say how far the engine may be off: `Near` for rounding, `Ranked` for quantiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any

from tests.generated.expressions import Column, Columns, Expressions
from tests.generated.values import (
    BIGINT,
    BOOLEAN,
    DOUBLE,
    EXACT,
    INT,
    STRING,
    Array,
    Chance,
    Decimals,
    Map,
    Struct,
    Type,
    quoted,
)

Compute = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Near:
    """A number, and how far from it is right. An infinite slack: anything is."""

    value: float | None
    slack: float = 0.0

    def fits(self, found: Any) -> bool:
        if self.slack == math.inf:
            return found is not None
        if self.value is None or found is None:
            return self.value is found
        if math.isnan(self.value) or math.isinf(self.value):
            return str(self.value) == str(float(found))
        return not math.isnan(found) and abs(found - self.value) <= self.slack


@dataclass(frozen=True)
class Ranked:
    """The values at some ranks, each within 2% of the rank."""

    values: tuple[Any, ...]  # sorted
    ranks: tuple[float, ...]

    def fits(self, found: Any) -> bool:
        if not self.values:
            return found is None
        count = len(self.values)
        for rank, value in zip(self.ranks, found, strict=True):
            below = sum(other < value for other in self.values) / count
            upto = sum(other <= value for other in self.values) / count
            if value not in self.values or not below - 0.02 - 1 / count <= rank <= upto + 0.02 + 1 / count:
                return False
        return True


@dataclass(frozen=True)
class Drawn:
    """A monoid of a fold: its column, its code, and its oracle: an aggregate of Spark, and what to make of it."""

    column: Column
    code: str
    aggregate: str
    compute: Compute | None = None


def draw_monoid(chance: Chance, name: str, columns: Columns, table: bool) -> Drawn:
    """A monoid over these columns. Of a `table`, none that asks for the place of a record in its log."""
    usable = [column for column in columns if column.exact]
    words = [word for word in _WORDS if not (table and word in ("latest", "earliest"))]
    while True:
        word = chance.choice(words)
        found = _WORDS[word](chance, name, usable)
        if found is not None:
            return found


def _of(chance: Chance, columns: Sequence[Column], test: Callable[[Type], bool]) -> tuple[str, Type] | None:
    """A column, or sometimes an expression, whose type passes the test."""
    fitting = [column for column in columns if test(column.type)]
    if not fitting:
        return None
    column = chance.choice(fitting)
    if chance.random() < 0.25:
        return Expressions(chance, tuple(columns)).draw(column.type, 1), column.type
    return quoted(column.name), column.type


def _count(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    return Drawn(Column(name, BIGINT), "hs.count()", "count(*)")


def _count_of(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: True)
    return found and Drawn(Column(name, BIGINT), f"hs.count({found[0]!r})", f"count({found[0]})")


def _exact_number(type_: Type) -> bool:
    return type_.is_whole or (isinstance(type_, Decimals) and type_.precision <= 28)


def _sum(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: _exact_number(type_) or type_.is_float)
    if found is None:
        return None
    text, type_ = found
    if type_.is_float:
        return Drawn(Column(name, DOUBLE, exact=False), f"hs.sum({text!r})", f"collect_list({text})", _float_sum)
    if isinstance(type_, Decimals):
        total = Decimals.of(type_.precision + 10, type_.scale)
        return Drawn(Column(name, total), f"hs.sum({text!r})", f"sum({text})")
    # A total that BIGINT cannot hold is null, where Spark's own sum fails.
    return Drawn(Column(name, BIGINT), f"hs.sum({text!r})", f"try_cast(sum(cast({text} as decimal(28,0))) as bigint)")


def _mean(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: _exact_number(type_) or type_.is_float)
    if found is None:
        return None
    text, type_ = found
    if isinstance(type_, Decimals):
        mean = Decimals.of(type_.precision + 4, type_.scale + 4)
        return Drawn(Column(name, mean), f"hs.mean({text!r})", f"avg({text})")
    compute = _float_mean if type_.is_float else _exact_mean
    return Drawn(Column(name, DOUBLE, exact=False), f"hs.mean({text!r})", f"collect_list({text})", compute)


def _spread(word: str) -> Callable[[Chance, str, Sequence[Column]], Drawn | None]:
    def draw(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
        found = _of(chance, columns, lambda type_: type_.is_number)
        if found is None:
            return None
        text, type_ = found
        exact = type_.is_whole or (isinstance(type_, Decimals) and type_.precision <= 18)

        def compute(values: Sequence[Any]) -> Any:
            return _variance(values, exact, root=word == "stddev")

        return Drawn(Column(name, DOUBLE, exact=False), f"hs.{word}({text!r})", f"collect_list({text})", compute)

    return draw


def _extreme(word: str) -> Callable[[Chance, str, Sequence[Column]], Drawn | None]:
    def draw(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
        found = _of(chance, columns, lambda type_: type_.orderable)
        return found and Drawn(Column(name, found[1]), f"hs.{word}({found[0]!r})", f"{word}({found[0]})")

    return draw


def _recency(word: str) -> Callable[[Chance, str, Sequence[Column]], Drawn | None]:
    def draw(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
        value = _of(chance, columns, lambda type_: type_.orderable)
        by = _of(chance, columns, lambda type_: type_.orderable) if chance.random() < 0.6 else None
        if value is None:
            return None
        place = f"struct({by[0] if by else '_time'} as by, _spout, _partition, _offset, {value[0]} as value)"
        known = f" filter (where ({by[0]}) is not null)" if by else ""
        aggregate = f"({'max' if word == 'latest' else 'min'}({place}){known}).value"
        code = f"hs.{word}({value[0]!r}" + (f", by={by[0]!r})" if by else ")")
        return Drawn(Column(name, value[1]), code, aggregate)

    return draw


def _truth(word: str) -> Callable[[Chance, str, Sequence[Column]], Drawn | None]:
    def draw(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
        text = Expressions(chance, tuple(columns)).draw(BOOLEAN, 1)
        return Drawn(Column(name, BOOLEAN), f"hs.{word}({text!r})", f"bool_{'or' if word == 'any' else 'and'}({text})")

    return draw


def _top(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    n = chance.randint(1, 3)
    by = _of(chance, columns, lambda type_: type_.orderable)
    of = _of(chance, columns, lambda type_: type_.orderable) if chance.random() < 0.5 else None
    if by is None:
        return None
    if of is None:
        largest = f"slice(sort_array(collect_list({by[0]}), false), 1, {n})"
        return Drawn(Column(name, Array.holding(by[1])), f"hs.top({n}, {by[0]!r})", largest)
    pairs = f"collect_list(struct({by[0]} as by, {of[0]} as value)) filter (where ({by[0]}) is not null)"
    type_ = Array.holding(Struct.holding((("by", by[1]), ("value", of[1]))))
    return Drawn(
        Column(name, type_), f"hs.top({n}, {by[0]!r}, of={of[0]!r})", f"slice(sort_array({pairs}, false), 1, {n})"
    )


def _set(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: type_.orderable)
    return found and Drawn(
        Column(name, Array.holding(found[1])),
        f"hs.set({found[0]!r})",
        f"sort_array(array_distinct(collect_list({found[0]})))",
    )


def _bitmap(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: type_.is_whole)
    return found and Drawn(Column(name, BIGINT), f"hs.bitmap({found[0]!r})", f"count(distinct {found[0]})")


def _map_sum(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    key = _of(chance, columns, lambda type_: type_.is_whole or type_.text in ("string", "date", "boolean"))
    of = _of(chance, columns, _exact_number)
    if key is None or of is None:
        return None
    total = Decimals.of(of[1].precision + 10, of[1].scale) if isinstance(of[1], Decimals) else BIGINT
    known = f"({key[0]}) is not null and ({of[0]}) is not null"
    pairs = f"collect_list(struct({key[0]} as key, {of[0]} as of)) filter (where {known})"
    return Drawn(Column(name, Map.holding(key[1], total)), f"hs.map_sum({key[0]!r}, {of[0]!r})", pairs, _totals)


def _histogram(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: type_.is_number)
    if found is None:
        return None
    edges = sorted(chance.sample([-5, -1, 0, 1, 2.5, 10], chance.randint(1, 3)))
    sql = [f"{edge!r}D" if isinstance(edge, float) else f"{edge}BD" for edge in edges]
    x = f"({found[0]})"
    between = [f"{x} >= {low} and {x} < {high}" for low, high in pairwise(sql)]
    buckets = [f"{x} < {sql[0]}", *between, f"{x} >= {sql[-1]}"]
    code = f"hs.histogram({found[0]!r}, {', '.join(map(repr, edges))})"
    return Drawn(Column(name, Array.holding(BIGINT)), code, f"array({', '.join(f'count_if({b})' for b in buckets)})")


def _count_distinct(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: type_.orderable)
    return found and Drawn(
        Column(name, BIGINT, exact=False),
        f"hs.count_distinct({found[0]!r})",
        f"count(distinct {found[0]})",
        lambda values: Near(values, 0 if values <= 50 else 0.1 * values),  # type: ignore[arg-type,operator]
    )


def _quantiles(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: type_.is_whole)
    if found is None:
        return None
    ranks = tuple(sorted(chance.sample([0, 0.25, 0.5, 0.9, 1], chance.randint(1, 3))))
    return Drawn(
        Column(name, Array.holding(BIGINT), exact=False),
        f"hs.quantiles({found[0]!r}, {', '.join(map(str, ranks))})",
        f"collect_list({found[0]})",
        lambda values: Ranked(tuple(sorted(values)), ranks),
    )


def _frequent(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    flat = ("string", "boolean", "date", "int", "bigint", "smallint", "timestamp")
    found = _of(chance, columns, lambda type_: type_.text in flat)
    if found is None:
        return None
    n = chance.randint(1, 3)
    type_ = Array.holding(Struct.holding((("item", found[1]), ("count", BIGINT))))

    def compute(values: Sequence[Any]) -> Any:
        ranked = sorted(Counter(values).items(), key=lambda pair: (-pair[1], _bytes(pair[0])))
        return [{"item": item, "count": count} for item, count in ranked[:n]]

    return Drawn(Column(name, type_), f"hs.frequent({found[0]!r}, {n})", f"collect_list({found[0]})", compute)


# A monoid of one's own. The script of a case begins with it.
OWN = """
class Longest(hs.Monoid):
    state = "STRING"
    value = "STRUCT<text: STRING, size: INT>"
    takes = ("STRING",)

    def zero(self):
        return ""

    def lift(self, text):
        return text or ""

    def merge(self, a, b):
        return max(a, b, key=lambda text: (len(text), text))

    def present(self, state):
        return {"text": state, "size": len(state)}
"""


def _own(chance: Chance, name: str, columns: Sequence[Column]) -> Drawn | None:
    found = _of(chance, columns, lambda type_: type_.text == "string")
    if found is None:
        return None

    def compute(values: Sequence[str]) -> Any:
        longest = max(["", *values], key=lambda text: (len(text), text))
        return {"text": longest, "size": len(longest)}

    type_ = Struct.holding((("text", STRING), ("size", INT)))
    return Drawn(Column(name, type_), f"Longest({found[0]!r})", f"collect_list({found[0]})", compute)


_WORDS: dict[str, Callable[[Chance, str, Sequence[Column]], Drawn | None]] = {
    "count": _count,
    "count of": _count_of,
    "sum": _sum,
    "mean": _mean,
    "variance": _spread("variance"),
    "stddev": _spread("stddev"),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "latest": _recency("latest"),
    "earliest": _recency("earliest"),
    "any": _truth("any"),
    "all": _truth("all"),
    "top": _top,
    "set": _set,
    "bitmap": _bitmap,
    "map_sum": _map_sum,
    "histogram": _histogram,
    "count_distinct": _count_distinct,
    "quantiles": _quantiles,
    "frequent": _frequent,
    "own": _own,
}


# Plain Python oracles. `values` are those of a group that are not null.


def _float_sum(values: Sequence[float]) -> Any:
    if not values:
        return None
    odd = {value for value in values if math.isinf(value)}
    if any(math.isnan(value) for value in values) or len(odd) == 2:
        return Near(math.nan)
    size = sum(abs(Fraction(value)) for value in values if not math.isinf(value))
    if size > 1e308:  # whether a part of it overflows depends on the order
        return Near(0.0, math.inf)
    if odd:
        return Near(odd.pop())
    return Near(float(sum(map(Fraction, values))), 1e-12 * float(size))


def _float_mean(values: Sequence[float]) -> Any:
    total = _float_sum(values)
    if total is None or total.slack == math.inf:
        return total
    mean = total.value / len(values)
    return Near(mean, total.slack / len(values) + abs(mean) * 1e-12 if math.isfinite(mean) else 0.0)


def _exact_mean(values: Sequence[int]) -> Any:
    if not values:
        return None
    mean = float(Fraction(sum(values), len(values)))
    return Near(mean, abs(mean) * 1e-12)


def _variance(values: Sequence[Any], exact: bool, root: bool) -> Any:
    if len(values) < 2:
        return None
    if any(isinstance(value, float) and not math.isfinite(value) for value in values):
        return Near(math.nan)
    known = [Fraction(value) for value in values]
    mean = sum(known) / len(known)
    variance = sum((value - mean) ** 2 for value in known) / (len(known) - 1)
    size = sum(value**2 for value in known)
    if size > 1e150 and not exact:
        return Near(0.0, math.inf)
    found, slack = float(variance), 1e-9 * float(variance if exact else size)
    return (
        Near(math.sqrt(found), math.sqrt(slack) if not exact else 1e-9 * math.sqrt(found))
        if root
        else Near(found, slack)
    )


def _totals(pairs: Sequence[dict[str, Any]]) -> Any:
    totals: dict[Any, Any] = {}
    for pair in pairs:
        before, more = totals.get(pair["key"], 0), pair["of"]
        totals[pair["key"]] = EXACT.add(before, more) if isinstance(more, Decimal) else before + more
    held = {k: v if isinstance(v, Decimal) or -(2**63) <= v < 2**63 else None for k, v in totals.items()}
    return sorted(held.items(), key=lambda pair: _bytes(pair[0]))


def _bytes(value: Any) -> Any:
    """Spark orders texts by their bytes."""
    return value.encode() if isinstance(value, str) else value
