"""SQL over changes: what `where` and `select` mean for a table.

A change has the row after (its columns) and before (`_old`). A predicate or an expression is asked of both; what a
row was and is decides whether the change comes out as an insert, an update, a delete or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from hailstorm.engine.stages.read import HIDDEN
from hailstorm.ledger.runs import HASH
from hailstorm.topology.sql import rewrite_columns
from hailstorm.topology.step import Select, Where

_CARRIED = (*HIDDEN.names, HASH)


def wanted_changes(df: DataFrame, step: Where, values: Sequence[str]) -> DataFrame:
    """The changes of the rows that satisfy the predicate, before or after."""
    before = _with_before(df, step.key, values)
    is_ = f"_kind <> 'delete' AND coalesce({step.predicate}, false)"
    was = f"_kind <> 'insert' AND coalesce({rewrite_columns(step.predicate, '_before')}, false)"
    judged = before.selectExpr("*", f"{is_} AS _is", f"{was} AS _was").where("_is OR _was")
    return judged.selectExpr(
        *(f"`{name}`" for name in step.key),
        *(f"IF(_is, `{name}`, NULL) AS `{name}`" for name in values),
        "CASE WHEN _is AND _was THEN 'update' WHEN _is THEN 'insert' ELSE 'delete' END AS _kind",
        "IF(_was, _old, NULL) AS _old",
        *_CARRIED,
    )


def selected_changes(df: DataFrame, step: Select, values: Sequence[str]) -> DataFrame:
    """The changes of a projection. The key stays, so a change of a row is a change of its projection, or none."""
    before = _with_before(df, step.key, values)
    made = {name: text for name, text in step.expressions.items() if name not in step.key}
    new = [f"IF(_kind <> 'delete', {text}, NULL) AS `{name}`" for name, text in made.items()]
    old = ", ".join(f"'{name}', {rewrite_columns(text, '_before')}" for name, text in made.items())
    projected = before.selectExpr(
        *(f"`{name}`" for name in step.key),
        *new,
        "_kind",
        f"IF(_kind <> 'insert', named_struct({old}), NULL) AS _old",
        *_CARRIED,
    )
    same = " AND ".join(f"`{name}` <=> _old.`{name}`" for name in made)
    return projected.where(f"NOT (_kind = 'update' AND {same})")


def _with_before(df: DataFrame, key: Sequence[str], values: Sequence[str]) -> DataFrame:
    fields = [f"'{name}', `{name}`" for name in key] + [f"'{name}', _old.`{name}`" for name in values]
    return df.selectExpr("*", f"named_struct({', '.join(fields)}) AS _before")
