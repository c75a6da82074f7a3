"""SQL expressions in steps, read without Spark: do they parse, which columns do they name, what type comes out.

`stream.py`, `table.py` and `folding.py` check with it when a step is declared; the engine uses `rewrite_columns`.
The user's text goes to Spark as it was written: sqlglot only reads it, because its own rendering of a parsed
query may differ from what Spark would have done with the original. Whole queries are read by `query.py`.
"""

from __future__ import annotations

from typing import Any, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from hailstorm.errors import Location
from hailstorm.topology import mistakes
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.sql_types import expression_type
from hailstorm.topology.step import Step

# What a row of a stream carries beside its columns; SQL on streams may read it.
HIDDEN = Schema(
    (
        Column("_time", "timestamp"),
        Column("_spout", "string"),
        Column("_partition", "int"),
        Column("_offset", "bigint"),
    )
)
# Aggregates of Spark that sqlglot does not know as such.
_AGGREGATES = frozenset(
    {
        "mean",
        "collect_set",
        "count_if",
        "bool_and",
        "bool_or",
        "every",
        "some",
        "any",
        "bit_and",
        "bit_or",
        "bit_xor",
        "first_value",
        "last_value",
        "kurtosis",
        "skewness",
        "regr_count",
        "regr_avgx",
        "regr_avgy",
        "regr_r2",
        "regr_slope",
        "regr_intercept",
        "percentile_approx",
        "approx_percentile",
        "hll_sketch_agg",
        "hll_union_agg",
        "histogram_numeric",
        "count_min_sketch",
        "bitmap_construct_agg",
        "mode",
        "listagg",
        "string_agg",
        "max_by",
        "min_by",
        "std",
        "grouping",
        "grouping_id",
        "try_sum",
        "try_avg",
        "product",
        "any_value",
    }
)
_NONDETERMINISTIC = frozenset(
    {
        "rand",
        "random",
        "randn",
        "randstr",
        "uniform",
        "uuid",
        "shuffle",
        "now",
        "curdate",
        "current_timestamp",
        "current_date",
        "current_time",
        "current_datetime",
        "localtimestamp",
        "localtime",
        "monotonically_increasing_id",
        "spark_partition_id",
        "input_file_name",
        "input_file_block_start",
        "input_file_block_length",
        "current_user",
        "session_user",
    }
)
_CLAUSES: dict[type[exp.Expr], str] = {
    exp.Window: "a window function (OVER)",
    exp.Distinct: "DISTINCT",
    exp.Group: "GROUP BY",
    exp.Having: "HAVING",
    exp.Order: "ORDER BY",
    exp.Sort: "SORT BY",
    exp.Limit: "LIMIT",
    exp.Offset: "OFFSET",
    exp.TableSample: "TABLESAMPLE",
}
# Single words that are no columns.
_WORDS = _NONDETERMINISTIC | {"true", "false", "null"}
_WRAP = "SELECT "


def check_expression(text: str, step: str, doing: str, source: Step, at: Location) -> str | None:
    """Check an expression over the rows of `source`. Gives its type, or None where only Spark can tell."""
    visible = source.schema if source.is_table else Schema(source.schema.columns + HIDDEN.columns)
    unknown = f"step '{step}' {doing}"
    if _is_name(text):
        if text not in visible:
            raise mistakes.unknown_column(unknown, text, source.name, source.schema, at)
        return visible.type_of(text)
    node = parse_expression(text, step, at)
    for column in columns_of(node):
        name = column.parts[0].name
        if name not in visible:
            raise mistakes.unknown_column(unknown, name, source.name, source.schema, at)
    return expression_type(node, visible)


