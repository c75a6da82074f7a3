"""Tables: streams of changes that have a key. What a fold gives, and what keeps its key.

`where`, `select` and `top` of a table are tables again: a row that leaves the filter is deleted downstream. A bolt
or SQL on a table reads the changes themselves (key, values, `_kind`, `_old`) and gives a plain stream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

from hailstorm.errors import Location
from hailstorm.topology import checks, joining, mistakes, sql
from hailstorm.topology.folding import fold_key
from hailstorm.topology.joining import On, Within
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.sql_text import column_named
from hailstorm.topology.stateful import Top
from hailstorm.topology.stateless import Select, Where
from hailstorm.topology.stream import Stream


class Table(Stream):
    """A stream of changes that has a key: at any time, one row per key."""

    @property
    def key(self) -> tuple[str, ...]:
        """The names of the key columns; empty where one state is for all rows."""
        return self.step.key

    def where(self, name: str, predicate: str) -> Table:
        """The rows for which an SQL predicate is true; a row that no longer fits is deleted."""
        at = Location.of_caller()
        text = sql.checked_expression(predicate, name, "filters by", self.step, at).text
        return self.topology.add_table(Where(name, at, (self.name,), self.schema, self.key, True, predicate=text))

    def select(self, name: str, /, *, columns: Mapping[str, str] | None = None, **expressions: str) -> Table:
        """Columns as SQL expressions. The key columns stay, whether or not they are named.

        `columns` takes a dict, for names that are no keywords of Python or are taken.
        """
        at = Location.of_caller()
        made = self._selected(name, columns, expressions, at)
        for column in self.key:
            if column in made and column_named(made[column].text) != column:
                advice = (
                    "The key of a table stays as it is. Select it under another name, or change it before the fold."
                )
                raise mistakes.wrong_argument(
                    name, f"changes '{column}', which is the key of '{self.name}'", advice, at
                )
        keys = tuple(column for column in self.schema if column.name in self.key)
        values = tuple(Column(column, checked.type) for column, checked in made.items() if column not in self.key)
        texts = {column: checked.text for column, checked in made.items()}
        step = Select(name, at, (self.name,), Schema(keys + values), self.key, True, expressions=texts)
        return self.topology.add_table(step)

    def top(
        self,
        name: str,
        n: int,
        *,
        by: str,
        per: str | Sequence[str] | None = None,
        renamed_from: str | None = None,
    ) -> Table:
        """The n rows with the largest `by`, of all or of each group, with their `rank` from 1. Equal ones are ordered
        by key.

        With `per` the key of the result is the group, and then the key of this table.
        """
        at = Location.of_caller()
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise mistakes.wrong_argument(name, f"asks for the top {n!r}", "Ask for a whole number of at least 1.", at)
        text = sql.checked_expression(by, name, "ranks by", self.step, at).text
        checks.check_output_name(name, "rank", self.schema.names, "the table has one, and top adds the rank", at)
        groups = fold_key(name, per, self.step, at, doing="ranks per")
        key = (*groups, *(column for column in self.key if column not in groups))
        keys = tuple(column for wanted in key for column in self.schema if column.name == wanted)
        values = tuple(column for column in self.schema if column.name not in key)
        schema = Schema((*keys, *values, Column("rank", "int")))
        step = Top(name, at, (self.name,), schema, key, True, renamed_from, n=n, by=text, per=groups)
        return self.topology.add_table(step)

    def join(
        self,
        name: str,
        other: Stream,
        *,
        on: On,
        within: Within | None = None,
        how: str = "inner",
        suffix: str = "_right",
        renamed_from: str | None = None,
    ) -> Table:
        """A view of two tables that follows both: on their keys, or from columns of this one to the key of the other.

        `how` is inner, left, right or full; by a foreign key, inner or left. The result has this table's key.
        """
        at = Location.of_caller()
        checks.check_stream(name, other, self.topology, at)
        step = joining.join_of_tables(name, self.step, other.step, on, within, how, suffix, at)
        return self.topology.add_table(replace(step, renamed_from=renamed_from))

    def union(self, name: str, *others: Stream) -> NoReturn:
        """Refused: two tables can hold the same key."""
        raise mistakes.union_of_tables(name, self.name, Location.of_caller())
