"""Trace: the tuple tree of one record. What every step made of it, which keys it changed, and what left for sinks.

The record is run alone, from what was live before the tick that read it, with its `now` and watermarks, to nowhere.
What was due in that tick is left out: it did not come from the record. So `before` is the state before the tick, and
`after` what this record alone makes of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Interval
from hailstorm.clock.watermark import END
from hailstorm.engine.advance import Outcome, Work
from hailstorm.engine.place import nowhere
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.taps import tapped
from hailstorm.engine.ticks.attempts import Attempts
from hailstorm.engine.ticks.logs import Logs
from hailstorm.errors import LedgerError, suggestion
from hailstorm.history.beginning import live_before
from hailstorm.history.changed_code import changed_code
from hailstorm.history.changed_keys import changed_keys
from hailstorm.history.committed import Committed, committed_between
from hailstorm.history.one_record import Record, refuse_unread
from hailstorm.history.rerun import Rerun, Tell, silent
from hailstorm.history.scratch import scratch_ledger
from hailstorm.ledger.commit import Commit
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import State
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import Store, read_table
from hailstorm.sinks.values import python_rows
from hailstorm.topology.picture import html_table
from hailstorm.topology.topology import Topology

Row = dict[str, Any]


@dataclass(frozen=True)
class Event:
    """One thing that happened to the record at a step: a tuple came out, a key changed, a row left, or one was refused.

    Of a key, `row` is the key. Of a tuple of a table, it has `_kind` and `_old`.
    """

    step: str
    what: str  # tuple, key, output or letter
    row: Row
    before: Row | None = None
    after: Row | None = None

    def json(self) -> Row:
        """What `hailstorm trace --json` prints of it."""
        if self.what == "key":
            return {"step": self.step, "key": self.row, "before": self.before, "after": self.after}
        return {"step": self.step, self.what: self.row}


@dataclass(frozen=True)
class Trace:
    """All of it, in topological order. `commit` is the one that read the record; None: it has not been read yet."""

    record: Record
    commit: int | None
    at: datetime | None
    late: int  # for how many steps it came late
    events: tuple[Event, ...]
    note: str = ""

    def _repr_html_(self) -> str:
        rows = [(event.step, event.what, event.row, event.before, event.after) for event in self.events]
        return html_table(("step", "what", "row", "before", "after"), rows, str(self.record))


@dataclass(frozen=True)
class _Before:
    """What was live before a record was read, and by whom it was."""

    ledger: Ledger
    live: Live
    commit: Commit | None
    now: int
    note: str = ""


def refuse_unknown_spout(topology: Topology, record: Record) -> None:
    spouts = [spout.name for spout in topology.spouts]
    if record.spout not in spouts:
        hint = f"Spouts: {', '.join(spouts)}. {suggestion(record.spout, spouts)}"
        raise LedgerError(80, f"there is no spout '{record.spout}'", hint=hint.rstrip())


@dataclass(frozen=True)
class Tracer:
    spark: SparkSession
    topology: Topology
    ledger: Ledger
    tell: Tell = silent
    _plans: dict[tuple[str, ...], Plan] = field(default_factory=dict)

    def trace(self, record: Record) -> Trace:
        self._refuse_unknown(record)
        with self._before(record) as before:
            shown = self._shown(before.live)
            taps = tuple(
                name for name in self.topology.givers if name not in shown or not self.topology.step(name).is_table
            )
            position = before.live.position()
            start, end = (record.on(position, more) for more in (0, 1))
            with nowhere(before.ledger) as place:
                work = Work(
                    before.ledger, _undue(before.live), Interval(start, end), before.now, place=place, taps=taps
                )
                outcome = self._attempts.advance(self._plan(taps), work, threading.Event())
                assert outcome is not None, "nobody asks it to stop"
                events = tuple(self._events(outcome, before, open_store(place.address), shown))
        if not outcome.rows:
            raise _no_record(record, "its log has removed it, or never had one at this offset")
        if before.commit is None:
            return Trace(record, None, None, outcome.late, events, before.note)
        at = datetime.fromtimestamp(before.now / 1_000_000, UTC)
        then = live_before(self.ledger, before.commit)
        notes = (before.note, changed_code(self.topology, self.topology, self.ledger, then))
        return Trace(record, before.commit.commit, at, outcome.late, events, "\n".join(filter(None, notes)))

    def _plan(self, taps: tuple[str, ...]) -> Plan:
        if taps not in self._plans:
            logs = Logs(self.topology, self.ledger.newest())
            self._plans[taps] = compile_topology(self.spark, logs.used_by(tapped(self.topology, taps)), 1)
        return self._plans[taps]

    @property
    def _attempts(self) -> Attempts:
        return Attempts(self.spark, self.topology, self.ledger, self.topology.settings, self.tell)

    # What happened

    def _events(self, outcome: Outcome, before: _Before, store: Store, shown: set[str]) -> Iterator[Event]:
        letters: dict[str, list[Row]] = {}
        for file in outcome.letters:
            for row in read_table(store, file.path).to_pylist():
                raw = row["raw"].decode(errors="backslashreplace") if row["raw"] is not None else None
                letters.setdefault(row["step"], []).append({"reason": row["reason"], "raw": raw})
        for step in self.topology.steps:
            what, given = ("tuple", outcome.taps) if step.gives_rows else ("output", outcome.outbox)
            for file in given.get(step.name, ()):
                yield from (Event(step.name, what, row) for row in python_rows(read_table(store, file.path)))
            if step.name in shown:
                state = State(before.ledger, before.live, step.name)
                changed = changed_keys(state, outcome, store)
                yield from (Event(step.name, "key", one.key, one.before, one.after) for one in changed)
            yield from (Event(step.name, "letter", letter) for letter in letters.get(step.name, ()))

    def _shown(self, live: Live) -> set[str]:
        """The steps whose state people see."""
        shapes = {step.name: live.steps[step.name] for step in self.topology.steps if step.name in live.steps}
        return {name for name, shape in shapes.items() if name in shape.tables and (shape.key or shape.values)}

    # Where it begins

    def _refuse_unknown(self, record: Record) -> None:
        refuse_unknown_spout(self.topology, record)
        logs = Logs(self.topology, self.ledger.newest())
        logs.refresh()
        source = logs.sources[record.spout]
        first, end = (ends.get(record.partition) for ends in (source.earliest(), source.latest()))
        if end is None:
            raise _no_record(record, f"its log has no partition {record.partition}")
        if record.offset >= end:
            raise _no_record(record, f"its log ends at {end}")
        if first is not None and record.offset < first:
            raise _no_record(record, f"its log has been removed up to {first}")

    @contextlib.contextmanager
    def _before(self, record: Record) -> Iterator[_Before]:
        """What was live before the tick that read it."""
        head = self.ledger.newest()
        commit = self._reader_of(record)
        if commit is None:
            now = round(datetime.now(UTC).timestamp() * 1_000_000)
            yield _Before(self.ledger, head, None, now, "it has not been read yet: this is what it would do now")
            return
        refuse_unread(record, commit)
        base = live_before(self.ledger, commit)
        if head.called_then(base.commit):
            with scratch_ledger(self.ledger, base) as scratch:  # whose steps have their names of now
                note = f"some steps had other names then; `before` is the state at commit {base.commit}"
                yield _Before(scratch, scratch.head, commit, commit.now, note)
            return
        if commit.covers_from == commit.commit and commit.rewound is None:
            with self.ledger.pinned(base.commit):
                yield _Before(self.ledger, _with_steps(base, commit), commit, commit.now)
            return
        (one,) = committed_between(self.ledger, base.commit, commit.commit)
        if not one.exact or not one.is_passable:
            note = f"where ticks were cut is not known any more: `before` is the state at commit {base.commit}"
            if not one.is_passable:
                why = one.commit.changes_otherwise
                note = (
                    f"a {why} is between commits {base.commit} and {commit.commit}: `before` is the state at the first"
                )
            with self.ledger.pinned(base.commit):
                yield _Before(self.ledger, base, commit, commit.now, note)
            return
        with self._rerun_to(record, base, one) as found:
            yield found

    @contextlib.contextmanager
    def _rerun_to(self, record: Record, base: Live, one: Committed) -> Iterator[_Before]:
        """Of commits that are kept as one: those before the tick that read the record are run again."""
        states = self.topology.only(self.topology.givers)
        with scratch_ledger(self.ledger, base) as scratch:
            rerun = Rerun(self.spark, states, scratch, Logs(states, self.ledger.newest()))
            for tick in one.ticks:
                if (tick.end.offset(record.spout, record.partition) or 0) > record.offset:
                    yield _Before(scratch, scratch.head, one.commit, tick.now)
                    return
                rerun.tick(tick)
            raise AssertionError("its last tick has read the record")

    def _reader_of(self, record: Record) -> Commit | None:
        """The commit that read it; the newest one, where a rewind has let it be read again. None: not yet.

        What a rewind has undone is passed over: before it comes the commit that it went to.
        """
        found, undone_from = None, None
        for mark in self.ledger.marks():
            if undone_from is not None and mark.commit >= undone_from:
                continue
            if mark.end.get(record.spout, {}).get(str(record.partition), 0) <= record.offset:
                break
            found = mark.commit
            if mark.rewound is not None:
                if record.offset >= mark.start.get(record.spout, {}).get(str(record.partition), 0):
                    break  # it stands for ticks since the rewind, too, and one of them read it
                undone_from = mark.rewound.to + 1
        return None if found is None else self.ledger.read_commit(found)


def _no_record(record: Record, why: str) -> LedgerError:
    hint = "Offsets count from 0. See: hailstorm status APP, and for an embedded log: hailstorm log info PATH"
    return LedgerError(81, f"there is no record {record}: {why}", hint=hint)


def _undue(live: Live) -> Live:
    """The same, with nothing due."""
    agendas = {table: END for shape in live.steps.values() for table in shape.agendas}
    return msgspec.structs.replace(live, reached=agendas)


def _with_steps(base: Live, commit: Commit) -> Live:
    return base if commit.steps is None else msgspec.structs.replace(base, steps=commit.steps)
