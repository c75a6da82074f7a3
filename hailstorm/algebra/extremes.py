"""min, max, latest and earliest: one row wins, and merge is the greater or the lesser of two states.

Two rows that tie must give the same winner however the input is cut into ticks. For latest and earliest the
state is therefore (by, spout, partition, offset, value), compared from left to right: the record's place in the
log decides a tie, and among several rows that a bolt made of one record, the value itself.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from hailstorm.algebra import lifts, vector
from hailstorm.algebra.monoid import ArrowPieces, OfOne, Pieces, SqlMonoid, TypeRefused
from hailstorm.algebra.types import FLOATS, check_expression, is_flat, is_orderable, same_bits
from hailstorm.columns import EVENT_TIME, OFFSET, PARTITION, SPOUT

_TAKES = "types that can be ordered: no MAP, VARIANT or calendar INTERVAL, and no collated STRING"


@dataclass(frozen=True)
class Max(OfOne):
    word: ClassVar[str] = "max"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        return _extreme(self.word, self.of, input_types[0], "greatest", ArrowPieces(vector.greatest, lift=lifts.MAX))


@dataclass(frozen=True)
class Min(OfOne):
    word: ClassVar[str] = "min"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        return _extreme(self.word, self.of, input_types[0], "least", ArrowPieces(vector.least, lift=lifts.MIN))


def _extreme(word: str, of: str, type_: str, merge: str, arrow: ArrowPieces) -> Pieces:
    if not is_orderable(type_):
        raise TypeRefused(word, type_, _TAKES)
    return Pieces(
        state_type=type_,
        value_type=type_,
        lift=f"{word}({same_bits(of, type_)})",
        merge=f"{merge}({{a}}, {{b}})",
        # Arrow's aggregates leave NaN out, and Spark's do not: floats are lifted in SQL only.
        arrow=(replace(arrow, lift=None) if type_ in FLOATS else arrow) if is_flat(type_) else None,
    ).typed()


@dataclass(frozen=True)
class _OfARow(SqlMonoid):
    """The value of one row: which one, `by` decides."""

    expressions: ClassVar[tuple[str, ...]] = ("of", "by")
    of: str
    by: str | None

    def __post_init__(self) -> None:
        check_expression(self.word, "the value", self.of)
        if self.by is not None:
            check_expression(self.word, "by", self.by)

    @property
    def reads_time(self) -> bool:
        return self.by is None or super().reads_time


@dataclass(frozen=True)
class Latest(_OfARow):
    word: ClassVar[str] = "latest"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        arrow = ArrowPieces(vector.greatest, _value)
        return _recency(self.word, self.of, self.by, input_types, "max", "greatest", arrow)


@dataclass(frozen=True)
class Earliest(_OfARow):
    word: ClassVar[str] = "earliest"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        arrow = ArrowPieces(vector.least, _value)
        return _recency(self.word, self.of, self.by, input_types, "min", "least", arrow)


def _value(states: pa.Array) -> pa.Array:
    return states.flatten()[-1]


def _recency(
    word: str, of: str, by: str | None, types: tuple[str, ...], lift: str, merge: str, arrow: ArrowPieces
) -> Pieces:
    for type_ in types:
        if not is_orderable(type_):
            raise TypeRefused(word, type_, _TAKES)
    value_type, by_type = types[0], types[1] if by is not None else "timestamp"
    row = (
        f"named_struct('by', {by or EVENT_TIME}, '{SPOUT}', cast({SPOUT} as string), "
        f"'{PARTITION}', cast({PARTITION} as int), '{OFFSET}', cast({OFFSET} as bigint), 'value', {of})"
    )
    # Without `by`, a row without event time is no reason to drop it: its place in the log still orders it.
    known = f" filter (where ({by}) is not null)" if by is not None else ""
    return Pieces(
        state_type=f"struct<by:{by_type},{SPOUT}:string,{PARTITION}:int,{OFFSET}:bigint,value:{value_type}>",
        value_type=value_type,
        lift=f"{lift}({row}){known}",
        merge=f"{merge}({{a}}, {{b}})",
        present="{s}.value",
        arrow=arrow if is_flat(value_type) and is_flat(by_type) else None,
    ).typed()


def max(of: str) -> Max:
    """The largest value that is not null, in Spark's order: NaN is the largest number, strings compare by bytes."""
    return Max(of)


def min(of: str) -> Min:
    """The smallest value that is not null, in Spark's order."""
    return Min(of)


def latest(of: str, by: str | None = None) -> Latest:
    """The value of the row with the largest `by`, also when that value is null. Rows whose `by` is null are ignored.

    Without `by`: the row with the latest event time. Ties go to the later record of the log.
    """
    return Latest(of, by)


def earliest(of: str, by: str | None = None) -> Earliest:
    """The value of the row with the smallest `by`: the mirror image of `latest`."""
    return Earliest(of, by)
