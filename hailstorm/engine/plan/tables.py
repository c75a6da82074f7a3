"""What `where` and `select` mean for a table: SQL over changes, or the same in Arrow where Arrow can (stages).

A change has the row after (its columns) and before (`_old`). A predicate or an expression is asked of both; what a
row was and is decides whether the change comes out as an insert, an update, a delete or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql import DataFrame

from hailstorm.columns import HASH, HIDDEN, KIND, OLD, quoted, struct_of
from hailstorm.engine.plan.flow import Flow, type_text, why_not
from hailstorm.engine.stages.expressions import in_arrow
from hailstorm.engine.stages.table_changes import ChangesSelect, ChangesWhere, SeenChanges
from hailstorm.topology.sql import rewrite_columns
from hailstorm.topology.stateless import Select, Where
from hailstorm.types import spark_type

_CARRIED = (*HIDDEN.names, HASH)


def wanted_changes(flow: Flow, step: Where, times: bool) -> Flow:
    """The changes of the rows that satisfy the predicate, before or after."""
    values = _values(flow, step.key)
    wanted = [(step.predicate, pa.bool_())]
    found = in_arrow(wanted, flow.schema) if flow.stages else None
    if found is not None:
        return flow.then(ChangesWhere(found[0], step.key, values, times))
    return flow.over(_wanted_by_sql(flow.dataframe(), step, values)).needing(*why_not(step.name, wanted, flow))


def selected_changes(flow: Flow, step: Select, times: bool) -> Flow:
    """The changes of a projection. The key stays, so a change of a row is a change of its projection, or none.

    `times`: a step below reads the times of rows. So changes stay that leave the projection as it was.
    """
    projected = _selected_by_sql(flow.dataframe(), step, _values(flow, step.key))
    selected = flow.over(projected)
    if not times and _has_maps(projected, step):
        selected = selected.then(SeenChanges())  # Spark cannot compare two maps
    elif not times:
        selected = flow.over(_seen_by_sql(projected, step))
    made = {name: text for name, text in step.expressions.items() if name not in step.key}
    wanted = [(text, selected.schema.field(name).type) for name, text in made.items()]
    found = in_arrow(wanted, flow.schema) if flow.stages and made else None
    if found is None:
        return selected.needing(*why_not(step.name, wanted, flow))
    return flow.then(ChangesSelect(tuple(made), found, step.key, times), selected.schema)


def _values(flow: Flow, key: Sequence[str]) -> tuple[str, ...]:
    hidden = (*_CARRIED, KIND, OLD, *key)
    return tuple(name for name in flow.schema.names if name not in hidden)


def _wanted_by_sql(df: DataFrame, step: Where, values: Sequence[str]) -> DataFrame:
    before = _with_before(df, step.key, values)
    is_ = f"{KIND} <> 'delete' AND coalesce({step.predicate}, false)"
    was = f"{KIND} <> 'insert' AND coalesce({rewrite_columns(step.predicate, '_before')}, false)"
    judged = before.selectExpr("*", f"{is_} AS _is", f"{was} AS _was").where("_is OR _was")
    return judged.selectExpr(
        *map(quoted, step.key),
        *(f"IF(_is, {quoted(name)}, NULL) AS {quoted(name)}" for name in values),
        f"CASE WHEN _is AND _was THEN 'update' WHEN _is THEN 'insert' ELSE 'delete' END AS {KIND}",
        f"IF(_was, {OLD}, NULL) AS {OLD}",
        *_CARRIED,
    )


def _selected_by_sql(df: DataFrame, step: Select, values: Sequence[str]) -> DataFrame:
    before = _with_before(df, step.key, values)
    made = {name: text for name, text in step.expressions.items() if name not in step.key}
    was = {name: rewrite_columns(text, "_before") for name, text in made.items()}
    old = struct_of(was or {name: quoted(name) for name in step.key})  # files hold no struct without fields
    return before.selectExpr(
        *map(quoted, step.key),
        *(f"IF({KIND} <> 'delete', {text}, NULL) AS {quoted(name)}" for name, text in made.items()),
        KIND,
        f"IF({KIND} <> 'insert', {old}, NULL) AS {OLD}",
        *_CARRIED,
    )


def _has_maps(projected: DataFrame, step: Select) -> bool:
    made = (field.dataType for field in projected.schema if field.name in step.expressions)
    return any(part.word == "map" for type_ in made for part in spark_type(type_text(type_)).walk())


def _seen_by_sql(projected: DataFrame, step: Select) -> DataFrame:
    """Without updates that leave the projection as it was."""
    made = [name for name in step.expressions if name not in step.key]
    same = " AND ".join(f"{quoted(name)} <=> {OLD}.{quoted(name)}" for name in made) or "true"
    return projected.where(f"NOT ({KIND} = 'update' AND {same})")


def _with_before(df: DataFrame, key: Sequence[str], values: Sequence[str]) -> DataFrame:
    fields = {name: quoted(name) for name in key} | {name: f"_old.{quoted(name)}" for name in values}
    return df.selectExpr("*", f"{struct_of(fields)} AS _before")
