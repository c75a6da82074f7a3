"""Rerun: committed input is run once more, from what was live at some commit, without a commit to the ledger.

Everything that looks back is made of it: a clock between two commits, replay, and audits that depend on where ticks
were cut. It reads the ledger and the logs, and commits to a scratch ledger (scratch.py). The code is the code of now.

A rerun makes one commit for every commit that there was, with the same number, `now` and interval: so watermarks, and
with them what is late and what is due, come out as they did.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Literal

import msgspec
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Clock, Interval, Range
from hailstorm.clock.watermark import OfSteps
from hailstorm.engine.advance import Outcome, Work
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.ticks.agendas import Agendas
from hailstorm.engine.ticks.attempts import Attempts
from hailstorm.engine.ticks.committing import tick_fields
from hailstorm.engine.ticks.logs import Logs
from hailstorm.engine.ticks.times import Times
from hailstorm.history.scratch import scratch_ledger
from hailstorm.ledger.compaction import compact
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.live import Live, changed_runs
from hailstorm.topology.topology import Topology

Kind = Literal["tick", "complete", "nothing"]
Tell = Callable[[str], None]


def silent(message: str) -> None:
    """Nobody watches."""


@dataclass(frozen=True)
class Tick:
    """One commit that is made again: up to which clock it read, and when.

    `start` is where it began, where that is not the end of the one before it: after a hole. `only` leaves out holes
    inside. `complete` is the end of input; `nothing` stands for a commit that changed no state, such as a compaction.
    """

    end: Clock
    now: int  # µs
    start: Clock = field(default_factory=Clock)
    only: tuple[Range, ...] | None = None
    kind: Kind = "tick"
    watermarks: OfSteps | None = None  # None: those that the commit before it has come to


@dataclass(frozen=True)
class Rerun:
    """A topology on a scratch ledger. Call `tick` once for each commit, in order; `scratch.head` is where it is then.

    Spouts read the logs that `logs` remembers. `tasks` is how many tasks each tick has.
    """

    spark: SparkSession
    topology: Topology
    scratch: Ledger
    logs: Logs
    tasks: int = 1
    tell: Tell = silent
    marking: bool = False  # rows say what they were made of (engine/stages/marks.py)

    def tick(self, tick: Tick, **more: Any) -> tuple[Outcome, ...]:
        """Run one, and commit it to the scratch ledger. `more` are fields of its work, such as taps.

        Nothing is run for a commit that changed no state. A tick with very many bad records comes in several parts.
        """
        interval = self.interval_of(tick)
        if tick.kind != "tick":
            fields = self._ended() if tick.kind == "complete" else self._evolved()
            self._commit(tick, interval.end, interval.end, **fields)
            return ()
        if tick.watermarks is not None:
            self.scratch.head = msgspec.structs.replace(self.scratch.head, watermarks=tick.watermarks)
        outcomes: list[Outcome] = []
        while not outcomes or outcomes[-1].interval.end != interval.end:
            start = outcomes[-1].interval.end if outcomes else interval.start
            part = Interval(start, interval.end)
            work = Work(self.scratch, self.scratch.head, part, tick.now, only=tick.only, **more)
            outcome = self._attempts.advance(self.plan, work, threading.Event())
            assert outcome is not None, "nobody asks it to stop"
            fields = tick_fields(self._times, self._agendas, self.scratch.head, outcome, tick.now)
            self._commit(tick, start, outcome.interval.end, **fields)
            outcomes.append(outcome)
        self._compact()
        return tuple(outcomes)

    def interval_of(self, tick: Tick) -> Interval:
        """What a tick reads, of the spouts that are run. A partition that nobody has named before begins at its end:
        that it is there was committed before anything of it was read."""
        head, ours = self.scratch.head.position(), self.logs.sources
        end = head.join(Clock({spout: row for spout, row in tick.end.offsets.items() if spout in ours}))
        known = Clock({**head.offsets, **{s: {**head.offsets.get(s, {}), **r} for s, r in tick.start.offsets.items()}})
        starts: dict[str, dict[int, int]] = {}
        for spout, partition, offset in end:
            begin = known.offset(spout, partition)
            starts.setdefault(spout, {})[partition] = offset if begin is None else min(begin, offset)
        return Interval(Clock(starts), end)

    @cached_property
    def plan(self) -> Plan:
        return compile_topology(self.spark, self.logs.used_by(self.topology), self.tasks, marking=self.marking)

    @cached_property
    def _attempts(self) -> Attempts:
        return Attempts(self.spark, self.topology, self.scratch, self.topology.settings, self.tell)

    @cached_property
    def _times(self) -> Times:
        return Times(self.topology)

    @cached_property
    def _agendas(self) -> Agendas:
        return Agendas(self.topology, self.scratch)

    def _ended(self) -> dict[str, Any]:
        head = self.scratch.head
        return self._times.fields(self._times.at_the_end(head), self._agendas.released(head, {}, head.reached))

    def _evolved(self) -> dict[str, Any]:
        """Such a commit may be the one that brought steps which the base does not know."""
        head = self.scratch.head
        return {"watermarks": self._times.evolved(head, self._agendas.released(head, {}, head.reached))}

    def _commit(self, tick: Tick, start: Clock, end: Clock, **fields: Any) -> None:
        head = self.scratch.head
        when = datetime.fromtimestamp(tick.now // 1_000_000, UTC).replace(microsecond=tick.now % 1_000_000)
        commit = next_commit(
            head, "rerun", self.scratch.epoch, when, start=start.to_json(), end=end.to_json(), **fields
        )
        # A float of seconds would move `now` by a microsecond.
        self.scratch.commit(msgspec.structs.replace(commit, now=tick.now))

    def _compact(self) -> None:
        """Keep the number of runs small. No commit: numbers would not be those of the commits that are made again."""
        scratch = self.scratch
        for table, key in scratch.head.state_keys().items():
            head = scratch.head
            past = head.past(table)
            change = compact(
                scratch.store, scratch.cache, table, key, head.runs.get(table, ()), scratch.stamp, past=past
            )
            if change is not None:
                runs = {**head.runs, table: changed_runs(head.runs[table], change)}
                scratch.head = msgspec.structs.replace(head, runs=runs)


@contextlib.contextmanager
def rerun(
    spark: SparkSession,
    topology: Topology,
    ledger: Ledger,
    base: Live,
    ticks: Iterable[Tick],
    tell: Tell = silent,
) -> Iterator[Ledger]:
    """What these ticks make of `base`: a ledger whose head is the state after them. It is gone afterwards."""
    with scratch_ledger(ledger, base) as scratch:
        again = Rerun(spark, topology, scratch, Logs(topology, ledger.newest()), tell=tell)
        for tick in ticks:
            again.tick(tick)
        yield scratch
