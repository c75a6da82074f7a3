"""The topology: the graph that a user declares. Building one runs nothing and needs no Spark.

`Topology.spout` begins it; the methods of `Stream` and `Table` add the other steps. `engine` and `cli` read
`steps`, `settings` and `folder`, after `validate()`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes
from hailstorm.topology.durations import milliseconds
from hailstorm.topology.ends import Decode, Sink, SourceTable, Spout
from hailstorm.topology.graph import Graph
from hailstorm.topology.joining import checked_deletes, key_first, table_key
from hailstorm.topology.operations import Operations
from hailstorm.topology.other_words import OF_TOPOLOGIES, unknown_name
from hailstorm.topology.schema import Schema
from hailstorm.topology.settings import SettingKeywords, Settings
from hailstorm.topology.stateful import Newest
from hailstorm.topology.stateless import Output
from hailstorm.topology.step import OnError, Step
from hailstorm.topology.stream import Stream
from hailstorm.topology.table import Table

if TYPE_CHECKING:
    from hailstorm.sinks.sink import Sink as AnySink
    from hailstorm.spouts.source import Source


class Topology(Operations):
    """`storm = hs.Topology("trending")`. Settings are keywords: see `settings.py`.

    `folder` is the app file's: relative paths of logs, sinks and the ledger are taken from there.
    """

    def __init__(self, name: str, ledger: str | Path | None = None, **settings: Unpack[SettingKeywords]) -> None:
        self.at = Location.of_caller()
        checks.check_name("a topology", name, self.at)
        self.name = name
        self.ledger = ledger
        self.settings = Settings.from_options(settings, self.at)
        file = Path(self.at.file)
        self.folder = file.resolve().parent if file.is_file() else Path.cwd()
        self._steps: dict[str, Step] = {}

    def __repr__(self) -> str:
        return f"Topology({self.name!r}, {len(self._steps)} steps)"

    def _repr_html_(self) -> str:
        return f"<p><b>{self.name}</b></p>{self.graph().svg()}"

    if not TYPE_CHECKING:  # for type checkers a wrong name is a mistake

        def __getattr__(self, name):
            raise unknown_name("a Topology", name, OF_TOPOLOGIES, dir(type(self)), ".")

    def ledger_address(self, given: str | Path | None = None) -> str:
        """Where the ledger is: as told, else as the topology says, else `.hailstorm/<name>` beside the app file."""
        if given is not None:
            return str(given)
        if self.ledger is not None and "://" in str(self.ledger):
            return str(self.ledger)
        return str(self.folder / (self.ledger if self.ledger is not None else f".hailstorm/{self.name}"))

    def spout(
        self,
        name: str,
        source: Source,
        *,
        schema: str | None = None,
        decode: Decode = "json",
        event_time: str | None = None,
        lateness: str = "0 seconds",
        idle: str | None = None,
        max_ahead: str = "1 day",
        on_error: OnError = "dead-letter",
    ) -> Stream:
        """Read a log. `schema` may be left out when the source knows its columns.

        `event_time` names the column that says when a row happened; without it, that is the record's own time.
        Rows may come up to `lateness` out of order; a partition that is silent for `idle` holds nothing back. A row
        that claims to be more than `max_ahead` past the wall clock is a dead letter, or it would push the watermark
        away for good.
        """
        at = Location.of_caller()
        step = Spout(
            name,
            at,
            (),
            self._spout_schema(name, source, schema, at),
            source=source,
            **self._reading(name, decode, event_time, lateness, idle, max_ahead, on_error, at),
        )
        checks.checked_event_time(name, event_time, step.schema, at)
        return self.add_stream(step)

    def table(
        self,
        name: str,
        source: Source,
        *,
        schema: str | None = None,
        key: str | Sequence[str] = (),
        decode: Decode = "json",
        deletes: str | None = None,
        event_time: str | None = None,
        lateness: str = "0 seconds",
        idle: str | None = None,
        max_ahead: str = "1 day",
        on_error: OnError = "dead-letter",
    ) -> Table:
        """Read a log as a table: the newest record of each key, by event time; of equal times, the later record.

        A record for which the predicate `deletes` is true removes its key, as does a Kafka record without a value:
        then the key columns come from its key. Records with a null in the key are dead letters. The other words are
        those of `spout`.
        """
        at = Location.of_caller()
        records = self._spout_schema(name, source, schema, at)
        step = SourceTable(
            name,
            at,
            (),
            records,
            is_table=True,
            source=source,
            records=records,
            deletes=None,
            **self._reading(name, decode, event_time, lateness, idle, max_ahead, on_error, at),
        )
        checks.checked_event_time(name, event_time, step.schema, at)
        columns = table_key(name, key, step, at)
        gone = checked_deletes(name, deletes, step, at)
        return self.add_table(
            replace(step, schema=key_first(name, step.schema, columns, at), key=columns, deletes=gone)
        )

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step, after all steps that it reads: `add` sees to it that the order of declaration is one."""
        return tuple(self._steps.values())

    @property
    def spouts(self) -> tuple[Spout, ...]:
        """Where rows come in, tables that are read from logs among them."""
        return tuple(step for step in self.steps if isinstance(step, Spout))

    @property
    def sinks(self) -> tuple[Sink, ...]:
        """Where rows go out."""
        return tuple(step for step in self.steps if isinstance(step, Sink))

    @property
    def givers(self) -> tuple[str, ...]:
        """The names of the steps whose rows others can read: all but the sinks."""
        return tuple(step.name for step in self.steps if step.gives_rows)

    def step(self, name: str) -> Step:
        """The step of this name. Raises TopologyError with what there is."""
        if name not in self._steps:
            raise mistakes.unknown_step(name, self._steps, self.name, Location.of_caller())
        return self._steps[name]

    def consumers(self, name: str) -> tuple[Step, ...]:
        """The steps that read this one, in the order of declaration."""
        return tuple(step for step in self.steps if name in step.inputs)

    def timeless(self, name: str) -> tuple[str, ...]:
        """The spouts whose records have no event time, and from which the rows of a step would have theirs."""
        step = self.step(name)
        if isinstance(step, Newest) and step.time is not None:
            return ()
        if isinstance(step, Spout):
            return () if step.has_time else (name,)
        return tuple(dict.fromkeys(spout for above in step.clocked_by for spout in self.timeless(above)))

    def unclocked(self, name: str) -> tuple[str, ...]:
        """The spouts whose records have no event time, and on which the watermark of a step waits: it has none."""
        step = self.step(name)
        if isinstance(step, Spout):
            return () if step.has_time else (name,)
        return tuple(dict.fromkeys(spout for above in step.clocked_by for spout in self.unclocked(above)))

    def add(self, step: Step) -> Step:
        """Add a step; `Stream` and `Table` call this, people call those."""
        if not isinstance(step, Output):  # whose name is made of its step's and its own, with a dot
            checks.check_name(f"a {step.kind}", step.name, step.at)
        if step.renamed_from is not None:
            checks.check_name(f"step '{step.name}' was", step.renamed_from, step.at)
        if step.name in self._steps:
            numbers = (f"{step.name}_{number}" for number in range(2, len(self._steps) + 3))
            better = next(name for name in numbers if name not in self._steps)
            raise mistakes.duplicate_name(step.name, self._steps[step.name].at, better, step.at)
        for name in step.inputs:
            if name not in self._steps:
                raise mistakes.undeclared_input(step.name, name, step.at)
        self._steps[step.name] = step
        return step

    def add_stream(self, step: Step) -> Stream:
        """Add a step out of which rows flow."""
        return Stream(self, self.add(step).name)

    def add_output(self, step: Step, output: str, schema: Schema) -> Stream:
        """The named output of a step; the same one, however often it is asked for."""
        name = f"{step.name}.{output}"
        if name in self._steps:
            return Stream(self, name)
        return self.add_stream(Output(name, step.at, (step.name,), schema))

    def add_table(self, step: Step) -> Table:
        """Add a step out of which changes flow."""
        return Table(self, self.add(step).name)

    def with_steps(self, change: Callable[[Step], Step]) -> Topology:
        """The same topology with every step replaced: the engine resolves paths so, and the test kit its logs."""
        changed = copy.copy(self)
        changed._steps = {name: change(step) for name, step in self._steps.items()}
        return changed

    def with_sources(self, source: Callable[[Spout], Source]) -> Topology:
        """The same topology with its spouts reading something else."""
        return self.with_steps(lambda one: replace(one, source=source(one)) if isinstance(one, Spout) else one)

    def of_records(self) -> Topology:
        """The same topology with spouts where it reads tables from logs."""
        return self.with_steps(lambda one: one.of_records() if isinstance(one, SourceTable) else one)

    def with_sinks(self, sink: Callable[[Sink], AnySink]) -> Topology:
        """The same topology that delivers to something else."""
        return self.with_steps(lambda one: replace(one, sink=sink(one)) if isinstance(one, Sink) else one)

    def only(self, names: Iterable[str]) -> Topology:
        """The same topology with these steps and all that they read, and no others."""
        wanted = set(names)
        for step in reversed(self.steps):
            if step.name in wanted:
                wanted.update(step.inputs)
        part = copy.copy(self)
        part._steps = {name: step for name, step in self._steps.items() if name in wanted}
        return part

    def validate(self) -> None:
        """What only the whole topology can tell. Raises TopologyError; the engine calls it before a run."""
        if not self.spouts:
            raise mistakes.no_spout(self.name, self.at)
        for step in self.steps:
            if not step.is_end and not self.consumers(step.name):
                raise mistakes.no_consumer(step.name, step.kind, step.at)
        checks.check_renamed(self.steps)

    def graph(self) -> Graph:
        """The picture: `.text()`, `.mermaid()`, `.dot()`, `.json()`; in a notebook it shows itself."""
        return Graph.of_steps(self.name, self.steps)

    def _reading(
        self,
        name: str,
        decode: Decode,
        event_time: str | None,
        lateness: str,
        idle: str | None,
        max_ahead: str,
        on_error: OnError,
        at: Location,
    ) -> dict[str, Any]:
        """How a log is read, checked."""
        if not (isinstance(decode, str) or callable(decode)):
            raise mistakes.bad_option(name, "decode", decode, ("json", "a function from bytes to a dict"), at)
        return {
            "decode": decode,
            "event_time": event_time,
            "lateness_ms": milliseconds(lateness, f"lateness of spout '{name}'", at),
            "idle_ms": None if idle is None else milliseconds(idle, f"idle of spout '{name}'", at),
            "max_ahead_ms": milliseconds(max_ahead, f"max_ahead of spout '{name}'", at),
            "on_error": checks.checked_on_error(name, on_error, at),
        }

    def _spout_schema(self, name: str, source: Source, schema: str | None, at: Location) -> Schema:
        advice = 'Pass one: hs.Log("data/tweets"), hs.Files("data/*.csv"), hs.Rate(...).'
        checks.check_has_methods(name, source, ("earliest", "latest", "read"), "source", advice, at)
        own = source.columns
        wanted = own if schema is None else schema
        if wanted is None:
            raise mistakes.no_schema(name, "has no schema", at)
        declared = Schema.parse(wanted, at)
        if own is not None and declared != Schema.parse(own, at):
            raise mistakes.no_schema(name, f"declares columns that its source does not have; it has: {own}", at)
        return declared
