"""The negotiator: the driver's loop. It forms clocks, advances, commits, and lets delivery and housekeeping follow.

      starting ──> choosing ──> advancing ──> committing ──┐
                    │  ▲ ▲                                 │
                    │  │ └─────────────────────────────────┘
             idle <─┤  │
           paused <─┘──┘        (idle: nothing new; paused: a sink is too far behind)

      every state ──> draining ──> stopped                  (asked to stop, or the target clock is reached)
      every state ──> failed                                (an error that a person must see)

It is the only writer of commits. What is not committed never happened: after a crash the next run goes on from the
last commit, and nobody has to be asked.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hailstorm.clock.clock import Clock, Interval
from hailstorm.clock.watermark import Patience, Watermark
from hailstorm.engine.advance import Outcome, advance, first_failure
from hailstorm.engine.choosing import Choice, Logs
from hailstorm.engine.delivery import Deliverer, columns_of, retry_wait
from hailstorm.engine.evolution import evolution, require_consent
from hailstorm.engine.housekeeping import Housekeeper
from hailstorm.engine.isolation import Excluded, poisoned_records
from hailstorm.engine.outbox import LedgerOutbox
from hailstorm.engine.pacing import Pace
from hailstorm.engine.plan import Plan, compile_topology
from hailstorm.engine.progress import OnProgress, Progress, Retried, Summary, ignore_progress
from hailstorm.engine.second_chance import second_chance
from hailstorm.engine.stages.members import members_of
from hailstorm.errors import RunError, TransientLogError
from hailstorm.ledger.commit import Commit, StepShape
from hailstorm.ledger.faults import fault
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.settings import Settings
from hailstorm.topology.step import Fold, Sink, Spout
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
_TRIES = 3


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
        self._spouts = [step for step in topology.steps if isinstance(step, Spout)]
        self._sinks = [step for step in topology.steps if isinstance(step, Sink)]
        self._plans: dict[int, Plan] = {}
        self._outbox = LedgerOutbox(ledger)
        self._epoch = ledger.head.epoch + 1
        cores = spark.sparkContext.defaultParallelism
        self._pace = Pace(
            self.settings.latency_ms / 1000, self.settings.max_tick_rows, ways or ((1, cores) if cores > 1 else (1,))
        )
        self._ticks = self._rows = self._errors = self._skipped = 0
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
            self._commit_evolution(plan, found.fingerprints, found.added)
        keys: dict[str, tuple[str, ...]] = {}
        for step in self.topology.steps:
            if isinstance(step, Fold):
                keys[step.name] = step.key
                keys[members_of(step.name)] = (*step.key, *self.topology.step(step.inputs[0]).key)
        self._housekeeper = Housekeeper(self.ledger, keys)
        self._housekeeper.start()
        # Only Spark knows the types of what an SQL step selects; by now it has told them.
        self._sinks = [replace(sink, schema=_schema(plan.schemas[sink.inputs[0]])) for sink in self._sinks]
        self._deliverer = Deliverer(self.topology.name, self._sinks, self._outbox)
        self._deliverer.start()
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
        outcome = self._advance_with_retries(way, interval, now)
        if outcome is None:
            return False
        fault("after-write")
        self._refuse_bad_tick(outcome)
        advanced = time.perf_counter()
        self._pace.observe(way, len(interval), advanced - chosen)
        self._enter(State.COMMITTING)
        outcome.timings["choose"] = chosen - began
        self._commit(choice, outcome, now, advanced - began)
        outcome.timings["commit"] = time.perf_counter() - advanced
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
            head, now = self.ledger.head, datetime.now(UTC)
            fields = {"outbox": offered.outbox, "retried_rejects": offered.retried}
            self._made(next_commit(head, "retry", self._epoch, now, **fields))
            self._deliverer.notify(self.ledger.head.commit)
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
        self._made(
            next_commit(
                self.ledger.head,
                "retry",
                self._epoch,
                now,
                errors=outcome.errors,
                state=outcome.state,
                outbox=outcome.outbox,
                dead_letters=outcome.letters,
                retried=paths,
            )
        )
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

    def _advance_with_retries(self, way: int, interval: Interval, now: datetime) -> Outcome | None:
        """Advance; what may pass is tried again. None when it failed after we were asked to stop: Ctrl-C in a
        terminal also ends the workers, and a tick that was given up never happened.
        """
        micros = int(now.timestamp() * 1_000_000)
        excluded: Excluded = {}
        for attempt in itertools.count(1):
            try:
                return advance(self._spark, self.plan(way), self.ledger, interval, micros, excluded=excluded)
            except RunError as error:
                if self._stop.is_set():
                    return None
                if error.poisoned and not excluded:
                    excluded = self._isolated(way, interval, micros, error)
                    continue
                if not error.transient or (attempt == _TRIES and not error.log_unreachable):
                    raise
                wait = retry_wait(self.topology.name, attempt + 3)
                self._report("running", f"a tick failed, trying again in {wait:.1f} s: {error.what}")
                self._stop.wait(wait)
        raise AssertionError("unreachable")

    def _isolated(self, way: int, interval: Interval, micros: int, error: RunError) -> Excluded:
        """The records that make a tick fail. Raises the error when they are too many to be bad rows."""
        self._report("running", f"looking for the records on which a tick fails: {error.what}")

        def attempt(part: Interval) -> RunError | None:
            try:
                advance(self._spark, self.plan(way), self.ledger, part, micros)
            except RunError as failure:
                if not failure.poisoned:
                    raise
                return failure
            return None

        rows = len(interval)
        limit = self.settings.error_limit * rows if rows >= self.settings.error_limit_rows else rows
        found = poisoned_records(interval, attempt, most=int(limit))
        if not found:  # too many; or it fails on all together and on none alone
            raise error
        return found

    def _refuse_bad_tick(self, outcome: Outcome) -> None:
        """Too many bad rows are a bug and not bad rows; and a step may ask to stop at the first."""
        for step, failures in outcome.failures.items():
            if failures.fatal:
                raise RunError(
                    4,
                    f"step '{step}' failed on {failures.count} rows: {failures.reason}",
                    at=self.topology.step(step).at,
                    hint='It is declared with on_error="fail". Nothing of this tick was committed.',
                )
        limit = self.settings.error_limit * outcome.rows
        if outcome.rows >= self.settings.error_limit_rows and outcome.errors > limit:
            step, failures = first_failure(outcome.failures)
            raise RunError(
                5,
                f"{outcome.errors} of {outcome.rows} rows failed, more than {self.settings.error_limit:.0%}: "
                f"in step '{step}', {failures.reason}",
                at=self.topology.step(step).at,
                hint="That many are a bug and not bad rows. Nothing of this tick was committed; fix it and run again,\n"
                "or allow more: --set error_limit=50%",
            )

    # Commits

    def _commit(self, choice: Choice, outcome: Outcome, now: datetime, seconds: float) -> None:
        watermark = self._watermark(outcome, int(now.timestamp() * 1_000_000))
        commit = next_commit(
            self.ledger.head,
            "tick",
            self._epoch,
            now,
            start=choice.interval.start.to_json(),
            end=choice.interval.end.to_json(),
            holes=choice.holes,
            rosters=self.logs.rosters if self.logs.rosters != self.ledger.head.rosters else None,
            rows=outcome.rows,
            ms=round(seconds * 1000, 1),
            watermark=_iso(watermark.time),
            event_times=msgspec.convert(watermark.to_json(), dict[str, dict[str, tuple[int, int]]]),
            errors=outcome.errors,
            state=outcome.state,
            outbox=outcome.outbox,
            dead_letters=outcome.letters,
            timings={phase: round(spent * 1000, 2) for phase, spent in outcome.timings.items()},
        )
        self._made(commit)
        self._skipped += commit.skipped

    def _made(self, commit: Commit) -> None:
        self.ledger.commit(commit)
        self._outbox.remember(commit)

    def _watermark(self, outcome: Outcome, now: int) -> Watermark:
        head = self.ledger.head
        data = {spout: {p: list(pair) for p, pair in row.items()} for spout, row in head.event_times.items()}
        before = Watermark.from_json(_micros(head.watermark), data)
        patience = {
            spout.name: Patience(spout.lateness_ms * 1000, None if spout.idle_ms is None else spout.idle_ms * 1000)
            for spout in self._spouts
            if spout.event_time is not None
        }
        seen = {
            spout: {p: s.highest for p, s in partitions.items() if s.highest is not None}
            for spout, partitions in outcome.seen.items()
            if spout in patience
        }
        return before.advance(seen, now, patience)

    def _commit_evolution(self, plan: Plan, fingerprints: dict[str, str], added: tuple[str, ...]) -> None:
        """Say in the ledger what the steps are from now on, so that readers need no app."""
        head = self.ledger.head
        steps = dict(head.steps)
        for name, values in plan.stateful.items():
            step = self.topology.step(name)
            steps[name] = StepShape(kind=step.kind, key=step.key, values=values, fingerprint=fingerprints[name])
        since = dict(head.since)
        since |= {name: head.clock for name in added if name in plan.stateful and head.clock}
        self._made(
            next_commit(
                head, "evolve", self._epoch, datetime.now(UTC), steps=steps, fingerprints=fingerprints, since=since
            )
        )

    def _commit_compactions(self) -> None:
        changes = self._housekeeper.finished()
        if changes:
            self._made(next_commit(self.ledger.head, "compact", self._epoch, datetime.now(UTC), state=changes))
            self._housekeeper.committed(changes, self.ledger.head)

    # Around a tick

    def _after_tick(self, outcome: Outcome, lag: int, seconds: float) -> None:
        head = self.ledger.head
        self._ticks += 1
        self._rows += outcome.rows
        self._errors += outcome.errors
        delivering = [state.seconds for state in self._deliverer.states().values()]
        outcome.timings["deliver"] = max(delivering, default=0.0)  # of an earlier commit: it runs beside the tick
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

    def _report(self, phase: str, message: str = "", **known: object) -> None:
        head = self.ledger.head
        sinks = self._deliverer.states() if hasattr(self, "_deliverer") else {}
        watermark = None if head.watermark is None else datetime.fromisoformat(head.watermark)
        fields = {"tick_ms": self._last.tick_ms, "rows_per_second": self._last.rows_per_second, "lag": self._last.lag}
        self._last = Progress(
            phase=phase,  # type: ignore[arg-type]
            message=message,
            commit=head.commit,
            total_rows=self._rows,
            watermark=watermark,
            errors=self._errors,
            late=head.late,
            skipped=self._skipped,
            sinks=sinks,
            **{**fields, **known},  # type: ignore[arg-type]
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


def _iso(micros: int | None) -> str | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat()


def _micros(iso: str | None) -> int | None:
    return None if iso is None else round(datetime.fromisoformat(iso).timestamp() * 1_000_000)
