"""What a fold makes of its arguments: the key, and the schema of the table that comes out."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hailstorm.algebra.monoid import AnyMonoid, Monoid, SqlMonoid, TypeRefused
from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes, sql
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.step import Step
from hailstorm.types import spark_type


def fold_key(
    name: str, by: str | Sequence[str] | None, source: Step, at: Location, doing: str = "folds by"
) -> tuple[str, ...]:
    """The key columns. `doing` is what the step does with them, for errors."""
    if by is None:
        return ()
    if not isinstance(by, str) and not (isinstance(by, Iterable) and all(isinstance(column, str) for column in by)):
        advice = "Name a column, or a list of columns: by='word', by=['user', 'word']."
        raise mistakes.wrong_argument(name, f"{doing} {by!r}, which is not the name of a column", advice, at)
    key = (by,) if isinstance(by, str) else tuple(by)
    if not key:
        advice = "Leave `by` out for one state over all rows, or name the columns."
        raise mistakes.wrong_argument(name, f"{doing} an empty list", advice, at)
    checks.check_columns(f"step '{name}' {doing}", key, source.name, source.schema, at)
    for i, column in enumerate(key):
        if column in key[:i]:
            raise mistakes.bad_key(name, column, "it is named twice", at)
        type_ = source.schema.type_of(column)
        if type_ is not None and any(part.word in ("map", "variant") for part in spark_type(type_).walk()):
            raise mistakes.bad_key(name, column, f"values of {spark_type(type_).shouted} cannot be compared", at)
    return key


@dataclass(frozen=True)
class Folded:
    """The columns of a fold: its schema (the key columns, then one per monoid), and the monoids with Spark's text."""

    schema: Schema
    monoids: Mapping[str, AnyMonoid]


def folded_columns(
    name: str,
    key: tuple[str, ...],
    monoids: Mapping[str, AnyMonoid],
    source: Step,
    at: Location,
    windows: tuple[str, ...] = (),
) -> Folded:
    """`windows` are the columns that tell the window of a row, which come after those of the key."""
    if not monoids:
        raise mistakes.no_monoids(name, at)
    columns = [Column(column, source.schema.type_of(column)) for column in key]
    columns += [Column(column, "timestamp") for column in windows]
    reading: dict[str, AnyMonoid] = {}
    for output, monoid in monoids.items():
        if not isinstance(monoid, AnyMonoid):
            raise mistakes.not_a_monoid(name, output, monoid, _better_monoid(monoid), at)
        checks.check_output_name(name, output, (*key, *windows), "one is its key, the other a monoid", at)
        doing = f"computes '{output}' from"
        inputs = [sql.checked_expression(text, name, doing, source, at) for text in monoid.inputs]
        columns.append(Column(output, _value_type(name, output, monoid, [one.type for one in inputs], at)))
        reading[output] = monoid.reading(tuple(one.text for one in inputs))
    return Folded(Schema(tuple(columns)), reading)


def _value_type(name: str, output: str, monoid: AnyMonoid, types: Sequence[str | None], at: Location) -> str | None:
    """The type of a monoid's value, or None where only Spark can tell."""
    if isinstance(monoid, Monoid):
        return Schema.parse(f"value {monoid.value or monoid.state}", at).columns[0].type
    known = tuple(type_ for type_ in types if type_ is not None)
    if not isinstance(monoid, SqlMonoid) or len(known) < len(types):
        return None
    try:
        return monoid.pieces(known).value_type
    except TypeRefused as refused:
        inputs = ", ".join(
            f"{text} ({spark_type(type_).shouted})" for text, type_ in zip(monoid.inputs, known, strict=True)
        )
        raise mistakes.type_refused(name, output, str(refused), inputs, at) from None


def _better_monoid(value: object) -> str:
    """People write `sum` for `hs.sum`, and `hs.count` for `hs.count()`."""
    word = getattr(value, "__name__", "")
    if getattr(builtins, word, None) is value:
        return f'{word} is Python\'s own. Did you mean hs.{word}("column")?'
    if callable(value) and getattr(value, "__module__", "").startswith("hailstorm.algebra"):
        return f"hs.{word} makes a monoid: call it, as in hs.{word}(...)."
    if isinstance(value, type) and issubclass(value, Monoid):
        return f'{word} is a class: make one of it, as in {word}("column").'
    return ""
