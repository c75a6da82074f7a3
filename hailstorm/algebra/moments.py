"""variance and stddev (of a sample, as Spark's functions of these names).

Integers and decimals of at most 18 digits: exact. With y the value without its decimal point, the state is n,
the sum of y and the sum of y squared. A square has up to 38 digits, so it is added in two parts of 19, and neither
overflows. present works on exact integers up to one last division: the textbook formula in floating point would
lose every digit when the values are large and close together.

Floats, and decimals of more digits: n, mean and the squared distance from the mean, merged with Chan's formula;
approximate, and without an inverse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hailstorm.algebra.monoid import OfOne, Pieces, TypeRefused
from hailstorm.algebra.types import INTEGERS, decimal_of, is_numeric

_HALF = "10000000000000000000BD"  # 10 to the 19: splits a square of 38 digits in the middle
_EXACT_FIELDS = ("sum", "high", "low")


@dataclass(frozen=True)
class Variance(OfOne):
    word: ClassVar[str] = "variance"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        return _pieces(self.word, self.of, input_types[0], "{variance}")


@dataclass(frozen=True)
class Stddev(OfOne):
    word: ClassVar[str] = "stddev"

    def pieces(self, input_types: tuple[str, ...]) -> Pieces:
        return _pieces(self.word, self.of, input_types[0], "sqrt({variance})")


def _pieces(word: str, of: str, type_: str, value: str) -> Pieces:
    if not is_numeric(type_):
        raise TypeRefused(word, type_, "numbers")
    decimal = decimal_of(type_)
    if type_ in INTEGERS or (decimal and decimal[0] <= 18):
        return _exact(of, decimal[1] if decimal else 0, value)
    return _approximate(of, value)


def _exact(of: str, scale: int, value: str) -> Pieces:
    whole = f"cast(({of}) * {10**scale}BD as decimal(19,0))" if scale else f"cast({of} as decimal(19,0))"
    square = f"({whole} * {whole})"
    parts = {"sum": whole, "high": f"({square} div {_HALF})", "low": f"({square} % {_HALF})"}

    def total(part: str) -> str:
        return f"coalesce(sum(cast({part} as decimal(27,0))), 0)"

    def signed(part: str) -> str:
        return total(f"if({{sign}} > 0, {part}, -{part})")

    n = f"coalesce(sum(cast(if(({of}) is null, 0, {{sign}}) as bigint)), 0L)"
    merged = ", ".join(f"'{f}', cast({{a}}.{f} + {{b}}.{f} as decimal(37,0))" for f in _EXACT_FIELDS)
    return Pieces(
        state_type=f"struct<n:bigint,{','.join(f'{f}:decimal(37,0)' for f in _EXACT_FIELDS)}>",
        value_type="double",
        lift=f"named_struct('n', count({of}), " + ", ".join(f"'{f}', {total(p)}" for f, p in parts.items()) + ")",
        merge=f"named_struct('n', {{a}}.n + {{b}}.n, {merged})",
        present=f"if({{s}}.n > 1, {value.replace('{variance}', _exact_variance(scale))}, null)",
        retract=f"named_struct('n', {n}, " + ", ".join(f"'{f}', {signed(p)}" for f, p in parts.items()) + ")",
    ).typed()


def _exact_variance(scale: int) -> str:
    """SQL for the variance of a state with n > 1.

    With q the mean rounded to an integer and r = sum(y) - n q, the squared distances from q add up to
    d = sum(y^2) - q^2 n - 2 q r, an integer; the variance is (d - r^2 / n) / (n - 1).
    """
    n = "cast({s}.n as decimal(20,0))"
    squares = f"try_add(try_multiply({{s}}.high, {_HALF}), {{s}}.low)"
    q = "cast(({s}.sum div {s}.n) as decimal(19,0))"
    r = f"({{s}}.sum - {q} * {n})"
    d = f"({squares} - {q} * {q} * {n} - 2 * {q} * {r})"
    # n d - r^2 may have more than 38 digits; then d is so large that r^2 / n, below n, does not show in it.
    exact = f"cast(try_subtract(try_multiply({d}, {n}), {r} * {r}) as double) / {{s}}.n"
    # The sum of squares itself has more than 38 digits: only for values near the ends of a bigint.
    squares_rounded = "(cast({s}.high as double) * 1e19D + cast({s}.low as double))"
    rounded = f"({squares_rounded} - cast({{s}}.sum as double) * cast({{s}}.sum as double) / {{s}}.n)"
    return f"(coalesce({exact}, cast({d} as double), {rounded}) / ({{s}}.n - 1) / 1e{2 * scale}D)"


def _approximate(of: str, value: str) -> Pieces:
    number = f"cast({of} as double)"
    n = "({a}.n + {b}.n)"
    weight = f"({{b}}.n / {n})"
    step = "({b}.mean - {a}.mean)"
    merged = (
        f"named_struct('n', {n}, 'mean', {{a}}.mean + {step} * {weight}, "
        f"'distance', {{a}}.distance + {{b}}.distance + {step} * {step} * {{a}}.n * {weight})"
    )
    return Pieces(
        state_type="struct<n:bigint,mean:double,distance:double>",
        value_type="double",
        # No values: no state at all, because a mean of nothing would be a NULL inside it.
        lift=f"if(count({number}) = 0, null, named_struct('n', count({number}), 'mean', avg({number}), "
        f"'distance', var_pop({number}) * count({number})))",
        merge=merged,
        present=f"if({{s}}.n > 1, {value.replace('{variance}', '({s}.distance / ({s}.n - 1))')}, null)",
        exact=False,
    ).typed()


def variance(of: str) -> Variance:
    """The variance of the sample of values that are not null. DOUBLE; NULL for fewer than two values."""
    return Variance(of)


def stddev(of: str) -> Stddev:
    """The standard deviation of the sample: the square root of `variance`."""
    return Stddev(of)
