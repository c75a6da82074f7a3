"""The topology: the graph that a user declares. Building one runs nothing and needs no Spark.

`Topology.spout` begins it; the methods of `Stream` and `Table` add the other steps. `engine` and `cli` read
`steps`, `settings` and `folder`, after `validate()`.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes
from hailstorm.topology.durations import milliseconds
from hailstorm.topology.graph import Graph
from hailstorm.topology.schema import Schema
from hailstorm.topology.settings import Settings
from hailstorm.topology.step import Fold, OnError, Sink, Spout, Step, Top
from hailstorm.topology.stream import Stream
from hailstorm.topology.table import Table

_TIMES = ("timestamp", "timestamp_ntz", "date")


class Topology:
    """`storm = hs.Topology("trending")`. Settings are keywords: see `settings.py`.

    `folder` is the app file's: relative paths of logs, sinks and the ledger are taken from there.
    """

    def __init__(self, name: str, ledger: str | Path | None = None, **settings: Any) -> None:
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

    def ledger_path(self, given: str | Path | None = None) -> Path:
        """Where the ledger is: as told, else as the topology says, else `.hailstorm/<name>` beside the app file."""
        if given is not None:
            return Path(given)
        return self.folder / (self.ledger if self.ledger is not None else f".hailstorm/{self.name}")

    def spout(
        self,
        name: str,
        source: Any,
        *,
        schema: str | None = None,
        decode: str | Callable[[bytes], Any] = "json",
        event_time: str | None = None,
        lateness: str = "0 seconds",
        idle: str | None = None,
        on_error: OnError = "dead-letter",
    ) -> Stream:
        """Read a log. `schema` may be left out when the source knows its columns.

        `event_time` names the column that says when a row happened; without it, that is the record's own time.
        Rows may come up to `lateness` out of order; a partition that is silent for `idle` holds nothing back.
        """
        at = Location.of_caller()
        advice = 'Pass one: hs.Log("data/tweets"), hs.Files("data/*.csv"), hs.Rate(...).'
        checks.check_has_methods(name, source, ("earliest", "latest", "read"), "source", advice, at)
        if not (isinstance(decode, str) or callable(decode)):
            raise mistakes.bad_option(name, "decode", decode, ("json", "a function from bytes to a dict"), at)
        columns = self._spout_schema(name, source, schema, at)
        if event_time is not None:
            checks.check_columns(f"spout '{name}' takes its event time from", (event_time,), name, columns, at)
            if columns.type_of(event_time) not in _TIMES:
                why = f"takes its event time from '{event_time}', which is not a TIMESTAMP"
                raise mistakes.wrong_argument(name, why, f"'{name}' has: {columns}", at)
        step = Spout(
            name,
            at,
            (),
            columns,
            source=source,
            decode=decode,
            event_time=event_time,
            lateness_ms=milliseconds(lateness, f"lateness of spout '{name}'", at),
            idle_ms=None if idle is None else milliseconds(idle, f"idle of spout '{name}'", at),
            on_error=checks.checked_on_error(name, on_error, at),
        )
        return self.add_stream(step)

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step, after all steps that it reads: `add` sees to it that the order of declaration is one."""
        return tuple(self._steps.values())

    def step(self, name: str) -> Step:
        if name not in self._steps:
            raise mistakes.unknown_step(name, self._steps, self.name, Location.of_caller())
        return self._steps[name]

    def consumers(self, name: str) -> tuple[Step, ...]:
        return tuple(step for step in self.steps if name in step.inputs)

    def add(self, step: Step) -> Step:
        """Add a step; `Stream` and `Table` call this, people call those."""
        checks.check_name(f"a {step.kind}", step.name, step.at)
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
        return Stream(self, self.add(step).name)

    def add_table(self, step: Step) -> Table:
        return Table(self, self.add(step).name)

    def with_steps(self, change: Callable[[Step], Step]) -> Topology:
        """The same topology with every step replaced: the engine resolves paths so, and the test kit its logs."""
        changed = copy.copy(self)
        changed._steps = {name: change(step) for name, step in self._steps.items()}
        return changed

    def validate(self) -> None:
        """What only the whole topology can tell. Raises TopologyError; the engine calls it before a run."""
        if not any(isinstance(step, Spout) for step in self.steps):
            raise mistakes.no_spout(self.name, self.at)
        for step in self.steps:
            if not isinstance(step, (Fold, Top, Sink)) and not self.consumers(step.name):
                raise mistakes.no_consumer(step.name, step.kind, step.at)

    def graph(self) -> Graph:
        return Graph.of_steps(self.name, self.steps)

    def run(self, **options: Any) -> Any:
        """Run until stopped: what `hailstorm run app.py` does. Options are those of `engine.run.run_topology`."""
        # The engine needs Spark and the topology does not, so it comes in only now.
        return importlib.import_module("hailstorm.engine.run").run_topology(self, **options)

    def _spout_schema(self, name: str, source: Any, schema: str | None, at: Location) -> Schema:
        own = source.columns
        if schema is None and own is None:
            raise mistakes.no_schema(name, "has no schema", at)
        declared = Schema.parse(own if schema is None else schema, at)
        if own is not None and schema is not None and declared != Schema.parse(own, at):
            raise mistakes.no_schema(name, f"declares columns that its source does not have; it has: {own}", at)
        return declared
