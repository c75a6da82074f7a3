"""sum and mean.

Of integers and decimals both are exact in every order of rows, and rows can be taken back. The state is the total
with 37 digits and the number of values. Why 37 digits and not a bigint: Spark's bigint sum fails on overflow, and a
stream that has failed on a row fails on it again at every start. With 37 digits and values of at most 28 (a bigint has
19), a billion of the largest values fit. (Not 38: a sum of decimals has one digit more than its terms, and Spark and
Arrow would round it.) The value has the type of Spark's own sum; a total that it cannot hold is NULL until later rows
bring it back into range, and the state stays exact meanwhile.

The number of values is there for NULL: a group without values has no sum, as in SQL, also after its last value
was taken back.

Of floats both are approximate: the last bits depend on the order of additions. There is no retract, because
what is added and taken back again leaves a rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.algebra import lifts, vector
from hailstorm.algebra.monoid import ArrowPieces, OfOne, Pieces, TypeRefused
from hailstorm.algebra.types import FLOATS, INTEGERS, decimal_of

MOST_DIGITS = 28  # of one value, so that nine digits are left for the number of them
FEWEST_DIGITS_OF_N = 10  # a mean in Arrow is exact for any n, the one in SQL for so many: where it matters, SQL alone
TAKES = f"integers, floats and decimals of at most {MOST_DIGITS} digits"


def exact_scale(word: str, type_: str) -> int | None:
    """The scale of the exact total of this type; None for floats. Refuses what cannot be added."""
    if type_ in INTEGERS:
        return 0
    if type_ in FLOATS:
        return None
    decimal = decimal_of(type_)
    if decimal is None:
        raise TypeRefused(word, type_, TAKES)
    precision, scale = decimal
    if precision > MOST_DIGITS:
        raise TypeRefused(word, type_, f"{TAKES}: try cast(... as decimal({MOST_DIGITS},{min(scale, MOST_DIGITS)}))")
    return scale


def total_type(scale: int | None) -> str:
    """The type of a running total, exact or not."""
    return "double" if scale is None else f"decimal(37,{scale})"


def lift_total(expression: str, type_: str, scale: int | None) -> str:
    """The aggregate that adds up the expression, 0 for no rows."""
    if scale is None:
        return f"coalesce(sum(cast({expression} as double)), 0D)"
    if type_ != "bigint":
        return f"coalesce(cast(sum({expression}) as decimal(37,{scale})), 0)"
    # Two bigint sums of 32-bit halves: as fast as one, where a decimal sum takes three times as long, and safe
    # for two billion rows of the largest values in one tick.
    high, low = f"shiftright({expression}, 32)", f"(({expression}) & 4294967295L)"
    return _join_halves(f"sum({high})", f"sum({low})")


def retract_total(expression: str, type_: str, scale: int) -> str:
    """The same over rows of which {sign} is +1 or -1."""
    if type_ != "bigint":
        # Not a product: that of a decimal and a sign has more digits, and Spark would round it.
        wide = f"cast({expression} as bigint)" if type_ in INTEGERS else f"({expression})"
        return f"coalesce(cast(sum(if({{sign}} > 0, {wide}, -{wide})) as decimal(37,{scale})), 0)"
    high, low = f"shiftright({expression}, 32) * {{sign}}", f"(({expression}) & 4294967295L) * {{sign}}"
    return _join_halves(f"sum({high})", f"sum({low})")


def _join_halves(high: str, low: str) -> str:
    return f"coalesce(cast(cast({high} as decimal(37,0)) * 4294967296L + {low} as decimal(37,0)), 0)"


def _pieces(
    expression: str, type_: str, scale: int | None, value: str, present: str, arrow: ArrowPieces | None
) -> Pieces:
    total = total_type(scale)
    retract = None
    if scale is not None:
        n = f"coalesce(sum(cast(if(({expression}) is null, 0, {{sign}}) as bigint)), 0L)"
        retract = f"named_struct('sum', {retract_total(expression, type_, scale)}, 'n', {n})"
    return Pieces(
        state_type=f"struct<sum:{total},n:bigint>",
        value_type=value,
        lift=f"named_struct('sum', {lift_total(expression, type_, scale)}, 'n', count({expression}))",
        merge=f"named_struct('sum', cast({{a}}.sum + {{b}}.sum as {total}), 'n', {{a}}.n + {{b}}.n)",
        present=present,
        retract=retract,
        arrow=arrow,
        exact=scale is not None,
    ).typed()


def _or_null(values: pa.Array, n: pa.Array) -> pa.Array:
    return pc.if_else(pc.greater(n, 0), values, None)


def _present_whole_sum(states: pa.Array) -> pa.Array:
    total, n = states.flatten()
    return _or_null(vector.whole_numbers(total), n)


def _present_sum_as(value: pa.DataType, states: pa.Array) -> pa.Array:
    total, n = states.flatten()
    try:
        return _or_null(total.cast(value), n)
    except pa.ArrowInvalid:  # some total has too many digits: those become null, as with try_cast
        nines = Decimal((0, (9,) * value.precision, -value.scale))  # not by arithmetic: Python's rounds to 28 digits
        largest = pa.scalar(nines, value).cast(total.type)
        fits = pc.less_equal(pc.abs(total), largest)
        return _or_null(pc.if_else(fits, total, None).cast(value), n)


def _present_mean(states: pa.Array) -> pa.Array:
    total, n = states.flatten()
    known = _or_null(n, n).cast(pa.float64(), safe=False)
    return pc.divide(total if pa.types.is_floating(total.type) else vector.doubles(total), known)


class _PresentDecimal:
    """A decimal sum in its value's type. A class, and not a closure, so that it can be pickled to the tasks."""

    def __init__(self, precision: int, scale: int) -> None:
        self.precision, self.scale = precision, scale

    def __call__(self, states: pa.Array) -> pa.Array:
        return _present_sum_as(pa.decimal128(self.precision, self.scale), states)


