"""Streams: handles on the steps of a topology, and the words to declare what reads them.

A handle is its topology and the name of a step. Every method checks what it is given, adds one step and gives the
handle of that step; nothing runs. What flows through a stream are rows; through a `Table` (table.py), changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from hailstorm.algebra.monoid import AnyMonoid
from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes, sql
from hailstorm.topology.folding import fold_key, fold_schema
from hailstorm.topology.groupings import Grouping
from hailstorm.topology.query import query_schema
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.step import ArrowBolt, Bolt, DeliveryMode, Fold, OnError, Select, Sink, Sql, Step, Union, Where

if TYPE_CHECKING:
    from hailstorm.topology.table import Table
    from hailstorm.topology.topology import Topology


@dataclass(frozen=True, eq=False)
class Stream:
    topology: Topology
    name: str

    @property
    def step(self) -> Step:
        return self.topology.step(self.name)

    @property
    def schema(self) -> Schema:
        return self.step.schema

    @overload
    def bolt(
        self,
        *,
        name: str | None = None,
        returns: str,
        grouping: Grouping | None = None,
        on_error: OnError = "dead-letter",
    ) -> Callable[[Callable[[Any], Any]], Stream]: ...

    @overload
    def bolt(
        self,
        function: Callable[[Any], Any],
        *,
        name: str | None = None,
        returns: str,
        grouping: Grouping | None = None,
        on_error: OnError = "dead-letter",
    ) -> Stream: ...

    def bolt(
        self,
        function: Callable[[Any], Any] | None = None,
        *,
        name: str | None = None,
        returns: str | None = None,
        grouping: Grouping | None = None,
        on_error: OnError = "dead-letter",
    ) -> Stream | Callable[[Callable[[Any], Any]], Stream]:
        """A Python function over rows, as a decorator or called with the function.

        The function gets a row (`row.text`) and returns or yields dicts with the columns of `returns`, or None for
        no row. It must be pure: it runs again after a crash and in audits. The step has the function's name.
        """
        at = Location.of_caller()

        def declare(function: Callable[[Any], Any]) -> Stream:
            step_name = str(name or getattr(function, "__name__", "?"))
            if not callable(function):
                raise mistakes.bad_function(step_name, f"got {mistakes.shown(function)}, which is not a function", at)
            if returns is None:
                raise mistakes.bad_function(step_name, "does not say what it returns", at)
            if step_name == "<lambda>":
                advice = 'Give it one: .bolt(lambda row: ..., name="lengths", returns="n INT").'
                raise mistakes.bad_function("lambda", "has no name", at, advice)
            step = Bolt(
                step_name,
                at,
                (self.name,),
                Schema.parse(returns, at),
                function=function,
                grouping=self._checked_grouping(step_name, grouping, at),
                on_error=checks.checked_on_error(step_name, on_error, at),
            )
            return self.topology.add_stream(step)

        return declare if function is None else declare(function)

    def arrow(
        self,
        name: str,
        function: Callable[[Any], Any],
        *,
        returns: str,
        grouping: Grouping | None = None,
        on_error: OnError = "dead-letter",
    ) -> Stream:
        """A function over Arrow record batches; it returns a batch, a table or an iterable of batches."""
        at = Location.of_caller()
        if not callable(function):
            raise mistakes.bad_function(name, f"got {mistakes.shown(function)}, which is not a function", at)
        step = ArrowBolt(
            name,
            at,
            (self.name,),
            Schema.parse(returns, at),
            function=function,
            grouping=self._checked_grouping(name, grouping, at),
            on_error=checks.checked_on_error(name, on_error, at),
        )
        return self.topology.add_stream(step)

    def sql(self, name: str, query: str) -> Stream:
        """`SELECT ... FROM <this step's name>`: one row at a time, so no aggregates, joins or order."""
        at = Location.of_caller()
        schema = query_schema(query, name, self.step, at)
        return self.topology.add_stream(Sql(name, at, (self.name,), schema, query=query))

    def where(self, name: str, predicate: str) -> Stream:
        """The rows for which an SQL predicate is true."""
        at = Location.of_caller()
        sql.check_expression(predicate, name, "filters by", self.step, at)
        return self.topology.add_stream(Where(name, at, (self.name,), self.schema, predicate=predicate))

    def select(self, name: str, **expressions: str) -> Stream:
        """Columns as SQL expressions: `select("loud", word="upper(word)", at="at")`."""
        at = Location.of_caller()
        columns = self._selected(name, expressions, at)
        step = Select(name, at, (self.name,), Schema(columns), expressions=dict(expressions))
        return self.topology.add_stream(step)

    def union(self, name: str, *others: Stream) -> Stream:
        """The rows of this stream and of others with the same columns, in any order."""
        at = Location.of_caller()
        if not others:
            raise mistakes.wrong_argument(name, "unites one stream only", "Pass the others, too.", at)
        for stream in (self, *others):
            if not isinstance(stream, Stream):
                advice = "A union takes streams: a.union('both', b)."
                raise mistakes.wrong_argument(name, f"got {mistakes.shown(stream)}, which is not a stream", advice, at)
            if stream.topology is not self.topology:
                raise mistakes.other_topology(name, stream.name, at)
            if stream.step.is_table:
                raise mistakes.union_of_tables(name, stream.name, at)
            if not self.schema.fits(stream.schema):
                raise mistakes.different_schemas(name, self.name, self.schema, stream.name, stream.schema, at)
        inputs = tuple(stream.name for stream in (self, *others))
        return self.topology.add_stream(Union(name, at, inputs, self.schema))

    def fold(self, name: str, *, by: str | Sequence[str] | None = None, **monoids: AnyMonoid) -> Table:
        """State by key: one column per monoid. Without `by` there is one state for all rows."""
        at = Location.of_caller()
        key = fold_key(name, by, self.step, at)
        schema = fold_schema(name, key, monoids, self.step, at)
        step = Fold(name, at, (self.name,), schema, key, True, monoids=dict(monoids))
        return self.topology.add_table(step)

    def sink(self, name: str, sink: Any, *, delivery: DeliveryMode = "exactly-once") -> None:
        """Deliver to the outside world. The end of a path: nothing reads a sink."""
        at = Location.of_caller()
        checks.check_delivery(name, delivery, at)
        checks.check_has_methods(name, sink, ("open", "deliver"), "sink", "Pass one: hs.Console(), hs.Call(f) ...", at)
        here = self.step
        self.topology.add(
            Sink(name, at, (self.name,), here.schema, here.key, here.is_table, sink=sink, delivery=delivery)
        )

    def _checked_grouping(self, name: str, grouping: Grouping | None, at: Location) -> Grouping | None:
        checks.check_grouping(name, grouping, self.name, self.schema, at)
        return grouping

    def _selected(self, name: str, expressions: dict[str, str], at: Location) -> tuple[Column, ...]:
        if not expressions:
            raise mistakes.wrong_argument(
                name, "selects nothing", 'Name the columns: select("x", word="upper(word)").', at
            )
        for column in expressions:
            checks.check_output_name(name, column, (), "", at)
        return tuple(
            Column(column, sql.check_expression(text, name, "selects", self.step, at))
            for column, text in expressions.items()
        )
