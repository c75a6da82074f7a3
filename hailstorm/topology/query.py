"""Whole queries of `.sql` steps: `SELECT ... FROM <the step that it reads>`, one row at a time.

`stream.py` calls `checked_query`, the engine `carry_columns`. Queries in FROM, WITH, LATERAL VIEW and UNION ALL are
fine as long as every table that is named is the input step; joins and what needs other rows are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from hailstorm.columns import KIND, OLD, quoted, shown
from hailstorm.errors import Location, TopologyError
from hailstorm.topology import checks, mistakes
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.sql import HIDDEN, columns_of, parse_statement, refuse_state, unknown_name
from hailstorm.topology.sql_text import end_of_star, for_spark, froms, replaced
from hailstorm.topology.sql_types import expression_type
from hailstorm.topology.step import Step


@dataclass(frozen=True)
class Query:
    """A query that was checked: its text for Spark, with all stars written out, and the columns that it gives."""

    text: str
    schema: Schema


def checked_query(query: str, step: str, source: Step, at: Location) -> Query:
    """Check a query that reads `source` and nothing else."""
    if not isinstance(query, str):
        advice = 'Write SQL in quotes: "SELECT ... FROM ...".'
        raise mistakes.wrong_argument(step, f"got {mistakes.shown(query)}, which is not a query", advice, at)
    parse_statement(query, step, at)  # mistakes are shown in the text as it was written
    text = for_spark(query)
    statement = parse_statement(text, step, at)
    if not isinstance(statement, exp.Query):
        raise mistakes.sql_does_not_parse(step, "it is not a SELECT", query, 0, len(query.split()[0]), at)
    refuse_state(statement, text, step, at)
    reader = _Reader(step, source, at, text)
    columns = reader.outputs(statement, {})
    for i, column in enumerate(columns):
        taken = [earlier.name for earlier in columns[:i]]
        checks.check_output_name(step, column.name, taken, "the query selects it twice", at)
    return Query(replaced(text, reader.stars), Schema(columns))


def carry_columns(query: str, names: Iterable[str]) -> str:
    """The query with these columns of its input in what it gives, too: how hidden columns pass through SQL.

    Works on queries that `checked_query` has given: no star is left that could carry them already.
    """
    added = "".join(f", {name}" for name in names)
    return replaced(query, ((place, place, f"{added} ") for place in froms(query)))


@dataclass(frozen=True)
class _Scope:
    """What a SELECT can name: the columns of each table in its FROM, by alias, and hidden ones."""

    tables: Mapping[str, tuple[Column, ...]]
    hidden: tuple[Column, ...]

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(column for columns in self.tables.values() for column in columns)

    @property
    def visible(self) -> Schema:
        return Schema(self.columns + self.hidden)

    def starred(self, star: exp.Star) -> tuple[Column, ...] | None:
        """The columns that a star stands for; None for the fields of a struct, which Spark writes out."""
        owner = star.parent.table if isinstance(star.parent, exp.Column) else ""
        if owner and owner not in self.tables:
            return None
        dropped = {column.name for column in star.args.get("except_") or ()}
        found = self.tables[owner] if owner else self.columns
        return tuple(column for column in found if column.name not in dropped)


@dataclass(frozen=True)
class _Reader:
    step: str
    source: Step
    at: Location
    text: str
    stars: list[tuple[int, int, str]] = field(default_factory=list)  # where a star stands, and what it stands for

    def outputs(self, query: exp.Expr, known: dict[str, tuple[Column, ...]]) -> tuple[Column, ...]:
        """The columns of a query; `known` are the columns of WITH names around it."""
        known = dict(known)
        for cte in query.args["with_"].expressions if query.args.get("with_") else ():
            known[cte.alias] = self.outputs(cte.this, known)
        if isinstance(query, exp.Subquery):
            return self.outputs(query.this, known)
        if isinstance(query, exp.Union):
            left = self.outputs(query.left, known)
            self.outputs(query.right, known)
            if query.args.get("distinct"):
                raise mistakes.stateful_sql(self.step, "UNION without ALL", self.at)
            return left
        if not isinstance(query, exp.Select):
            raise mistakes.stateful_sql(self.step, query.key.upper(), self.at)
        scope = self._scope(query, known)
        self._check_columns(query, scope)
        self._write_out_stars(query, scope)
        return tuple(column for item in query.expressions for column in self._projected(item, scope))

    def _scope(self, select: exp.Select, known: dict[str, tuple[Column, ...]]) -> _Scope:
        from_ = select.args.get("from_")
        if from_ is None:
            raise self._other("has no FROM")
        table = from_.this
        hidden: tuple[Column, ...] = ()
        if isinstance(table, exp.Subquery):
            columns = self.outputs(table, known)
        elif isinstance(table, exp.Table) and table.name in known and not table.db:
            columns = known[table.name]
        elif isinstance(table, exp.Table) and table.name == self.source.name and not table.db:
            columns = self.source.schema.columns
            hidden = HIDDEN.columns + (_change(self.source) if self.source.is_table else ())
        else:
            raise self._other(f"reads '{table.sql(dialect='spark')}'")
        tables = {table.alias_or_name: columns}
        joins = select.args.get("joins") or []
        if any(not isinstance(join.this, exp.Lateral) for join in joins):
            raise self._other("joins another table")
        for lateral in [*(select.args.get("laterals") or []), *(join.this for join in joins)]:
            alias = lateral.args.get("alias")
            if alias is None or not alias.columns:
                raise mistakes.unnamed_column(self.step, lateral.this.sql(dialect="spark"), self.at)
            tables[alias.name] = tuple(Column(column.name, None) for column in alias.columns)
        return _Scope(tables, hidden)

    def _check_columns(self, select: exp.Select, scope: _Scope) -> None:
        # Spark lets a later expression of a SELECT name an earlier one.
        named = {item.alias for item in select.expressions if isinstance(item, exp.Alias)}
        elsewhere = _of_inner_queries(select)
        if any(query is not select and id(query) not in elsewhere for query in select.find_all(exp.Query)):
            raise self._other("has a query inside an expression")
        for column in columns_of(select):
            if id(column) in elsewhere:  # checked with the columns of its own FROM
                continue
            names = [part.name for part in column.parts]
            if len(names) > 1 and names[0] in scope.tables:
                names = names[1:]
            if names[0] not in scope.visible and names[0] not in named:
                doing, owner = f"step '{self.step}' selects", self.source.name
                raise unknown_name(doing, names[0], self.step, owner, Schema(scope.columns), self.at)

    def _write_out_stars(self, select: exp.Select, scope: _Scope) -> None:
        """A star inside a function, too: hidden columns flow beside the others, and no star may show them."""
        elsewhere = _of_inner_queries(select)
        for star in select.find_all(exp.Star):
            columns = scope.starred(star)
            if id(star) in elsewhere or columns is None:
                continue
            start = end = star.meta["start"]
            owner = star.parent.args["table"] if isinstance(star.parent, exp.Column) else None
            if owner is not None:
                start = owner.meta["start"]
            names = ", ".join(quoted(column.name) for column in columns)
            self.stars.append((start, end_of_star(self.text, end), names))

    def _projected(self, item: exp.Expr, scope: _Scope) -> tuple[Column, ...]:
        """The columns that one expression of a SELECT gives."""
        star = item.this if isinstance(item, exp.Column) else item
        if isinstance(star, exp.Star):
            columns = scope.starred(star)
            if columns is None:
                raise mistakes.unnamed_column(self.step, item.sql(dialect="spark"), self.at)
            return columns
        if isinstance(item, exp.Aliases):
            return tuple(Column(name.name, None) for name in item.aliases)
        if isinstance(item, (exp.Alias, exp.Column)):
            return (Column(item.alias_or_name, expression_type(item.unalias(), scope.visible)),)
        raise mistakes.unnamed_column(self.step, item.sql(dialect="spark"), self.at)

    def _other(self, what: str) -> TopologyError:
        return mistakes.other_tables(self.step, what, self.source.name, self.at)


def _change(table: Step) -> tuple[Column, ...]:
    """What a change of a table carries beside its columns: `_kind`, and `_old` with the values before."""
    values = [column for column in table.schema if column.name not in table.key]
    known = values and all(column.type for column in values)
    old = f"struct<{','.join(f'{shown(column.name)}:{column.type}' for column in values)}>" if known else None
    return (Column(KIND, "string"), Column(OLD, old))


def _of_inner_queries(select: exp.Select) -> set[int]:
    """The nodes of the queries in FROM and WITH: they are read with the columns of their own FROM."""
    inner = [select.args["from_"], *([select.args["with_"]] if select.args.get("with_") else [])]
    return {id(node) for part in inner for query in part.find_all(exp.Query) for node in query.walk()}
