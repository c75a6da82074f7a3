"""count, any and all: what can be answered by counting rows.

State: the number of rows (count), or of true ones and of all (any, all). merge adds; an inverse exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.algebra import lifts, vector
from hailstorm.algebra.monoid import ArrowPieces, OfOne, Pieces, SqlMonoid, TypeRefused
from hailstorm.algebra.types import check_expression


@dataclass(frozen=True)
class Count(SqlMonoid):
    word: ClassVar[str] = "count"
    of: str | None

    def __post_init__(self) -> None:
        if self.of is not None:
            check_expression(self.word, "what to count", self.of)

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        one = "{sign}" if self.of is None else f"if(({self.of}) is null, 0, {{sign}})"
        return Pieces(
            state_type="bigint",
            value_type="bigint",
            lift="count(*)" if self.of is None else f"count({self.of})",
            merge="{a} + {b}",
            retract=f"coalesce(sum(cast({one} as bigint)), 0L)",
            arrow=ArrowPieces(vector.add, lift=lifts.COUNT_ROWS if self.of is None else lifts.COUNT_VALUES),
        )


def _present_any(states: pa.Array) -> pa.Array:
    yes, n = states.flatten()
    return pc.if_else(pc.greater(n, 0), pc.greater(yes, 0), None)


def _present_all(states: pa.Array) -> pa.Array:
    yes, n = states.flatten()
    return pc.if_else(pc.greater(n, 0), pc.equal(yes, n), None)


@dataclass(frozen=True)
class AnyTrue(OfOne):
    """Counts, and not one bit, because a bit cannot be taken back when a row upstream changes."""

    word: ClassVar[str] = "any"
    what: ClassVar[str] = "the predicate"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        arrow = ArrowPieces(vector.add_fields, _present_any, lifts.TRUTHS)
        return _truth(self.word, self.of, input_types[0], "{s}.yes > 0", arrow)


@dataclass(frozen=True)
class AllTrue(OfOne):
    word: ClassVar[str] = "all"
    what: ClassVar[str] = "the predicate"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        arrow = ArrowPieces(vector.add_fields, _present_all, lifts.TRUTHS)
        return _truth(self.word, self.of, input_types[0], "{s}.yes = {s}.n", arrow)


def _truth(word: str, of: str, type_: str, answer: str, arrow: ArrowPieces) -> Pieces:
    if type_ != "boolean":
        raise TypeRefused(word, type_, 'BOOLEAN, such as "amount > 100"')
    yes, known = f"if({of}, {{sign}}, 0)", f"if(({of}) is null, 0, {{sign}})"
    return Pieces(
        state_type="struct<yes:bigint,n:bigint>",
        value_type="boolean",
        lift=f"named_struct('yes', count_if({of}), 'n', count({of}))",
        merge="named_struct('yes', {a}.yes + {b}.yes, 'n', {a}.n + {b}.n)",
        present=f"if({{s}}.n > 0, {answer}, null)",
        retract=f"named_struct('yes', coalesce(sum(cast({yes} as bigint)), 0L), "
        f"'n', coalesce(sum(cast({known} as bigint)), 0L))",
        arrow=arrow,
    ).typed()


def count(of: str | None = None) -> Count:
    """The number of rows, or of rows where `of` is not null. BIGINT."""
    return Count(of)


def any(of: str) -> AnyTrue:
    """Whether the predicate is true for at least one row; nulls are ignored, and NULL when there is nothing else."""
    return AnyTrue(of)


def all(of: str) -> AllTrue:
    """Whether the predicate is true for every row; nulls are ignored, and NULL when there is nothing else."""
    return AllTrue(of)
