"""What a monoid may ask about the types and arguments that it is given.

Types are Spark's simple strings. The monoids call this module; it knows nothing of them.
"""

from __future__ import annotations

from hailstorm.columns import quoted
from hailstorm.types import Type, spark_type

INTEGERS = frozenset({"tinyint", "smallint", "int", "bigint"})
FLOATS = frozenset({"float", "double"})
# Types that Arrow compares as Spark does (vector.py adds the rule for NaN).
FLAT = INTEGERS | FLOATS | {"string", "binary", "boolean", "date", "timestamp", "timestamp_ntz"}

# The old calendar `interval` cannot be ordered; `interval day` and `interval year` can. Collated strings are equal
# without being the same: the result would depend on the order of the rows.
_UNORDERED = ("map", "variant", "void", "interval")


def decimal_of(type_: str) -> tuple[int, int] | None:
    """Precision and scale, or None for another type."""
    found = spark_type(type_)
    return (found.numbers[0], found.numbers[1]) if found.word == "decimal" else None


def is_numeric(type_: str) -> bool:
    return type_ in INTEGERS or type_ in FLOATS or decimal_of(type_) is not None


def is_flat(type_: str) -> bool:
    """Whether Arrow can compare two columns of this type."""
    return type_ in FLAT or decimal_of(type_) is not None


def is_orderable(type_: str) -> bool:
    """Whether Spark can order values of this type, and equal ones are the same."""
    parts = spark_type(type_).walk()
    return not any(part.word in _UNORDERED or part.word.startswith("string collate") for part in parts)


def same_bits(expression: str, type_: str) -> str:
    """The expression, with the one float that equals another of other bits made the same: -0.0 becomes 0.0."""
    return f"(({expression}) + cast(0 as {type_}))" if type_ in FLOATS else f"({expression})"


def hash_of(expression: str, type_: str) -> str:
    """64 bits that stand for a value that is not null: equal values, and only those but for chance, have equal ones.

    Spark's own hash passes over nulls and the ends of lists, so that it takes `[null]` for `[]`. Of nested values it is
    therefore given what tells them apart: how long each list is, and what is null.
    """
    if not spark_type(type_).inside:
        return f"xxhash64({expression})"
    # As the only item of a list, so that the expression is computed once.
    return f"transform(array({expression}), x -> xxhash64({_told_apart('x', spark_type(type_))}))[0]"


def _told_apart(value: str, type_: Type, depth: int = 0) -> str:
    if type_.word == "array":
        item = f"x{depth}"
        items = f"transform({value}, {item} -> {_told_apart(item, type_.inside[0], depth + 1)})"
        return f"struct(if({value} is null, -1, size({value})), {items})"
    if type_.word == "struct":
        fields = [_told_apart(f"{value}.{quoted(name)}", part, depth) for name, part in type_.fields.items()]
        return f"struct({value} is null, {', '.join(fields)})"
    return f"struct({value} is null, {value})"


def check_expression(word: str, place: str, expression: object) -> None:
    if not isinstance(expression, str) or not expression.strip():
        raise ValueError(
            f'{word}: {place} must be an SQL expression over the input row, such as "amount"; got {expression!r}'
        )


def check_whole(word: str, place: str, number: object, low: int, high: int) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
        raise ValueError(f"{word}: {place} must be a whole number from {low} to {high}; got {number!r}")
