"""map_sum and histogram: totals per key inside one state.

map_sum keeps (key, sum, n) entries; an entry whose last row was taken back disappears. histogram keeps one count a
bucket. merge adds; both have an inverse when their numbers do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from hailstorm.algebra.entries import bind, collapse
from hailstorm.algebra.monoid import Pieces, SqlMonoid, TypeRefused
from hailstorm.algebra.sums import exact_scale, total_type
from hailstorm.algebra.types import check_expression, decimal_of, is_numeric, is_orderable, same_bits

MOST_EDGES = 1000


@dataclass(frozen=True)
class MapSum(SqlMonoid):
    expressions: ClassVar[tuple[str, ...]] = ("key", "of")
    word: ClassVar[str] = "map_sum"
    key: str
    of: str

    def __post_init__(self) -> None:
        check_expression(self.word, "the key", self.key)
        check_expression(self.word, "what to add up", self.of)

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        key_type, type_ = input_types
        if not is_orderable(key_type):
            raise TypeRefused(self.word, key_type, "keys that can be ordered")
        scale = exact_scale(self.word, type_)
        total = total_type(scale)
        entry = f"struct<key:{key_type},sum:{total},n:bigint>"
        combine = (
            f"named_struct('key', next.key, 'sum', cast(done.open.sum + next.sum as {total}), "
            "'n', done.open.n + next.n)"
        )

        def totals(entries: str) -> str:
            # A difference may have n = 0 and a sum (an updated value): only what is zero in both is nothing.
            # Of floats nothing is ever taken back.
            collapsed = collapse(entries, entry, combine)
            return collapsed if scale is None else f"filter({collapsed}, e -> e.n != 0 or e.sum != 0)"

        def rows(sign: str, value: str) -> str:
            key = same_bits(self.key, key_type)
            row = f"named_struct('key', {key}, 'sum', cast({value} as {total}), 'n', cast({sign} as bigint))"
            return f"collect_list({row}) filter (where ({self.key}) is not null and ({self.of}) is not null)"

        decimal = decimal_of(type_)
        value_type = "double" if scale is None else f"decimal({decimal[0] + 10},{scale})" if decimal else "bigint"
        signed = f"if({{sign}} > 0, cast({self.of} as {total}), -cast({self.of} as {total}))"
        return Pieces(
            state_type=f"array<{entry}>",
            value_type=f"map<{key_type},{value_type}>",
            lift=totals(rows("1", self.of)),
            merge=totals("concat({a}, {b})"),
            present=f"map_from_entries(transform({{s}}, e -> struct(e.key, try_cast(e.sum as {value_type}))))",
            retract=None if scale is None else totals(rows("{sign}", signed)),
            exact=scale is not None,
        ).typed()


@dataclass(frozen=True)
class Histogram(SqlMonoid):
    word: ClassVar[str] = "histogram"
    of: str
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        check_expression(self.word, "the value", self.of)
        if not 1 <= len(self.edges) <= MOST_EDGES:
            raise ValueError(f"histogram: give 1 to {MOST_EDGES} edges; got {len(self.edges)}")
        for edge in self.edges:
            if isinstance(edge, bool) or not isinstance(edge, int | float) or not math.isfinite(edge):
                raise ValueError(f"histogram: an edge must be a number; got {edge!r}")
        if not all(low < high for low, high in pairwise(self.edges)):
            raise ValueError(f"histogram: edges must grow from left to right; got {', '.join(map(str, self.edges))}")

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        if not is_numeric(type_):
            raise TypeRefused(self.word, type_, "numbers")
        buckets = len(self.edges) + 1
        bucket = self._bucket(0, len(self.edges))

        def counts(condition: str) -> str:
            # One aggregate for all buckets; one count_if each takes ten times as long at a hundred of them. It counts
            # exactly as long as the buckets fill less than 3/4 of what it may track.
            items = f"approx_top_k({bucket}, {buckets}, {2 * buckets}) filter (where {condition})"
            dense = f"transform(sequence(0, {buckets - 1}), i -> coalesce(try_element_at(found, i), 0L))"
            return bind("found", f"map_from_entries({items})", dense)

        known = f"({self.of}) is not null"
        plus, minus = counts(f"{known} and {{sign}} > 0"), counts(f"{known} and {{sign}} < 0")
        return Pieces(
            state_type="array<bigint>",
            value_type="array<bigint>",
            lift=counts(known),
            merge="zip_with({a}, {b}, (x, y) -> x + y)",
            retract=f"zip_with({plus}, {minus}, (x, y) -> x - y)",
        ).typed()

    def _bucket(self, low: int, high: int) -> str:
        """SQL for the number of edges at or below the value, by binary search among edges[low:high]."""
        if low == high:
            return str(low)
        middle = (low + high) // 2
        edge = self.edges[middle]
        literal = f"{edge!r}D" if isinstance(edge, float) else f"{edge}BD"
        return f"if(({self.of}) < {literal}, {self._bucket(low, middle)}, {self._bucket(middle + 1, high)})"


def map_sum(key: str, of: str) -> MapSum:
    """A map from each key to the total of its values: `map_sum("kind", "amount")`. Types as in `sum`.

    Rows where the key or the value is null are ignored. The map is sorted by key.
    """
    return MapSum(key, of)


def histogram(of: str, *edges: float) -> Histogram:
    """How many values lie in each bucket: ARRAY<BIGINT>, one longer than the edges.

    `histogram("ms", 10, 100)` counts ms < 10, 10 <= ms < 100 and 100 <= ms. Nulls are ignored; NaN is in the last.
    """
    return Histogram(of, edges)
