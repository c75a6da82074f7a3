"""The negotiator: the driver's loop. It forms clocks, advances, commits, and lets delivery and housekeeping follow.

      starting ──> choosing ──> advancing ──> committing ──┐
                    │  ▲ ▲                                 │
                    │  │ └─────────────────────────────────┘
             idle <─┤  │
           paused <─┘──┘        (idle: nothing new; paused: a sink is too far behind)

      every state ──> draining ──> stopped                  (asked to stop, or the target clock is reached)
      every state ──> failed                                (an error that a person must see)

It alone says when an advance is tried (attempts.py) and a commit made (committing.py). What is not committed never
happened: after a crash the next run goes on from the last commit, and nobody has to be asked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine.advance import Outcome, advance
from hailstorm.engine.attempts import Attempts
from hailstorm.engine.choosing import Choice, Logs
from hailstorm.engine.committing import Committer
from hailstorm.engine.compiler import compile_topology
from hailstorm.engine.delivery import Deliverer, columns_of, retry_wait
from hailstorm.engine.evolution import evolution, require_consent
from hailstorm.engine.housekeeping import Housekeeper
from hailstorm.engine.outbox import LedgerOutbox
from hailstorm.engine.pacing import Pace
from hailstorm.engine.plan import Plan
from hailstorm.engine.priorities import let_the_jvm_yield
from hailstorm.engine.progress import OnProgress, Phase, Progress, Retried, Summary, ignore_progress
from hailstorm.engine.second_chance import second_chance
from hailstorm.engine.stages.members import members_of
from hailstorm.errors import RunError, TransientLogError
from hailstorm.ledger.faults import fault
from hailstorm.ledger.ledger import Ledger
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.settings import Settings
from hailstorm.topology.step import Fold, Sink
from hailstorm.topology.topology import Topology


class State(Enum):
    STARTING = "starting"
    CHOOSING = "choosing"
    IDLE = "idle"
    PAUSED = "paused"
    ADVANCING = "advancing"
    COMMITTING = "committing"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


_NEXT: Mapping[State, frozenset[State]] = {
    State.STARTING: frozenset({State.CHOOSING}),
    State.CHOOSING: frozenset({State.IDLE, State.PAUSED, State.ADVANCING}),
    State.IDLE: frozenset({State.CHOOSING}),
    State.PAUSED: frozenset({State.CHOOSING}),
    State.ADVANCING: frozenset({State.COMMITTING}),
    State.COMMITTING: frozenset({State.CHOOSING}),
    State.DRAINING: frozenset({State.STOPPED}),
    State.STOPPED: frozenset(),
    State.FAILED: frozenset(),
}

_IDLE_SECONDS = 0.02
_DRAIN_SECONDS = 60.0


class Negotiator:
    """One run of one topology on one ledger. `start`, then `tick` or `run`, then `stop`."""

    def __init__(
        self,
        spark: SparkSession,
        topology: Topology,
        ledger: Ledger,
        settings: Settings | None = None,
        on_progress: OnProgress = ignore_progress,
        accept: tuple[str, ...] = (),
        ways: tuple[int, ...] | None = None,
        logs: Logs | None = None,
    ) -> None:
        self.logs = logs or Logs(topology, ledger.head)
        self.topology, self.ledger = topology, ledger
        self.settings = settings or topology.settings
        self.state = State.STARTING
        self._spark, self._tell, self._accept = spark, on_progress, accept
        self._sinks = [step for step in topology.steps if isinstance(step, Sink)]
        self._plans: dict[int, Plan] = {}
        self._outbox = LedgerOutbox(ledger)
        self._committer = Committer(topology, ledger, self._outbox)
        self._attempts = Attempts(
            spark, topology, ledger, self.settings, self.plan, lambda message: self._report("running", message)
        )
        cores = spark.sparkContext.defaultParallelism
        self._pace = Pace(
            self.settings.latency_ms / 1000, self.settings.max_tick_rows, ways or ((1, cores) if cores > 1 else (1,))
        )
        self._ticks = self._rows = self._errors = self._skipped = 0
        self._committing = 0.0  # seconds that the last commit took
        self._unreachable = 0  # how often in a row a log was not to be reached
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._last = Progress("starting")

    # Life

    def start(self) -> None:
        """Compile, check that the ledger may go on with this topology, and start delivery and housekeeping."""
        self.topology.validate()
        self._report("starting", "reading the ledger")
        found = evolution(self.topology, self.ledger.head)
        require_consent(self.topology, found, self._accept)
        self._report("starting", "compiling the topology")
        plan = self.plan(self._pace.ways[0])
        if found.any or not self.ledger.head.commit:
            self._committer.evolution(plan, found)
        keys: dict[str, tuple[str, ...]] = {}
        for step in self.topology.steps:
            if isinstance(step, Fold):
                keys[step.name] = step.key
                keys[members_of(step.name)] = (*step.key, *self.topology.step(step.inputs[0]).key)
        self._housekeeper = Housekeeper(self.ledger, keys, self.settings.publish_every)
        self._housekeeper.start()
        # Only Spark knows the types of what an SQL step selects; by now it has told them.
        self._sinks = [replace(sink, schema=_schema(plan.schemas[sink.inputs[0]])) for sink in self._sinks]
        self._deliverer = Deliverer(self.topology.name, self._sinks, self._outbox)
        self._deliverer.start()
        let_the_jvm_yield(self._spark)
        self._enter(State.CHOOSING)

    def run(self, target: Clock | None, stop: threading.Event, beat: Callable[[], None] = lambda: None) -> Summary:
        """Tick until the target clock is reached (None: for ever) or `stop` is set."""
        self._stop = stop
        while not stop.is_set() and (target is None or not self.position().covers(target)):
            began = time.monotonic()
            if not self.tick(target):
                stop.wait(_IDLE_SECONDS)
            beat()
            spare = self.settings.every_ms / 1000 - (time.monotonic() - began)
            if spare > 0 and (target is None or not self.position().covers(target)):
                stop.wait(spare)
        return self.stop()

    def stop(self, drain: bool = True) -> Summary:
        """Deliver what is committed, and end. What cannot be delivered in time waits in the outbox."""
        self._enter(State.DRAINING)
        if drain:
            self._report("delivering", "delivering what is committed")
            self._deliverer.drain(_DRAIN_SECONDS)
        self._deliverer.stop()
        self._housekeeper.stop()
        self._commit_compactions()
        self._housekeeper.publish_the_end()
        self._enter(State.STOPPED)
        self._report("stopped")
        seconds = time.monotonic() - self._started
        head = self.ledger.head
        return Summary(
            ledger=str(self.ledger.root),
            commit=head.commit,
            ticks=self._ticks,
            rows=self._rows,
            errors=self._errors,
            late=head.late,
            skipped=self._skipped,
            rejected=sum(state.rejected for state in self._deliverer.states().values()),
            seconds=seconds,
        )

    def fail(self) -> None:
        """End at once after an error. Deliveries that are under way are finished by the next run."""
        self.state = State.FAILED
        if hasattr(self, "_deliverer"):
            self._deliverer.stop()
            self._housekeeper.stop()

    # A tick

    def tick(self, target: Clock | None = None) -> bool:
        """Choose, advance, commit. False when there was nothing to do, or it was given up to stop."""
        began = time.perf_counter()
        self._commit_compactions()
        self._refuse_stopped_sinks()
        slow = self._too_far_behind()
        if slow is not None:
            self._pass_through(State.PAUSED)
            self._report("paused", f"until sink '{slow}' is at most {self.settings.outbox_limit:,} commits behind")
            return False
        choice = self._chosen(target)
        if choice is None:
            self._pass_through(State.IDLE)
            return False
        interval = choice.interval
        if not len(interval) and not choice.holes:
            self._pass_through(State.IDLE)
            if self._last.phase != "running" or self._last.lag:
                self._report("running", lag=0, rows=0)
            return False
        self._enter(State.ADVANCING)
        chosen = time.perf_counter()
        now = datetime.now(UTC)
        way = self._pace.way(len(interval))
        outcome = self._attempts.advance(way, interval, int(now.timestamp() * 1_000_000), self._stop)
        if outcome is None:
            return False
        fault("after-write")
        self._attempts.refuse_bad_tick(outcome)
        advanced = time.perf_counter()
        self._pace.observe(way, len(interval), advanced - chosen)
        self._enter(State.COMMITTING)
        outcome.timings["choose"] = chosen - began
        # A commit cannot say how long it takes itself, nor how long its delivery: it says it of those before.
        outcome.timings["commit"] = self._committing
        outcome.timings["deliver"] = max((sink.seconds for sink in self._deliverer.states().values()), default=0.0)
        commit = self._committer.tick(choice, self.logs.rosters, outcome, now, advanced - began)
        self._skipped += commit.skipped
        outcome.timings["commit"] = self._committing = time.perf_counter() - advanced
        self.logs.committed(interval.end)
        self._after_tick(outcome, choice.lag_after, time.perf_counter() - began)
        self._enter(State.CHOOSING)
        return True

    def retry(self) -> Retried:
        """Give dead letters their second chance: first rows that sinks rejected, then records, each as one commit."""
        rejected, records = self._retry_rejected(), self._retry_records()
        return Retried(rejected.letters + records.letters, rejected.failed + records.failed, rejected.outdated)

    def _retry_rejected(self) -> Retried:
        if not self._count_rejected():
            return Retried()
        # What a sink has not got yet may be rejected, too: it must have got all, or its rows wait for another retry.
        self._deliverer.drain(_DRAIN_SECONDS)
        states = self._deliverer.states()
        ready = [sink for sink in self._sinks if not states[sink.name].behind and states[sink.name].stopped is None]
        offered = second_chance(self.ledger, {sink.name: (columns_of(sink), sink.key) for sink in ready})
        waiting = self._count_rejected() - offered.rows - offered.outdated
        if offered.retried:
            self._deliverer.notify(self._committer.second_chance(offered).commit)
            self._deliverer.drain(_DRAIN_SECONDS)
        return Retried(offered.rows + waiting, self._count_rejected(), offered.outdated)

    def _count_rejected(self) -> int:
        return sum(letters.num_rows for letters in self.ledger.rejected(self.ledger.head))

    def _retry_records(self) -> Retried:
        files = self.ledger.head.dead_letters
        if not files:
            return Retried()
        self._enter(State.ADVANCING)
        now = datetime.now(UTC)
        position = self.position()
        plan = compile_topology(self._spark, self.topology, 1, retrying=True)
        paths = tuple(file.path for file in files)
        outcome = advance(
            self._spark, plan, self.ledger, Interval(position, position), int(now.timestamp() * 1_000_000), paths
        )
        self._enter(State.COMMITTING)
        self._committer.retry(outcome, paths, now)
        self._after_tick(outcome, 0, 1.0)
        self._enter(State.CHOOSING)
        return Retried(sum(file.rows for file in files), sum(file.rows for file in outcome.letters))

    def position(self) -> Clock:
        return self.ledger.head.position()

    def plan(self, tasks: int) -> Plan:
        if tasks not in self._plans:
            self._plans[tasks] = compile_topology(self._spark, self.logs.used_by(self.topology), tasks)
        return self._plans[tasks]

    def _chosen(self, target: Clock | None) -> Choice | None:
        """The next clock; None, after a while, when a log cannot be reached at the moment."""
        try:
            if self.logs.refresh():
                self._plans.clear()
            # What is too much is known once the pace is.
            on_overload = self.settings.on_overload if self._pace.settled else "queue"
            choice = self.logs.choose(self.position(), target, self._pace.rows, on_overload)
        except TransientLogError as error:
            self._unreachable += 1
            wait = retry_wait(self.topology.name, self._unreachable)
            self._report("running", f"trying again in {wait:.1f} s: {error.what}")
            self._stop.wait(wait)
            return None
        self._unreachable = 0
        return choice

    # Around a tick

    def _commit_compactions(self) -> None:
        changes = self._housekeeper.finished()
        if changes:
            self._committer.compaction(changes)
            self._housekeeper.committed(changes, self.ledger.head)

    def _after_tick(self, outcome: Outcome, lag: int, seconds: float) -> None:
        head = self.ledger.head
        self._ticks += 1
        self._rows += outcome.rows
        self._errors += outcome.errors
        self._deliverer.notify(head.commit)
        self._housekeeper.notice(head)
        self._report(
            "running",
            rows=outcome.rows,
            tick_ms=seconds * 1000,
            rows_per_second=outcome.rows / seconds,
            lag=lag,
            timings={phase: spent * 1000 for phase, spent in outcome.timings.items()},
        )

    def _too_far_behind(self) -> str | None:
        """A sink whose outbox is full, if there is one."""
        states = self._deliverer.states()
        return next((name for name, state in states.items() if state.behind > self.settings.outbox_limit), None)

    def _refuse_stopped_sinks(self) -> None:
        for name, state in self._deliverer.states().items():
            if state.stopped is not None:
                raise RunError(
                    6,
                    f"sink '{name}' stopped: {state.stopped}",
                    at=self.topology.step(name).at,
                    hint="What it has not got waits in the outbox and is delivered after a fix.",
                )

    def _report(self, phase: Phase, message: str = "", **known: Any) -> None:
        head = self.ledger.head
        sinks = self._deliverer.states() if hasattr(self, "_deliverer") else {}
        watermark = None if head.watermark is None else datetime.fromisoformat(head.watermark)
        fields: dict[str, Any] = {
            "tick_ms": self._last.tick_ms,
            "rows_per_second": self._last.rows_per_second,
            "lag": self._last.lag,
        }
        self._last = Progress(
            phase=phase,
            message=message,
            commit=head.commit,
            total_rows=self._rows,
            watermark=watermark,
            errors=self._errors,
            late=head.late,
            skipped=self._skipped,
            sinks=sinks,
            **{**fields, **known},
        )
        self._tell(self._last)

    def _enter(self, state: State) -> None:
        ending = state in (State.DRAINING, State.FAILED)
        assert ending or state in _NEXT[self.state], f"{self.state} -> {state}"
        self.state = state

    def _pass_through(self, state: State) -> None:
        self._enter(state)
        self._enter(State.CHOOSING)


def _schema(columns: pa.Schema) -> Schema:
    fields = from_arrow_schema(columns).fields
    return Schema(tuple(Column(field.name, field.dataType.simpleString()) for field in fields))