class _PresentDecimalMean:
    """The mean of decimals with four digits more than they have, rounded half up once, as Spark's avg."""

    def __init__(self, precision: int, scale: int) -> None:
        self.precision, self.scale = precision, scale

    def __call__(self, states: pa.Array) -> pa.Array:
        total, n = states.flatten()
        total = _or_null(_present_sum_as(pa.decimal128(self.precision + 10, self.scale), states), n)
        # In whole numbers of the last digit: (2 * 10,000 * |total| + n) div 2 n. 43 digits, so 256 bits.
        size = pc.multiply(pc.abs(_with_scale(total, 0).cast(pa.decimal256(38, 0))), _decimal(20_000))
        n = _or_null(n, n).cast(pa.decimal256(19, 0))
        halves = pc.add(size, n).cast(pa.decimal256(44, 0))
        rounded = pc.trunc(pc.divide(halves, pc.multiply(n, _decimal(2)).cast(pa.decimal256(20, 0))))
        means = _with_scale(rounded.cast(pa.decimal128(self.precision + 4, 0)), self.scale + 4)
        return pc.if_else(pc.less(total, pa.scalar(Decimal(0), total.type)), pc.negate(means), means)


def _decimal(number: int) -> pa.Scalar:
    return pa.scalar(Decimal(number), pa.decimal256(len(str(number)), 0))


def _with_scale(decimals: pa.Array, scale: int) -> pa.Array:
    """The same digits with the point elsewhere."""
    type_ = pa.decimal128(decimals.type.precision, scale)
    return pa.Array.from_buffers(type_, len(decimals), decimals.buffers(), decimals.null_count, decimals.offset)


def _digits_of_n(scale: int) -> int:
    """How many digits the number of values may have for `_decimal_mean` to be exact: what 38 leave room for."""
    return min(18, 32 - scale)


