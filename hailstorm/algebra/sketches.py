"""count_distinct and quantiles: estimates with a small state of fixed size, from Spark's built-in sketches.

A sketch that is merged in another order is another sketch, with an estimate inside the same bounds: these are
monoids up to their documented error (`exact=False`). The quantile sketch even draws random numbers, so that a replay
gives other bits. There is no inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hailstorm.algebra.monoid import Pieces, SqlMonoid, TypeRefused
from hailstorm.algebra.types import INTEGERS, check_expression, check_whole, hash_of, is_numeric, is_orderable


@dataclass(frozen=True)
class CountDistinct(SqlMonoid):
    word: ClassVar[str] = "count_distinct"
    of: str
    precision: int

    def __post_init__(self) -> None:
        check_expression(self.word, "what to count", self.of)
        check_whole(self.word, "precision", self.precision, 4, 21)

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        if not is_orderable(type_):
            raise TypeRefused(self.word, type_, "types that can be compared: no MAP, VARIANT or calendar INTERVAL")
        # The sketch takes four types, and passes over texts and bytes that are empty. A hash of 64 bits stands for all
        # but integers: its collisions are far below the error.
        of = f"({self.of})"
        item = of if type_ in {"int", "bigint"} else f"if({of} is null, null, {hash_of(of, type_)})"
        return Pieces(
            state_type="binary",
            value_type="bigint",
            lift=f"hll_sketch_agg({item}, {self.precision})",
            merge="hll_union({a}, {b})",
            present="hll_sketch_estimate({s})",
            exact=False,
        )


@dataclass(frozen=True)
class Quantiles(SqlMonoid):
    word: ClassVar[str] = "quantiles"
    of: str
    ranks: tuple[float, ...]
    k: int

    def __post_init__(self) -> None:
        check_expression(self.word, "the value", self.of)
        if not self.ranks:
            raise ValueError('quantiles: say which, such as hs.quantiles("ms", 0.5, 0.99)')
        for rank in self.ranks:
            if isinstance(rank, bool) or not isinstance(rank, int | float) or not 0 <= rank <= 1:
                raise ValueError(f"quantiles: a quantile lies between 0 and 1, the median is 0.5; got {rank!r}")
        check_whole(self.word, "k", self.k, 8, 65535)

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        if not is_numeric(type_):
            raise TypeRefused(self.word, type_, "numbers; unix_micros(...) makes one of a timestamp")
        kind = "bigint" if type_ in INTEGERS else "double"
        ranks = ", ".join(f"{float(rank)!r}D" for rank in self.ranks)
        return Pieces(
            state_type="binary",
            value_type=f"array<{kind}>",
            lift=f"kll_sketch_agg_{kind}(cast({self.of} as {kind}), {self.k})",
            merge=f"kll_sketch_merge_{kind}({{a}}, {{b}})",
            present=f"if(kll_sketch_get_n_{kind}({{s}}) > 0, "
            f"kll_sketch_get_quantile_{kind}({{s}}, array({ranks})), null)",
            exact=False,
        )


def count_distinct(of: str, precision: int = 12) -> CountDistinct:
    """About how many different values there are, nulls left out: BIGINT. A HyperLogLog sketch.

    The error's standard deviation is 1.04 / sqrt(2 ^ precision): 1.6% at 12, with at most 2.5 kB a key.
    Small numbers are nearly always exact. For an exact answer use `bitmap` (integers) or `set`.
    """
    return CountDistinct(of, precision)


def quantiles(of: str, *ranks: float, k: int = 200) -> Quantiles:
    """The values at these ranks: `quantiles("ms", 0.5, 0.99)` gives ARRAY of the median and the 99th percentile.

    A KLL sketch: with probability 99% each is a value whose true rank is within 0.0133 (at k = 200; the error
    shrinks with k) of the rank asked for. Integers give BIGINT, other numbers DOUBLE. NULL when there are no values.
    """
    return Quantiles(of, ranks, k)
