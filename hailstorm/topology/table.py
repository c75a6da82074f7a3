"""Tables: streams of changes that have a key. What a fold gives, and what keeps its key.

`where`, `select` and `top` of a table are tables again: a row that leaves the filter is deleted downstream. A bolt
or SQL on a table reads the changes themselves (key, values, `_kind`, `_old`) and gives a plain stream.
"""

from __future__ import annotations

from typing import NoReturn

from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes, sql
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.step import Select, Top, Where
from hailstorm.topology.stream import Stream


class Table(Stream):
    @property
    def key(self) -> tuple[str, ...]:
        return self.step.key

    def where(self, name: str, predicate: str) -> Table:
        """The rows for which an SQL predicate is true; a row that no longer fits is deleted."""
        at = Location.of_caller()
        sql.check_expression(predicate, name, "filters by", self.step, at)
        return self.topology.add_table(Where(name, at, (self.name,), self.schema, self.key, True, predicate=predicate))

    def select(self, name: str, **expressions: str) -> Table:
        """Columns as SQL expressions. The key columns stay, whether or not they are named."""
        at = Location.of_caller()
        for column in self.key:
            if expressions.get(column, column).strip(" `") != column:
                advice = (
                    "The key of a table stays as it is. Select it under another name, or change it before the fold."
                )
                raise mistakes.wrong_argument(
                    name, f"changes '{column}', which is the key of '{self.name}'", advice, at
                )
        selected = self._selected(name, expressions, at)
        keys = tuple(column for column in self.schema if column.name in self.key)
        schema = Schema(keys + tuple(column for column in selected if column.name not in self.key))
        step = Select(name, at, (self.name,), schema, self.key, True, expressions=dict(expressions))
        return self.topology.add_table(step)

    def top(self, name: str, n: int, *, by: str) -> Table:
        """The n rows with the largest `by`, with their `rank` from 1. Equal ones are ordered by key."""
        at = Location.of_caller()
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise mistakes.wrong_argument(name, f"asks for the top {n!r}", "Ask for a whole number of at least 1.", at)
        sql.check_expression(by, name, "ranks by", self.step, at)
        checks.check_output_name(name, "rank", self.schema.names, "the table has one, and top adds the rank", at)
        schema = Schema((*self.schema, Column("rank", "int")))
        return self.topology.add_table(Top(name, at, (self.name,), schema, self.key, True, n=n, by=by))

    def union(self, name: str, *others: Stream) -> NoReturn:
        """Refused: two tables can hold the same key."""
        raise mistakes.union_of_tables(name, self.name, Location.of_caller())
