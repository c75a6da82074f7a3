"""set and bitmap: which values have been seen, exactly.

Both keep every different value, so their state grows with them. merge is the union; there is no inverse.
A bitmap holds 64 neighbouring integers in one word: for ids that are dense it is far smaller than a set.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hailstorm.algebra.entries import collapse
from hailstorm.algebra.monoid import OfOne, Pieces, TypeRefused
from hailstorm.algebra.types import INTEGERS, is_orderable, same_bits


@dataclass(frozen=True)
class Set(OfOne):
    word: ClassVar[str] = "set"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        if not is_orderable(type_):
            raise TypeRefused(self.word, type_, "types that can be ordered")
        return Pieces(
            state_type=f"array<{type_}>",
            value_type=f"array<{type_}>",
            lift=f"sort_array(collect_set({same_bits(self.of, type_)}))",
            merge="sort_array(array_union({a}, {b}))",
        ).typed()


@dataclass(frozen=True)
class Bitmap(OfOne):
    word: ClassVar[str] = "bitmap"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        if type_ not in INTEGERS:
            raise TypeRefused(self.word, type_, "integers; count_distinct and set take other types")
        # Not Spark's own bitmaps: they cover one range of 32,768 numbers, and two cannot be merged in an expression.
        entry = "struct<key:bigint,bits:bigint>"
        seen = f"collect_set(cast({self.of} as bigint))"
        word = "named_struct('key', shiftright(i, 6), 'bits', shiftleft(1L, cast(i & 63L as int)))"
        words = f"transform({seen}, i -> {word})"
        combine = "named_struct('key', next.key, 'bits', done.open.bits | next.bits)"
        return Pieces(
            state_type=f"array<{entry}>",
            value_type="bigint",
            lift=collapse(words, entry, combine),
            merge=collapse("concat({a}, {b})", entry, combine),
            present="aggregate({s}, 0L, (n, w) -> n + bit_count(w.bits))",
        ).typed()


def set(of: str) -> Set:
    """Every different value that is not null, sorted: ARRAY. The state grows with the number of different values."""
    return Set(of)


def bitmap(of: str) -> Bitmap:
    """The exact number of different integers: BIGINT. Made for dense numbers (ids, hours, seats): 64 of them a word.

    It is right for all integers; numbers that lie far apart take 16 bytes each.
    """
    return Bitmap(of)
