"""top and frequent: the largest values exactly, the most frequent ones nearly.

top keeps the n largest in a sorted list. frequent is a Misra-Gries summary: counts of at most `capacity` values, and
when a merge has more, the first that does not fit is subtracted from all of them. What was subtracted in total is
kept as `missed` and is at most rows / (capacity + 1), because every subtraction takes its amount from capacity + 1
counts at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hailstorm.algebra.entries import bind, collapse
from hailstorm.algebra.monoid import Pieces, SqlMonoid, TypeRefused
from hailstorm.algebra.types import check_expression, check_whole, is_flat, is_orderable, same_bits

MOST_KEPT = 1000


@dataclass(frozen=True)
class Top(SqlMonoid):
    expressions: ClassVar[tuple[str, ...]] = ("by", "of")
    word: ClassVar[str] = "top"
    n: int
    by: str
    of: str | None

    def __post_init__(self) -> None:
        check_whole(self.word, "how many", self.n, 1, MOST_KEPT)
        check_expression(self.word, "by", self.by)
        if self.of is not None:
            check_expression(self.word, "of", self.of)

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        for type_ in input_types:
            if not is_orderable(type_):
                raise TypeRefused(self.word, type_, "types that can be ordered")
        row, row_type = same_bits(self.by, input_types[0]), input_types[0]
        if self.of is not None:
            row = f"named_struct('by', {row}, 'value', {same_bits(self.of, input_types[1])})"
            row_type = f"struct<by:{input_types[0]},value:{input_types[1]}>"
        largest = f"max_by({row}, {row}, {self.n}) filter (where ({self.by}) is not null)"
        return Pieces(
            state_type=f"array<{row_type}>",
            value_type=f"array<{row_type}>",
            lift=f"coalesce({largest}, array())",
            merge=f"slice(sort_array(concat({{a}}, {{b}}), false), 1, {self.n})",
        ).typed()


@dataclass(frozen=True)
class Frequent(SqlMonoid):
    word: ClassVar[str] = "frequent"
    of: str
    n: int
    capacity: int

    def __post_init__(self) -> None:
        check_expression(self.word, "the value", self.of)
        check_whole(self.word, "how many", self.n, 1, MOST_KEPT)
        check_whole(self.word, "capacity", self.capacity, self.n, 10 * MOST_KEPT)

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        if not is_flat(type_) or type_ == "binary":
            raise TypeRefused(self.word, type_, "numbers, strings, booleans, dates and timestamps")
        entry = f"struct<key:{type_},n:bigint>"
        # The tick's own counts come from a sketch that combines on the map side, so that a hot group is never
        # collected. It tracks eight times as many values: its error is 3.5 / 8 of ours.
        tracked = 8 * self.capacity
        value = same_bits(self.of, type_)
        sketch = f"approx_top_k({value}, {tracked}, {tracked}) filter (where {value} is not null)"
        counted = f"array_sort(transform({sketch}, i -> named_struct('key', i.item, 'n', i.count)))"
        combine = "named_struct('key', next.key, 'n', done.open.n + next.n)"
        merged = collapse("concat({a}.items, {b}.items)", entry, combine)
        ranked = "array_sort(transform({s}.items, i -> named_struct('rank', -i.n, 'item', i.key)))"
        return Pieces(
            state_type=f"struct<items:array<{entry}>,missed:bigint>",
            value_type=f"array<struct<item:{type_},count:bigint>>",
            lift=self._trimmed(counted, "0L"),
            merge=self._trimmed(merged, "{a}.missed + {b}.missed"),
            present=f"transform(slice({ranked}, 1, {self.n}), r -> named_struct('item', r.item, 'count', -r.rank))",
            exact=False,
        ).typed()

    def _trimmed(self, items: str, missed: str) -> str:
        cut = f"coalesce(try_element_at(sort_array(transform(found, i -> i.n), false), {self.capacity + 1}), 0L)"
        kept = "transform(filter(t.items, i -> i.n > t.cut), i -> named_struct('key', i.key, 'n', i.n - t.cut))"
        state = f"named_struct('items', if(t.cut = 0, t.items, {kept}), 'missed', {missed} + t.cut)"
        return bind("found", items, bind("t", f"named_struct('items', found, 'cut', {cut})", state))


def top(n: int, by: str, of: str | None = None) -> Top:
    """The n largest values of `by`, largest first: ARRAY. Equal values are kept as often as they come.

    With `of`, the rows that have them: `top(3, "score", of="player")` gives ARRAY<STRUCT<by, value>>, and rows of the
    same `by` are ordered by value, largest first. Rows whose `by` is null are ignored.
    """
    return Top(n, by, of)


def frequent(of: str, n: int = 10, capacity: int | None = None) -> Frequent:
    """The n most frequent values with their counts: ARRAY<STRUCT<item, count>>, most frequent first.

    Exact while a key has at most `capacity` different values (default: the larger of 200 and 10 n); beyond that
    a count is off by at most rows / capacity. A value that is more frequent than that is never missed.
    """
    return Frequent(of, n, (200 if n <= 20 else 10 * n) if capacity is None else capacity)
