"""Whole queries of `.sql` steps: `SELECT ... FROM <the step that it reads>`, one row at a time.

`stream.py` calls `query_schema`, the engine `carry_columns`. Queries in FROM, WITH, LATERAL VIEW and UNION ALL are
fine as long as every table that is named is the input step; joins and what needs other rows are refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import sqlglot
from sqlglot import TokenType, exp

from hailstorm.errors import Location, TopologyError
from hailstorm.topology import checks, mistakes
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.sql import HIDDEN, columns_of, parse_statement, refuse_state
from hailstorm.topology.sql_types import expression_type
from hailstorm.topology.step import Step

# What a change of a table carries beside its columns.
CHANGE = Schema((Column("_kind", "string"), Column("_old", None)))


def query_schema(query: str, step: str, source: Step, at: Location) -> Schema:
    """Check a query that reads `source` and nothing else. Gives the columns that come out."""
    if not isinstance(query, str):
        advice = 'Write SQL in quotes: "SELECT ... FROM ...".'
        raise mistakes.wrong_argument(step, f"got {mistakes.shown(query)}, which is not a query", advice, at)
    statement = parse_statement(query, step, at)
    if not isinstance(statement, exp.Query):
        raise mistakes.sql_does_not_parse(step, "it is not a SELECT", query, 0, len(query.split()[0]), at)
    refuse_state(statement, step, at)
    reader = _Reader(step, source, at)
    columns = reader.outputs(statement, {})
    for i, column in enumerate(columns):
        taken = [earlier.name for earlier in columns[:i]]
        checks.check_output_name(step, column.name, taken, "the query selects it twice", at)
    return Schema(columns)


def carry_columns(query: str, names: Iterable[str]) -> str:
    """The query with these columns of its input in what it gives, too: how hidden columns pass through SQL.

    Works on queries that `query_schema` has passed. A SELECT with a star carries them already. The rest of the
    text stays as the user wrote it.
    """
    added = "".join(f", {name}" for name in names)
    places: list[int] = []
    selects: list[str] = [""]  # by depth of parentheses: the SELECT whose FROM has not come yet
    before = TokenType.SELECT
    for token in sqlglot.tokenize(query, dialect="spark"):
        kind = token.token_type
        if kind == TokenType.L_PAREN:
            selects.append("")
        elif kind == TokenType.R_PAREN:
            selects.pop()
        elif kind == TokenType.SELECT:
            selects[-1] = "plain"
        elif kind == TokenType.STAR and before in (TokenType.SELECT, TokenType.COMMA, TokenType.DOT):
            selects[-1] = selects[-1] and "star"
        elif kind == TokenType.FROM and selects[-1]:
            if selects[-1] == "plain":
                places.append(token.start)
            selects[-1] = ""
        before = kind
    for place in reversed(places):
        query = f"{query[:place]}{added} {query[place:]}"
    return query


@dataclass(frozen=True)
class _Scope:
    """What a SELECT can name: its columns, hidden ones apart, and the aliases of its tables."""

    columns: tuple[Column, ...]
    hidden: tuple[Column, ...]
    aliases: frozenset[str]

    @property
    def visible(self) -> Schema:
        return Schema(self.columns + self.hidden)


@dataclass(frozen=True)
class _Reader:
    step: str
    source: Step
    at: Location

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
            hidden = HIDDEN.columns + (CHANGE.columns if self.source.is_table else ())
        else:
            raise self._other(f"reads '{table.sql(dialect='spark')}'")
        aliases = {table.alias_or_name}
        joins = select.args.get("joins") or []
        if any(not isinstance(join.this, exp.Lateral) for join in joins):
            raise self._other("joins another table")
        for lateral in [*(select.args.get("laterals") or []), *(join.this for join in joins)]:
            alias = lateral.args.get("alias")
            if alias is None or not alias.columns:
                raise mistakes.unnamed_column(self.step, lateral.this.sql(dialect="spark"), self.at)
            aliases.add(alias.name)
            columns += tuple(Column(column.name, None) for column in alias.columns)
        return _Scope(columns, hidden, frozenset(aliases))

    def _check_columns(self, select: exp.Select, scope: _Scope) -> None:
        # Spark lets a later expression of a SELECT name an earlier one.
        named = {item.alias for item in select.expressions if isinstance(item, exp.Alias)}
        inner = [select.args["from_"], *([select.args["with_"]] if select.args.get("with_") else [])]
        elsewhere = {id(node) for part in inner for query in part.find_all(exp.Query) for node in query.walk()}
        if any(query is not select and id(query) not in elsewhere for query in select.find_all(exp.Query)):
            raise self._other("has a query inside an expression")
        for column in columns_of(select):
            if id(column) in elsewhere:  # checked with the columns of its own FROM
                continue
            names = [part.name for part in column.parts]
            if len(names) > 1 and names[0] in scope.aliases:
                names = names[1:]
            if names[0] not in scope.visible and names[0] not in named:
                doing, owner = f"step '{self.step}' selects", self.source.name
                raise mistakes.unknown_column(doing, names[0], owner, Schema(scope.columns), self.at)

    def _projected(self, item: exp.Expr, scope: _Scope) -> tuple[Column, ...]:
        """The columns that one expression of a SELECT gives."""
        star = item.this if isinstance(item, exp.Column) else item
        if isinstance(star, exp.Star):
            if isinstance(item, exp.Column) and item.table not in scope.aliases:
                raise mistakes.unnamed_column(self.step, item.sql(dialect="spark"), self.at)
            dropped = {column.name for column in star.args.get("except_") or ()}
            return tuple(column for column in scope.columns if column.name not in dropped)
        if isinstance(item, exp.Aliases):
            return tuple(Column(name.name, None) for name in item.aliases)
        if isinstance(item, (exp.Alias, exp.Column)):
            return (Column(item.alias_or_name, expression_type(item.unalias(), scope.visible)),)
        raise mistakes.unnamed_column(self.step, item.sql(dialect="spark"), self.at)

    def _other(self, what: str) -> TopologyError:
        return mistakes.other_tables(self.step, what, self.source.name, self.at)
