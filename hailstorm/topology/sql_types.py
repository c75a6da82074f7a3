"""The types of SQL expressions, as far as they are certain without Spark.

Certain are columns, struct fields, casts, literals, conditions and a few functions. Everything else is None, and
the engine asks Spark: guessing how Spark widens decimals would be wrong more often than it would help.
"""

from __future__ import annotations

from sqlglot import exp

from hailstorm.topology.schema import Schema
from hailstorm.types import Misread, read_type, spark_type

_BOOLEAN = (exp.Predicate, exp.And, exp.Or, exp.Not, exp.Boolean)
_STRING = (exp.Lower, exp.Upper)


def expression_type(node: exp.Expr, visible: Schema) -> str | None:
    """The type of an expression over these columns, or None where only Spark can tell."""
    if isinstance(node, exp.Column):
        return _column_type(node, visible)
    if isinstance(node, exp.Paren):
        return expression_type(node.this, visible)
    if isinstance(node, exp.Cast):
        return _declared(node.to.sql(dialect="spark"))
    if isinstance(node, exp.Literal):
        return "string" if node.is_string else "int" if node.name.isdecimal() and len(node.name) < 10 else None
    if isinstance(node, _BOOLEAN):
        return "boolean"
    # lower(binary) is not binary but an error or an implicit cast: in each case a string comes out.
    return "string" if isinstance(node, _STRING) else None


def _column_type(column: exp.Column, visible: Schema) -> str | None:
    first, *fields = [part.name for part in column.parts]
    if first not in visible and fields:  # the name of the table in front: `tweets.at`
        first, *fields = fields
    type_ = visible.type_of(first) if first in visible else None
    for field in fields:
        inner = spark_type(type_).fields.get(field) if type_ else None
        type_ = None if inner is None else str(inner)
    return type_


def _declared(text: str) -> str | None:
    try:
        return str(read_type(text))
    except Misread:
        return None
