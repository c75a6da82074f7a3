"""What a fold makes of its arguments: the key, and the schema of the table that comes out."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence

from hailstorm.algebra.monoid import AnyMonoid, Monoid, SqlMonoid, TypeRefused
from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes, sql
from hailstorm.topology.ddl import shouted
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.step import Step


def fold_key(name: str, by: str | Sequence[str] | None, source: Step, at: Location) -> tuple[str, ...]:
    if by is None:
        return ()
    key = (by,) if isinstance(by, str) else tuple(by)
    if not key:
        advice = "Leave `by` out for one state over all rows, or name the columns."
        raise mistakes.wrong_argument(name, "folds by an empty list", advice, at)
    checks.check_columns(f"step '{name}' folds by", key, source.name, source.schema, at)
    for i, column in enumerate(key):
        if column in key[:i]:
            raise mistakes.bad_key(name, column, "it is named twice", at)
        type_ = source.schema.type_of(column) or ""
        if "map<" in type_ or "variant" in type_:
            raise mistakes.bad_key(name, column, f"values of {shouted(type_)} cannot be compared", at)
    return key


def fold_schema(
    name: str, key: tuple[str, ...], monoids: Mapping[str, AnyMonoid], source: Step, at: Location
) -> Schema:
    """The key columns, then one column per monoid."""
    if not monoids:
        raise mistakes.no_monoids(name, at)
    columns = [Column(column, source.schema.type_of(column)) for column in key]
    for output, monoid in monoids.items():
        if not isinstance(monoid, AnyMonoid):
            raise mistakes.not_a_monoid(name, output, monoid, _better_monoid(monoid), at)
        checks.check_output_name(name, output, key, "one is its key, the other a monoid", at)
        columns.append(Column(output, _value_type(name, output, monoid, source, at)))
    return Schema(tuple(columns))


def _value_type(name: str, output: str, monoid: AnyMonoid, source: Step, at: Location) -> str | None:
    """The type of a monoid's value, or None where only Spark can tell."""
    types = [sql.check_expression(text, name, f"computes '{output}' from", source, at) for text in monoid.inputs]
    if isinstance(monoid, Monoid):
        return Schema.parse(f"value {monoid.value or monoid.state}", at).columns[0].type
    known = tuple(type_ for type_ in types if type_ is not None)
    if not isinstance(monoid, SqlMonoid) or len(known) < len(types):
        return None
    try:
        return monoid.pieces(known).value_type
    except TypeRefused as refused:
        inputs = ", ".join(f"{text} ({shouted(type_)})" for text, type_ in zip(monoid.inputs, known, strict=True))
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
