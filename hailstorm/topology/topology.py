"""The topology: the graph that a user declares. Building one runs nothing and needs no Spark.

`Topology.spout` begins it; the methods of `Stream` and `Table` add the other steps. `engine` and `cli` read
`steps`, `settings` and `folder`, after `validate()`.
"""

from __future__ import annotations

import copy
import importlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

from hailstorm.errors import Location
from hailstorm.topology import checks, mistakes
from hailstorm.topology.durations import milliseconds
from hailstorm.topology.graph import Graph
from hailstorm.topology.joining import checked_deletes, key_first, table_key
from hailstorm.topology.other_words import OF_TOPOLOGIES, unknown_name
from hailstorm.topology.schema import Schema
from hailstorm.topology.settings import SettingKeywords, Settings
from hailstorm.topology.step import Decode, Newest, OnError, Output, Process, Sink, SourceTable, Spout, Step
from hailstorm.topology.stream import Stream
from hailstorm.topology.table import Table

if TYPE_CHECKING:
    from hailstorm.engine.progress import Progress, Retried, Summary
    from hailstorm.history.audit import AuditedSteps
    from hailstorm.history.looking_back import Looked
    from hailstorm.history.one_record import Record
    from hailstorm.history.planning import Planned
    from hailstorm.history.replay import Replayed
    from hailstorm.history.rewind import Rewinding
    from hailstorm.history.trace import Trace
    from hailstorm.spouts.source import Source


