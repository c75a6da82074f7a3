"""SQL expressions in steps, read without Spark: do they parse, which columns do they name, what type comes out.

`stream.py`, `table.py` and `folding.py` check with it when a step is declared; the engine uses `rewrite_columns`.
sqlglot only reads: Spark gets the user's own text (`sql_text.py`). Whole queries are read by `query.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError, TokenError

from hailstorm.columns import EVENT_TIME, OFFSET, PARTITION, SPOUT, quoted
from hailstorm.errors import Location, TopologyError
from hailstorm.topology import mistakes
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.sql_text import (
    WITHOUT_PARENTHESES,
    as_column,
    column_named,
    for_spark,
    nondeterministic_words,
    replaced,
)
from hailstorm.topology.sql_types import expression_type
from hailstorm.topology.step import Step

# What a row of a stream carries beside its columns; SQL on streams may read it.
HIDDEN = Schema(
    (
        Column(EVENT_TIME, "timestamp"),
        Column(SPOUT, "string"),
        Column(PARTITION, "int"),
        Column(OFFSET, "bigint"),
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
_WORDS = WITHOUT_PARENTHESES | {"true", "false", "null"}
_WRAP = "SELECT "


@dataclass(frozen=True)
class Expression:
    """An expression that was checked: its text for Spark, and its type, or None where only Spark can tell."""

    text: str
    type: str | None


def checked_expression(text: str, step: str, doing: str, source: Step, at: Location) -> Expression:
    """Check an expression over the rows of `source`; `doing` says what the step does with it."""
    visible = source.schema if source.is_table else Schema(source.schema.columns + HIDDEN.columns)
    unknown = f"step '{step}' {doing}"
    if _is_name(text) and (text in visible or text.lower() not in _WORDS):
        if text not in visible:
            raise mistakes.unknown_column(unknown, text, source.name, source.schema, at)
        return Expression(as_column(text), visible.type_of(text))
    if text in source.schema and column_named(text) is None:
        raise mistakes.unquoted_name(step, text, quoted(text), at)
    node = parse_expression(text, step, at)
    for column in columns_of(node):
        name = column.parts[0].name
        if name not in visible:
            raise unknown_name(unknown, name, step, source.name, source.schema, at)
    return Expression(for_spark(text), expression_type(node, visible))


def unknown_name(doing: str, name: str, step: str, owner: str, schema: Schema, at: Location) -> TopologyError:
    """No such column; but Spark might know the word as a function."""
    if name.lower() in WITHOUT_PARENTHESES:
        return mistakes.nondeterministic_sql(step, name, at)
    return mistakes.unknown_column(doing, name, owner, schema, at)


def rewrite_columns(expression: str, prefix: str) -> str:
    """The expression, as it was checked, with every column read from `prefix`: `n > 3` -> `_old.n > 3`.

    Only columns change: not the parameters of lambdas, not struct fields, not hidden columns.
    """
    columns = columns_of(parse_expression(expression, "?", Location.of_caller()))
    starts = {start_of(column) - len(_WRAP) for column in columns if not column.parts[0].name.startswith("_")}
    return replaced(expression, ((start, start, f"{prefix}.") for start in starts))


def parse_expression(text: str, step: str, at: Location) -> exp.Expr:
    """Parsed as the only thing of a SELECT: on its own, `comment = 'x'` would be read as a statement."""
    if not isinstance(text, str):
        advice = 'Write SQL in quotes: "n > 3".'
        raise mistakes.wrong_argument(step, f"got {mistakes.shown(text)}, which is not an SQL expression", advice, at)
    select = parse_statement(text, step, at, before=_WRAP)
    refuse_state(select, text, step, at)
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


def refuse_state(node: exp.Expr, text: str, step: str, at: Location) -> None:
    """Refuse what needs other rows, and what gives another result when it is run again."""
    for word in nondeterministic_words(text):
        raise mistakes.nondeterministic_sql(step, word, at)
    for part in node.walk():
        name = _function_name(part)
        for kind, what in _CLAUSES.items():
            if isinstance(part, kind):
                raise mistakes.stateful_sql(step, what, at)
        if isinstance(part, exp.AggFunc) or name in _AGGREGATES:
            raise mistakes.stateful_sql(step, f"the aggregate {name}()", at)
        if name in WITHOUT_PARENTHESES:
            raise mistakes.nondeterministic_sql(step, name, at)


def _is_name(text: object) -> bool:
    """Whether an expression is just the name of a column, which may be a word of SQL, too: `order`, `like`."""
    return isinstance(text, str) and text.isidentifier()


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
