"""What a monoid may ask about the types and arguments that it is given.

Types are Spark's simple strings. The monoids call this module; it knows nothing of them.
"""

from __future__ import annotations

import re

INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
FLOATS = frozenset({"float", "double"})
# Types that Arrow compares as Spark does (vector.py adds the rule for NaN).
FLAT = INTEGERS | FLOATS | {"string", "binary", "boolean", "date", "timestamp", "timestamp_ntz"}

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# A type, not a field's name: names are followed by a colon. `interval day` and `interval year` can be ordered,
# the old calendar `interval` cannot. Collated strings are equal without being the same: the result would
# depend on the order of the rows.
_UNORDERED = re.compile(r"(?:^|[<,:])\s*(map<|variant\b(?!\s*:)|void\b(?!\s*:)|interval(?=[>,]|$)|string collate\b)")


def decimal_of(type_: str) -> tuple[int, int] | None:
    """Precision and scale, or None for another type."""
    found = _DECIMAL.fullmatch(type_.replace(" ", ""))
    return (int(found[1]), int(found[2])) if found else None


def is_numeric(type_: str) -> bool:
    return type_ in INTEGERS or type_ in FLOATS or decimal_of(type_) is not None


def is_flat(type_: str) -> bool:
    """Whether Arrow can compare two columns of this type."""
    return type_ in FLAT or decimal_of(type_) is not None


def is_orderable(type_: str) -> bool:
    """Whether Spark can order values of this type, and equal ones are the same."""
    return _UNORDERED.search(type_) is None


def same_bits(expression: str, type_: str) -> str:
    """The expression, with the one float that equals another of other bits made the same: -0.0 becomes 0.0."""
    return f"(({expression}) + cast(0 as {type_}))" if type_ in FLOATS else f"({expression})"


def check_expression(word: str, place: str, expression: object) -> None:
    if not isinstance(expression, str) or not expression.strip():
        raise ValueError(
            f'{word}: {place} must be an SQL expression over the input row, such as "amount"; got {expression!r}'
        )


def check_whole(word: str, place: str, number: object, low: int, high: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise ValueError(f"{word}: {place} must be a whole number from {low} to {high}; got {number!r}")
