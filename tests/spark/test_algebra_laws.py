"""check_laws of native monoids: in Spark, three jobs each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import pytest

import hailstorm.algebra as hs
from hailstorm.algebra.monoid import Pieces, SqlMonoid
from hailstorm.errors import LawError
from hailstorm.testing import check_laws

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class FirstSeen(SqlMonoid):
    """What `first` would be: the order of merges shows in it."""

    word: ClassVar[str] = "first_seen"
    of: str

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.of,)

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        return Pieces(type_, type_, f"min({self.of})", "{a}")


def test_native_monoids_keep_the_laws_over_any_expression(spark: SparkSession) -> None:
    check_laws(hs.latest("upper(name)", by="price * quantity"), types=["STRING", "DOUBLE"], examples=30, spark=spark)
    check_laws(hs.map_sum("kind", "amount"), examples=30, spark=spark)


def test_a_native_monoid_that_breaks_a_law_is_refused_with_its_rows(spark: SparkSession) -> None:
    with pytest.raises(LawError) as caught:
        check_laws(FirstSeen("price"), types=["INT"], examples=40, spark=spark)
    assert caught.value.code == "HS-LAW-003"
    assert caught.value.what == "FirstSeen is not commutative"
    assert [line.split(" = ")[0] for line in caught.value.hint.splitlines()] == ["a", "b", "c", "ab", "ba"]