def rewrite_columns(expression: str, prefix: str) -> str:
    """The expression with every column read from `prefix`: `n > 3` -> `_old.n > 3`.

    Only columns change: not the parameters of lambdas, not struct fields, not hidden columns.
    """
    if _is_name(expression):
        return expression if expression.startswith("_") else f"{prefix}.{expression}"
    columns = columns_of(parse_expression(expression, "?", Location.of_caller()))
    starts = {start_of(column) - len(_WRAP) for column in columns if not column.parts[0].name.startswith("_")}
    for start in sorted(starts, reverse=True):
        expression = f"{expression[:start]}{prefix}.{expression[start:]}"
    return expression


def parse_expression(text: str, step: str, at: Location) -> exp.Expr:
    """Parsed as the only thing of a SELECT: on its own, `comment = 'x'` would be read as a statement."""
    if not isinstance(text, str):
        advice = 'Write SQL in quotes: "n > 3".'
        raise mistakes.wrong_argument(step, f"got {mistakes.shown(text)}, which is not an SQL expression", advice, at)
    select = parse_statement(text, step, at, before=_WRAP)
    refuse_state(select, step, at)
    others = [key for key, value in select.args.items() if value and key != "expressions"]
    found = select.expressions if isinstance(select, exp.Select) and not others else []
    if len(found) != 1 or isinstance(found[0], (exp.Alias, exp.Aliases)) or found[0].find(exp.Query, exp.Star):
        why = "it must be one expression, without AS, * or a query inside"
        raise mistakes.sql_does_not_parse(step, why, text, 0, len(text), at)
    node: exp.Expr = found[0]
    return node


def parse_statement(text: str, step: str, at: Location, before: str = "") -> exp.Expr:
    """Parse `before + text`; positions in errors are those in `text`."""
    if not text.strip():
        raise mistakes.sql_does_not_parse(step, "it is empty", text, 0, 1, at)
    try:
        statements = sqlglot.parse(before + text, dialect="spark")
    except TokenError:
        raise mistakes.sql_does_not_parse(step, "a quote or comment is not closed", text, 0, len(text), at) from None
    except ParseError as error:
        _fail(error.errors[0], before, text, step, at)
    if len(statements) != 1 or statements[0] is None:
        raise mistakes.sql_does_not_parse(step, "it is more than one statement", text, 0, len(text), at)
    return statements[0]


def columns_of(node: exp.Expr) -> list[exp.Column]:
    """Every column that is named, in the order of the text. Parameters of lambdas are no columns."""
    columns = (column for column in node.find_all(exp.Column) if not isinstance(column.this, exp.Star))
    return sorted(columns, key=start_of)


def start_of(column: exp.Column) -> int:
    return int(column.parts[0].meta["start"])


def refuse_state(node: exp.Expr, step: str, at: Location) -> None:
    """Refuse what needs other rows, and what gives another result when it is run again."""
    for part in node.walk():
        name = _function_name(part)
        for kind, what in _CLAUSES.items():
            if isinstance(part, kind):
                raise mistakes.stateful_sql(step, what, at)
        if isinstance(part, exp.AggFunc) or name in _AGGREGATES:
            raise mistakes.stateful_sql(step, f"the aggregate {name}()", at)
        if name in _NONDETERMINISTIC or (name == "unix_timestamp" and not part.args.get("this")):
            raise mistakes.nondeterministic_sql(step, name, at)


def _is_name(text: object) -> bool:
    """Whether an expression is just the name of a column, which may be a word of SQL, too: `order`, `like`."""
    return isinstance(text, str) and text.isidentifier() and text.lower() not in _WORDS


def _function_name(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _fail(error: dict[str, Any], before: str, text: str, step: str, at: Location) -> NoReturn:
    """sqlglot's own words name its classes; what people need is the place."""
    word = error["highlight"] or ""
    lines = (before + text).split("\n")
    end = sum(len(line) + 1 for line in lines[: error["line"] - 1]) + error["col"]
    position = max(0, end - len(word) - len(before))
    missing = error["description"].startswith("Required keyword")
    why = f"something is missing after '{word}'" if missing else f"'{word}' is not expected here"
    raise mistakes.sql_does_not_parse(step, why, text, position, len(word), at) from None