class Topology:
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
        if not any(isinstance(step, Spout) for step in self.steps):
            raise mistakes.no_spout(self.name, self.at)
        for step in self.steps:
            is_end = isinstance(step, Sink | Output | Process) or (step.is_table and step.keeps_state)
            if not is_end and not self.consumers(step.name):
                raise mistakes.no_consumer(step.name, step.kind, step.at)
        checks.check_renamed(self.steps)

    def graph(self) -> Graph:
        """The picture: `.text()`, `.mermaid()`, `.dot()`, `.json()`; in a notebook it shows itself."""
        return Graph.of_steps(self.name, self.steps)

    def run(
        self,
        *,
        ledger: str | Path | None = None,
        until: str = "never",
        complete: bool = False,
        every: str | None = None,
        master: str | None = None,
        conf: Mapping[str, str] | None = None,
        accept: Sequence[str] = (),
        recompute: Sequence[str] = (),
        backfill: Sequence[str] = (),
        on_data_loss: Literal["fail", "continue"] = "fail",
        on_progress: Callable[[Progress], None] | None = None,
        stop: threading.Event | None = None,
        standby: bool = False,
    ) -> Summary:
        """Run until stopped (Ctrl-C), as `hailstorm run app.py` does, with its progress. Gives what was done.

        `ledger` is where the state is kept, if not where the topology says. `until` is `"never"`, `"caught-up"` (with
        the logs as they end now) or a clock as JSON. `complete` says that there will be no more than that: all that
        waits for time is done at the end. `every` is the least time from one tick to the next: `"1s"`.
        `master` and `conf` are Spark's. `accept` names steps whose change is accepted with the state that they have,
        `recompute` those whose state is made again first, and `backfill` those that get their past beside the run.
        `on_data_loss="continue"` goes on where records are gone before they were read. `on_progress` is called for
        every tick, and then nothing is printed. Setting `stop` ends the run after its tick. With `standby` it waits
        while another driver has the ledger, and takes over from it. Raises HailstormError.

        When a sink has not got everything at the end, a script ends with exit code 3, as the command does; at a
        prompt, and with `on_progress`, `undelivered` of the answer says so.
        """
        watching = {} if on_progress is None else {"on_progress": on_progress}
        # Running needs Spark and the topology does not, so it comes in only now.
        summary: Summary = importlib.import_module("hailstorm.cli.run").run_in_script(
            self,
            ledger=ledger,
            until=until,
            complete=complete,
            every=every,
            master=master,
            conf=conf,
            accept=tuple(accept),
            recompute=tuple(recompute),
            backfill=tuple(backfill),
            on_data_loss=on_data_loss,
            stop=stop,
            standby=standby,
            **watching,
        )
        return summary

    def rewind(
        self,
        to: int | str | datetime,
        *,
        ledger: str | Path | None = None,
        append: Literal["refuse", "keep"] = "refuse",
        accept: Sequence[str] = (),
        on_data_loss: Literal["fail", "continue"] = "fail",
        steps: Sequence[str] = (),
        dry_run: bool = False,
    ) -> Rewinding:
        """Go back to an earlier moment, as `hailstorm rewind app.py --to WHEN --yes` does. Gives what was done, or with
        `dry_run` what would be done.

        `to` is a commit's number, the name of a snapshot, a clock as JSON, a time, or `"latest-5"`. `append="keep"`
        leaves sinks of streams with the rows that they have got since; they get those again. `accept` names steps whose
        code has changed since then. With `steps`, only these and all below them go back, and get again what was read
        since; `append` and `on_data_loss` say nothing then. The topology must not be running. Raises HailstormError.
        """
        if steps:
            some = importlib.import_module("hailstorm.history.rewind_steps")
            of_steps: Rewinding = (
                some.look_back_at_steps(self, to, tuple(steps), ledger)
                if dry_run
                else some.rewind_steps(self, to, tuple(steps), ledger=ledger, accept=tuple(accept))
            )
            return of_steps
        history = importlib.import_module("hailstorm.history.rewind")
        if dry_run:
            found: Rewinding = history.look_back_at(self, to, ledger)
            return found
        done: Rewinding = history.rewind_topology(
            self, to, ledger=ledger, append=append, accept=tuple(accept), on_data_loss=on_data_loss
        )
        return done

    def backfill(
        self,
        step: str,
        *,
        since: int | str | datetime | None = None,
        from_files: str | Path | Mapping[str, str | Path] | None = None,
        on_data_loss: Literal["fail", "continue"] = "fail",
        ledger: str | Path | None = None,
    ) -> Summary:
        """Give a step that was added later, and what is below it, the past that the logs hold, as `hailstorm backfill
        app.py STEP` does: not from their beginning, but from `since` on, if that is said.

        `from_files` is where records are that the log no longer has: files of Parquet or JSON Lines with `_partition`,
        `_offset` and the spout's columns, which end where the log begins. By spout, where the step has several.
        `on_data_loss="continue"` goes on without offsets that neither have. The topology must not be running. Raises
        HailstormError.
        """
        files = {"": from_files} if isinstance(from_files, str | Path) else from_files or {}
        history = importlib.import_module("hailstorm.history.backfill")
        summary: Summary = history.backfill_topology(
            self,
            step,
            since=since,
            from_files={spout: str(path) for spout, path in files.items()},
            on_data_loss=on_data_loss,
            ledger=ledger,
        )[1]
        return summary

    def plan(self, *, ledger: str | Path | None = None) -> Planned:
        """What has changed since the last run, step by step, and what each choice would cost, as `hailstorm plan`
        shows it. Changes nothing. Raises HailstormError when the topology has never run."""
        planning = importlib.import_module("hailstorm.history.planning")
        found: Planned = planning.plan_topology(self, ledger)
        return found

    def retry(self, *, accept: Sequence[str] = (), ledger: str | Path | None = None) -> Retried:
        """Run the dead letters through the corrected topology and merge what they give, as `hailstorm errors --retry`
        does; rows that sinks rejected are offered to them again. What fails again stays a dead letter.

        `accept` names steps whose change is accepted with the state that they have. The topology must not be running.
        Raises HailstormError.
        """
        engine = importlib.import_module("hailstorm.engine.run")
        done: Retried = engine.retry_errors(self, ledger=ledger, accept=tuple(accept))
        return done

    def resend(self, sink: str, *, ledger: str | Path | None = None) -> Summary:
        """Give a table's sink the whole table again, in place of whatever its target holds, as `hailstorm resend` does.
        `undelivered` of the answer says whether it has got all of it. The topology must not be running."""
        engine = importlib.import_module("hailstorm.engine.run")
        summary: Summary = engine.resend_table(self, sink, ledger=ledger)
        return summary

    def audit(
        self,
        *steps: str,
        at: int | str | datetime | None = None,
        since: int | str | datetime | None = None,
        keys: str | None = None,
        ledger: str | Path | None = None,
    ) -> AuditedSteps:
        """Compute the state of these steps, or of all, once more from the logs, and compare it with the ledger, as
        `hailstorm audit app.py` does. Works beside a run.

        `at` is the moment that is audited. With `since` the state of then is believed, and what came later is computed.
        `keys` compares only keys in a range of the first key column: `"a..f"`, `"100.."`, `"..99"`.
        """
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: AuditedSteps = looking_back.audit(self, steps=steps, at=at, since=since, keys=keys, ledger=ledger)
        return found

    def replay(
        self,
        since: int | str | datetime,
        until: int | str | datetime | None = None,
        *,
        ledger: str | Path | None = None,
    ) -> Replayed:
        """Run the commits after `since`, up to `until`, again, and compare with what was committed."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: Replayed = looking_back.replay(self, since=since, until=until, ledger=ledger)
        return found

    def trace(self, record: str, *, ledger: str | Path | None = None) -> Trace:
        """What became of one record, `"tweets/0@1200"`: its tuples, the keys it changed, and what left for sinks."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: Trace = looking_back.trace(self, record, ledger=ledger)
        return found

    def state(self, step: str, at: int | str | datetime | None = None, *, ledger: str | Path | None = None) -> Looked:
        """A step's state now, or at any moment, as `hailstorm state app.py STEP --at WHEN` gives it: `.arrow()`,
        `.pandas()`, `.polars()`. Works beside a run.

        `at` is a commit's number, the name of a snapshot, a clock as JSON, a record (`"tweets/0@1200"`: just after it
        was read), a time, or `"latest-5"`. Between two commits that are kept, the rest is run again with the code of
        now; a warning says which steps have changed since. Raises HailstormError.
        """
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: Looked = looking_back.state(self, step, at=at, ledger=ledger)
        return found

    def diff(
        self,
        step: str,
        a: int | str | datetime,
        b: int | str | datetime | None = None,
        *,
        ledger: str | Path | None = None,
    ) -> Looked:
        """What changed in a step from one moment to another, as `hailstorm diff app.py STEP A B` gives it."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: Looked = looking_back.diff(self, step, a, b, ledger=ledger)
        return found

    def trace_key(
        self,
        step: str,
        /,
        *,
        since: int | str | datetime = 0,
        until: int | str | datetime | None = None,
        ledger: str | Path | None = None,
        **key: Any,
    ) -> tuple[Record, ...]:
        """The records that made a key of a step, as `hailstorm trace --key` finds them: `storm.trace_key("counts",
        word="rain")`. Of those that were read after the moment `since`, up to `until`."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: tuple[Record, ...] = looking_back.makers(self, step, key, since=since, until=until, ledger=ledger)
        return found

    def trace_output(self, sink: str, commit: int, row: int, *, ledger: str | Path | None = None) -> tuple[Record, ...]:
        """The records that made a row of a sink's outbox, in one commit, as `hailstorm trace --output` finds them."""
        looking_back = importlib.import_module("hailstorm.history.looking_back")
        found: tuple[Record, ...] = looking_back.makers_of_output(self, sink, commit, row, ledger=ledger)
        return found

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