def _decimal_mean(precision: int, scale: int) -> str:
    """SQL for the mean with four digits more, rounded half up once, as Spark's avg.

    A division of decimals is no use for that: its type has too few digits for wide values, and for narrow ones it
    rounds first to its own type and then to ours. Remainders are exact: with r what is left of the total when n is
    taken off as often as it goes, and rest what is left of r when n units of the last digit are, total - r and
    r - rest can be divided by n without rounding, and rest says whether to round up.
    """
    value, digits = f"decimal({precision + 4},{scale + 4})", _digits_of_n(scale)
    total = f"try_cast({{s}}.sum as decimal({precision + 10},{scale}))"
    n = f"try_cast(nullif({{s}}.n, 0L) as decimal({digits},0))"
    last = f"cast('{Decimal(1).scaleb(-scale - 4):f}' as decimal({scale + 4},{scale + 4}))"
    r = f"({total} % {n})"
    unit = f"({n} * {last})"
    rest = f"({r} % {unit})"
    up = f"if(abs({rest}) >= {unit} - abs({rest}), if({total} < 0, -{last}, {last}), 0BD)"
    exact = f"cast(({total} - {r}) / {n} as {value}) + cast(({r} - {rest}) / {n} as {value}) + {up}"
    rounded = f"{total} / cast(nullif({{s}}.n, 0L) as decimal(20,0))"
    return f"coalesce(cast({exact} as {value}), cast({rounded} as {value}))"


@dataclass(frozen=True)
class Sum(OfOne):
    word: ClassVar[str] = "sum"
    what: ClassVar[str] = "what to add up"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        scale = exact_scale(self.word, type_)
        if scale is None:  # no count: nothing is ever taken back, so NULL is "no values"
            return Pieces(
                "double",
                "double",
                f"sum(cast({self.of} as double))",
                "{a} + {b}",
                arrow=ArrowPieces(vector.add, lift=lifts.SUM_OF_FLOATS),
                exact=False,
            )
        decimal = decimal_of(type_)
        value, present_arrow = "bigint", _present_whole_sum
        if decimal:
            digits = decimal[0] + 10
            value, present_arrow = f"decimal({digits},{scale})", _PresentDecimal(digits, scale)
        present = f"if({{s}}.n > 0, try_cast({{s}}.sum as {value}), null)"
        lift = lifts.exact_total(type_, scale, decimal[0] if decimal else None)
        return _pieces(self.of, type_, scale, value, present, ArrowPieces(vector.add_fields, present_arrow, lift))


@dataclass(frozen=True)
class Mean(OfOne):
    word: ClassVar[str] = "mean"
    what: ClassVar[str] = "what to average"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        (type_,) = input_types
        scale = exact_scale(self.word, type_)
        decimal = decimal_of(type_)
        if decimal:
            precision, scale = decimal
            arrow = None
            if _digits_of_n(scale) >= FEWEST_DIGITS_OF_N:
                lift = lifts.exact_total(type_, scale, precision)
                arrow = ArrowPieces(vector.add_fields, _PresentDecimalMean(precision, scale), lift)
            value = f"decimal({precision + 4},{scale + 4})"
            return _pieces(self.of, type_, scale, value, _decimal_mean(precision, scale), arrow)
        present = "cast({s}.sum as double) / nullif({s}.n, 0L)"
        lift = lifts.MEAN_OF_FLOATS if scale is None else lifts.exact_total(type_, scale, None)
        return _pieces(self.of, type_, scale, "double", present, ArrowPieces(vector.add_fields, _present_mean, lift))


def sum(of: str) -> Sum:
    """The total of the values that are not null; NULL when there is none.

    Integers: BIGINT, exact. DECIMAL(p,s) with p up to 28: DECIMAL(p+10,s), exact. Floats: DOUBLE, approximate.
    """
    return Sum(of)


def mean(of: str) -> Mean:
    """The average of the values that are not null; NULL when there is none.

    Integers: DOUBLE. DECIMAL(p,s): DECIMAL(p+4,s+4). Both from an exact total. Floats: DOUBLE, approximate.
    """
    return Mean(of)
