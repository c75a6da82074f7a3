"""Streams: handles on the steps of a topology, and the words to declare what reads them.

A handle is its topology and the name of a step. Every method checks what it is given, adds one step and gives the
handle of that step; nothing runs. What flows through a stream are rows; through a `Table` (table.py), changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias, overload

import pyarrow as pa

from hailstorm.algebra.monoid import AnyMonoid
from hailstorm.errors import Location
from hailstorm.topology import checks, joining, mistakes, sql
from hailstorm.topology.durations import milliseconds
from hailstorm.topology.ends import DeliveryMode, Sink
from hailstorm.topology.folding import fold_key, folded_columns
from hailstorm.topology.given import check_gives, check_takes_one
from hailstorm.topology.groupings import Grouping
from hailstorm.topology.joining import On, Within
from hailstorm.topology.other_words import OF_STREAMS, unknown_name
from hailstorm.topology.picture import html_table
from hailstorm.topology.process import Process, checked_outputs, checked_process
from hailstorm.topology.query import checked_query
from hailstorm.topology.row import Row, Rows
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.sql import Expression
from hailstorm.topology.state_fields import own_methods, state_fields
from hailstorm.topology.stateful import Distinct, Fold, Ordered
from hailstorm.topology.stateful import Process as ProcessStep
from hailstorm.topology.stateless import ArrowBolt, Bolt, Select, Sql, Union, Where
from hailstorm.topology.step import OnError, Step
from hailstorm.topology.windows import Windowed, check_has_time, sessions, windowed

if TYPE_CHECKING:
    from hailstorm.clock.windows import Emit, Late
    from hailstorm.sinks.sink import Sink as AnySink
    from hailstorm.topology.table import Table
    from hailstorm.topology.topology import Topology
from hailstorm.types import spark_type

# The columns of dead letters as a stream.
ERRORS = Schema.parse("spout STRING, partition INT, offset BIGINT, step STRING, reason STRING, raw BINARY")

# What a function over Arrow batches returns.
Batches: TypeAlias = "pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch]"


@dataclass(frozen=True, eq=False)
class Stream:
    """A step of a topology, and what can be done with its rows. `storm.spout(...)` gives the first one."""

    topology: Topology
    name: str

    @property
    def step(self) -> Step:
        """What was declared: a frozen value."""
        return self.topology.step(self.name)

    @property
    def schema(self) -> Schema:
        """The columns of the rows; a type is None where only Spark can tell."""
        return self.step.schema

    def _repr_html_(self) -> str:
        step = self.step
        rows = [
            (c.name, spark_type(c.type).shouted if c.type else "?", "key" if c.name in step.key else "")
            for c in step.schema
        ]
        return html_table(("column", "type", ""), rows, f"{step.name}: {step.title}, declared at {step.at.short}")

    if not TYPE_CHECKING:  # for type checkers a wrong name is a mistake

        def __getattr__(self, name):
            raise unknown_name(f"a {type(self).__name__}", name, OF_STREAMS, dir(type(self)), ".")

    @overload
    def bolt(
        self,
        *,
        name: str | None = None,
        returns: str,
        grouping: Grouping | None = None,
        event_time: str | None = None,
        on_error: OnError = "dead-letter",
    ) -> Callable[[Callable[[Row], Rows]], Stream]: ...

    @overload
    def bolt(
        self,
        function: Callable[[Row], Rows],
        *,
        name: str | None = None,
        returns: str,
        grouping: Grouping | None = None,
        event_time: str | None = None,
        on_error: OnError = "dead-letter",
    ) -> Stream: ...

    def bolt(
        self,
        function: Callable[[Row], Rows] | None = None,
        *,
        name: str | None = None,
        returns: str | None = None,
        grouping: Grouping | None = None,
        event_time: str | None = None,
        on_error: OnError = "dead-letter",
    ) -> Stream | Callable[[Callable[[Row], Rows]], Stream]:
        """A Python function over rows, as a decorator or called with the function.

        The function gets a row (`row.text`) and returns or yields dicts with the columns of `returns`, or None for
        no row. It must be pure: it runs again after a crash and in audits. The step has the function's name.

        A row happened when the row that it was made of did, unless `event_time` names a column of `returns` that says
        when. A time that is null there makes a dead letter.
        """
        at = Location.of_caller()

        def declare(function: Callable[[Row], Rows]) -> Stream:
            step_name = str(name or getattr(function, "__name__", "?"))
            if not callable(function):
                raise mistakes.bad_function(step_name, f"got {mistakes.shown(function)}, which is not a function", at)
            if returns is None:
                raise mistakes.bad_function(step_name, "does not say what it returns", at)
            if step_name == "<lambda>":
                advice = 'Give it one: .bolt(lambda row: ..., name="lengths", returns="n INT").'
                raise mistakes.bad_function("lambda", "has no name", at, advice)
            schema = Schema.parse(returns, at)
            check_takes_one(step_name, function, "a row", at)
            check_gives(step_name, function, schema, at)
            step = Bolt(
                step_name,
                at,
                (self.name,),
                schema,
                function=function,
                grouping=self._checked_grouping(step_name, grouping, at),
                event_time=checks.checked_event_time(step_name, event_time, schema, at),
                on_error=checks.checked_on_error(step_name, on_error, at),
            )
            return self.topology.add_stream(step)

        return declare if function is None else declare(function)

    def arrow(
        self,
        name: str,
        function: Callable[[pa.RecordBatch], Batches],
        *,
        returns: str,
        grouping: Grouping | None = None,
        event_time: str | None = None,
        on_error: OnError = "dead-letter",
    ) -> Stream:
        """A function over Arrow record batches; it returns a batch, a table or an iterable of batches.

        When a row happened is what the function passes on of the batch's column `_time`, or what `event_time` names.
        Without either, a batch with as many rows as the given one has their times, row by row; one with another number
        of rows has none, and is refused where a step below goes by time.
        """
        at = Location.of_caller()
        if not callable(function):
            raise mistakes.bad_function(name, f"got {mistakes.shown(function)}, which is not a function", at)
        check_takes_one(name, function, "a batch", at)
        schema = Schema.parse(returns, at)
        step = ArrowBolt(
            name,
            at,
            (self.name,),
            schema,
            function=function,
            grouping=self._checked_grouping(name, grouping, at),
            event_time=checks.checked_event_time(name, event_time, schema, at),
            on_error=checks.checked_on_error(name, on_error, at),
        )
        return self.topology.add_stream(step)

    def sql(self, name: str, query: str) -> Stream:
        """`SELECT ... FROM <this step's name>`: one row at a time, so no aggregates, joins or order."""
        at = Location.of_caller()
        checked = checked_query(query, name, self.step, at)
        return self.topology.add_stream(Sql(name, at, (self.name,), checked.schema, query=checked.text))

    def where(self, name: str, predicate: str) -> Stream:
        """The rows for which an SQL predicate is true."""
        at = Location.of_caller()
        checked = sql.checked_expression(predicate, name, "filters by", self.step, at)
        return self.topology.add_stream(Where(name, at, (self.name,), self.schema, predicate=checked.text))

    def select(self, name: str, /, *, columns: Mapping[str, str] | None = None, **expressions: str) -> Stream:
        """Columns as SQL expressions: `select("loud", word="upper(word)", at="at")`.

        `columns` takes a dict, for names that are no keywords of Python or are taken:
        `select("x", columns={"columns": "n", "my name": "word"})`.
        """
        at = Location.of_caller()
        made = self._selected(name, columns, expressions, at)
        schema = Schema(tuple(Column(column, checked.type) for column, checked in made.items()))
        texts = {column: checked.text for column, checked in made.items()}
        return self.topology.add_stream(Select(name, at, (self.name,), schema, expressions=texts))

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

    def fold(
        self,
        name: str,
        /,
        *,
        by: str | Sequence[str] | None = None,
        ttl: str | None = None,
        columns: Mapping[str, AnyMonoid] | None = None,
        renamed_from: str | None = None,
        **monoids: AnyMonoid,
    ) -> Table:
        """State by key: one column per monoid. Without `by` there is one state for all rows.

        With `ttl="30 days"` a key that was not updated for so long in event time is deleted, also from what is below.

        `renamed_from` is the name that the step had in an earlier run: its state goes on under the new one. Every step
        that keeps state has this word, and so have sinks.

        `columns` takes a dict, for names that are no keywords of Python or are taken:
        `fold("counts", by="word", columns={"by": hs.count()})`.
        """
        at = Location.of_caller()
        key = fold_key(name, by, self.step, at)
        folded = folded_columns(name, key, checks.all_columns(name, columns, monoids, at), self.step, at)
        step = Fold(
            name,
            at,
            (self.name,),
            folded.schema,
            key,
            True,
            renamed_from,
            monoids=folded.monoids,
            ttl_us=self._ttl(name, ttl, at),
        )
        return self.topology.add_table(step)

    def process(
        self, name: str, *, by: str | Sequence[str], using: type[Process], renamed_from: str | None = None
    ) -> Stream:
        """A keyed step in Python: `using` is a subclass of `hs.Process` with typed state and timers.

        Its rows are those that it yields; `output(name)` reads what it yields for a named output.
        """
        at = Location.of_caller()
        if by is None:
            raise mistakes.wrong_argument(name, "has no key", "Say whose state it keeps: by='card'.", at)
        key = fold_key(name, by, self.step, at, doing="keeps state by")
        process = checked_process(name, using, at)
        if "is_late" in self.schema:
            advice = "Give the column another name in a .select(...) before."
            raise mistakes.wrong_argument(name, "reads 'is_late', which an event says of itself", advice, at)
        step = ProcessStep(
            name,
            at,
            (self.name,),
            Schema.parse(process.returns, at),
            renamed_from=renamed_from,
            by=key,
            using=process,
            fields=state_fields(name, getattr(process, "state", None), key, at),
            methods=own_methods(process.state),
            outputs=checked_outputs(name, process, at),
        )
        return self.topology.add_stream(step)

    def distinct(
        self,
        name: str,
        *,
        by: str | Sequence[str] | None = None,
        within: str | None = None,
        renamed_from: str | None = None,
    ) -> Stream:
        """The first row of a key, and then none until `within` has passed in event time since that row.

        A late row of a key that is no longer known is on `.late`: nobody can tell whether it is the first.
        """
        at = Location.of_caller()
        self._check_timed(name, at)
        if by is None:
            raise mistakes.wrong_argument(name, "has no key", "Say what makes rows equal: by='order_id'.", at)
        if within is None:
            advice = (
                "Say for how long a key is remembered: within='1 hour'. Otherwise all of them would be kept for ever."
            )
            raise mistakes.wrong_argument(name, "has no bound", advice, at)
        key = fold_key(name, by, self.step, at, doing="is distinct by")
        span = milliseconds(within, f"within of step '{name}'", at) * 1000
        if not span:
            raise mistakes.bad_duration(f"within of step '{name}'", within, at)
        step = Distinct(name, at, (self.name,), self.schema, renamed_from=renamed_from, by=key, within_us=span)
        return self.topology.add_stream(step)

    def ordered(self, name: str, *, renamed_from: str | None = None) -> Stream:
        """The rows in the order of event time, each once the watermark has reached it; late ones are on `.late`."""
        at = Location.of_caller()
        self._check_timed(name, at)
        return self.topology.add_stream(Ordered(name, at, (self.name,), self.schema, renamed_from=renamed_from))

    def output(self, name: str) -> Stream:
        """The rows that a process yields for one of its named outputs."""
        at = Location.of_caller()
        outputs = self.step.outputs if isinstance(self.step, ProcessStep) else {}
        if name not in outputs:
            known = f"It has: {', '.join(outputs)}." if outputs else "A process has the outputs that its class names."
            raise mistakes.wrong_argument(self.name, f"has no output {name!r}", known, at)
        return self.topology.add_output(self.step, name, outputs[name])

    def table(
        self,
        name: str,
        *,
        key: str | Sequence[str] = (),
        at: str | None = None,
        deletes: str | None = None,
        renamed_from: str | None = None,
    ) -> Table:
        """The newest row of each key, by event time or by the column `at`; of equal times, the later record's.

        A row for which the predicate `deletes` is true removes its key. Rows with a null in the key are dead letters.
        """
        here = Location.of_caller()
        step = joining.newest(name, self.step, key, at, deletes, here)
        return self.topology.add_table(replace(step, renamed_from=renamed_from))

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
    ) -> Stream:
        """Pairs of rows of two streams that are equal in `on` and near in time.

        `within="10 minutes"` is both ways; `within=(before, after)` takes right rows from `before` earlier than the
        left one to `after` later, both ends included. `how` is inner, left, right, full, semi or anti: rows without a
        match come out when the watermark has passed their bound. Rows that come after that are on `.late`.
        """
        at = Location.of_caller()
        checks.check_stream(name, other, self.topology, at)
        step = joining.join_of_streams(name, self.step, other.step, on, within, how, suffix, at)
        for input_name in step.inputs:
            checks.check_timed(name, "joins rows that are near in time", self.topology.unclocked(input_name), at)
        return self.topology.add_stream(replace(step, renamed_from=renamed_from))

    def lookup(
        self,
        name: str,
        table: Table,
        *,
        on: On,
        as_of: str = "latest",
        how: str = "left",
        suffix: str = "_right",
        renamed_from: str | None = None,
    ) -> Stream:
        """The rows with what a table has for them.

        `as_of="latest"` is the table after the tick. `as_of="event time"` is the version that was valid at the row's
        time: the row waits until the watermark has passed it. `how="inner"` drops rows for which the table has none.

        `on=[]` is for small control tables, as rules or thresholds: the table goes to everyone, and each row comes once
        with every row of it.
        """
        at = Location.of_caller()
        checks.check_stream(name, table, self.topology, at)
        step = joining.lookup(name, self.step, table.step, on, as_of, how, suffix, at)
        for input_name in step.inputs if step.by_time else ():
            checks.check_timed(name, "asks for the past", self.topology.unclocked(input_name), at)
        return self.topology.add_stream(replace(step, renamed_from=renamed_from))

    @property
    def late(self) -> Stream:
        """The rows that came too late for this step: for their window, or for the bound of a join."""
        schema = self.step.late_schema
        if schema is None:
            advice = "Rows can be late for windows, joins of streams, look-ups by event time, .distinct and .ordered."
            raise mistakes.wrong_argument(self.name, "has no late rows", advice, Location.of_caller())
        return self.topology.add_output(self.step, "late", schema)

    @property
    def errors(self) -> Stream:
        """The dead letters of this step as rows, each once: `spout, partition, offset, step, reason, raw`.

        They stay in the list of `hailstorm errors` as well, and can be retried from there.
        """
        if not self.step.gives_errors:
            advice = "Spouts and bolts have them. `hailstorm errors` shows those of all steps."
            raise mistakes.wrong_argument(self.name, "has no stream of errors", advice, Location.of_caller())
        return self.topology.add_output(self.step, "errors", ERRORS)

    def window(
        self,
        size: str,
        every: str | None = None,
        *,
        emit: Emit = "updates",
        late: Late = "correct",
        keep: str = "1 day",
        offset: str = "0 seconds",
        zone: str = "UTC",
    ) -> Windowed:
        """Cut the stream into windows of event time: `.window("1 hour", every="5 minutes").fold(...)`.

        Without `every` one window follows the other. They begin at whole multiples since 1970 in `zone`, moved by
        `offset`. `emit="final"` gives each window once, when the watermark has reached its end. Rows that come after
        that correct it for as long as it is kept (`late="correct"`), or go to `.late` (`"side"`), or are counted only
        (`"drop"`).
        """
        return windowed(self, size, every, emit, late, keep, offset, zone, Location.of_caller())

    def session(self, gap: str, *, emit: Emit = "updates", late: Late = "correct", keep: str = "1 day") -> Windowed:
        """Cut each key's rows into sessions: `.session("30 minutes").fold(...)`.

        A session ends when nothing has come for `gap`. A row between two sessions, near enough to both, makes one of
        them.
        """
        return sessions(self, gap, emit, late, keep, Location.of_caller())

    def sink(
        self,
        name: str,
        sink: AnySink,
        *,
        delivery: DeliveryMode = "exactly-once",
        renamed_from: str | None = None,
    ) -> None:
        """Deliver to the outside world. The end of a path: nothing reads a sink.

        `renamed_from` is the name that the sink had in an earlier run: it goes on where that one was.
        """
        at = Location.of_caller()
        checks.check_delivery(name, delivery, at)
        checks.check_has_methods(name, sink, ("open", "deliver"), "sink", "Pass one: hs.Console(), hs.Call(f) ...", at)
        here = self.step
        columns = here.schema, here.key, here.is_table
        self.topology.add(Sink(name, at, (self.name,), *columns, renamed_from, sink=sink, delivery=delivery))

    def _ttl(self, name: str, ttl: str | None, at: Location) -> int | None:
        if ttl is None:
            return None
        self._check_timed(name, at)
        span = milliseconds(ttl, f"ttl of fold '{name}'", at) * 1000
        if not span:
            raise mistakes.bad_duration(f"ttl of fold '{name}'", ttl, at)
        return span

    def _check_timed(self, name: str, at: Location) -> None:
        """Refuse what has no event time, and changes of a table, whose rows have no place in time."""
        if self.step.is_table:
            advice = f"'{self.name}' is a table: turn its changes into a stream with .bolt or .sql first."
            raise mistakes.wrong_argument(name, "reads a table, and takes a stream", advice, at)
        check_has_time(self.topology, name, self.step, at)

    def _checked_grouping(self, name: str, grouping: Grouping | None, at: Location) -> Grouping | None:
        checks.check_grouping(name, grouping, self.name, self.schema, at)
        return grouping

    def _selected(
        self, name: str, columns: Mapping[str, str] | None, expressions: Mapping[str, str], at: Location
    ) -> dict[str, Expression]:
        made = checks.all_columns(name, columns, expressions, at)
        if not made:
            raise mistakes.wrong_argument(
                name, "selects nothing", 'Name the columns: select("x", word="upper(word)").', at
            )
        for column in made:
            checks.check_output_name(name, column, (), "", at)
        return {column: sql.checked_expression(text, name, "selects", self.step, at) for column, text in made.items()}
