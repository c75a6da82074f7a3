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
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from hailstorm.clock.clock import Clock, Interval
from hailstorm.columns import KIND
from hailstorm.engine.advance import Outcome, Work, whole_table
from hailstorm.engine.delivery.courier import retry_wait
from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.delivery.renamed import hand_over, let_go
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.plan.flow import type_text
from hailstorm.engine.plan.needs import Found
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.progress import OnProgress, Phase, Progress, Retried, Summary, ignore_progress
from hailstorm.engine.resident.keeper import Keeper
from hailstorm.engine.resident.resident import Resident
from hailstorm.engine.retry import Retry
from hailstorm.engine.spark.priorities import let_the_jvm_yield
from hailstorm.engine.ticks.agendas import Agendas
from hailstorm.engine.ticks.attempts import Attempts
from hailstorm.engine.ticks.committing import Committer
from hailstorm.engine.ticks.evolution import evolution, require_consent
from hailstorm.engine.ticks.housekeeping import Housekeeper
from hailstorm.engine.ticks.journeys import Journeys
from hailstorm.engine.ticks.letters import merged_letters
from hailstorm.engine.ticks.logs import Choice, Logs, Rosters
from hailstorm.engine.ticks.pacing import LONGEST_IDLE_SECONDS, PREPARED, RESIDENT, Pace, idle_wait, way_name
from hailstorm.engine.ticks.renaming import describe_renamed, renames
from hailstorm.engine.ticks.replacing import Replacement
from hailstorm.engine.ticks.times import Times
from hailstorm.engine.tolerance import Tolerance
from hailstorm.errors import TransientLogError
from hailstorm.faults import fault
from hailstorm.ledger.commit import JOINED, RESENT, DataFile
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.renaming import Names, move_published
from hailstorm.ledger.runs import write_rows
from hailstorm.spouts.source import Followed
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.settings import Settings
from hailstorm.topology.step import Sink
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

_DRAIN_SECONDS = 60.0
_TELL_AGAIN = 50  # rests after which a worker that does not follow is asked to do so once more
_BETWEEN_SECONDS = 0.005


@dataclass(frozen=True)
class _Beside:
    """What runs beside ticks from `start` on."""

    deliverer: Deliverer
    housekeeper: Housekeeper


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
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.logs = logs or Logs(topology, ledger.head, accept=accept)
        self.topology, self.ledger = topology, ledger
        self.settings = settings or topology.settings
        self.state = State.STARTING
        self.spark, self._tell, self._accept = spark, on_progress, accept
        self._sinks = [step for step in topology.steps if isinstance(step, Sink)]
        self._plans: dict[int, tuple[Plan, Rosters]] = {}  # each with the rosters that its sources know
        self._outbox = LedgerOutbox(ledger)
        self._times, self._agendas = Times(topology), Agendas(topology, ledger)
        self._now: Callable[[], datetime] = lambda: self._agendas.system_time(ledger.head, now())
        self._committer = Committer(topology, ledger, self._outbox)
        self._attempts = Attempts(
            spark, topology, ledger, self.settings, lambda message: self._report("running", message)
        )
        self._keeper = Keeper(spark, self.settings.resident_memory, lambda message: self._report("running", message))
        # Whoever names the ways wants these and no others, also where that means to wait for a resident worker.
        self._insists = ways is not None or self.settings.ways != Settings.ways
        ways = ways or _ways_called(self.settings.ways, spark.sparkContext.defaultParallelism)
        self._pace = Pace(self.settings.latency_ms / 1000, self.settings.max_tick_rows, ways)
        self._followed = {name for name, source in self.logs.sources.items() if isinstance(source, Followed)}
        self._ticks = self._rows = self._errors = self._skipped = 0
        self._recent = Tolerance.of(self.settings).begun(ledger.head.recent)
        self._committing = 0.0  # seconds that the last commit took
        self._journeys = Journeys()
        self._unreachable = 0  # how often in a row a log was not to be reached
        self._notes: tuple[str, ...] = ()  # what is different from the run before
        self._idle = 0  # how often in a row there was nothing to do
        self._beside: _Beside | None = None
        self._stop = threading.Event()
        self._started = time.monotonic()
        self._last = Progress("starting")

    # Life

    def start(self, reading: bool = True, resend: tuple[str, ...] = (), replacement: Replacement | None = None) -> None:
        """Compile, check that the ledger may go on with this topology, and start delivery and housekeeping.

        Unless it is not for `reading`, where spouts begin is in the first commit. The sinks in `resend` get the whole
        of their table, whatever their targets hold. A `replacement` takes the place of the state of its steps first.
        """
        self.topology.validate()
        self._report("starting", "reading the ledger")
        look = None
        if reading:
            with suppress(TransientLogError):  # then the first tick waits for it
                look = self.logs.first_look(self.position())
        for name in self.logs.accepted:
            self._report("starting", f"spout '{name}' reads another log than before, from its beginning")
        self._report("starting", "compiling the topology")
        plan = self.plan(self._pace.ways[0])
        if reading and plan.tasks == PREPARED:
            Found(plan.can_be_resident, plan.needs).leave(self.ledger.cache.folder)
        found = evolution(self.topology, self.ledger.head, plan.key_types)
        self._notes = (*self._notes, *found.describe())
        require_consent(self.topology, found, self._accept, () if replacement is None else replacement.steps)
        if found.renamed:
            self._rename(found.renamed)
            found = evolution(self.topology, self.ledger.head, plan.key_types)
        if found.any or not self.ledger.head.commit:
            self._committer.evolution(plan, found, look, replacement)
            self._recent = ()  # other code: what failed before says nothing of it
        else:
            if replacement is not None:
                self._committer.backfill(plan, replacement)
            if look is not None:
                self._committer.beginnings(look)
        if replacement is not None:
            self.ledger.store.delete_folder(replacement.folder)
        self._sinks = self._typed_sinks(plan)
        self._beside = _Beside(
            Deliverer(self.topology.name, self._sinks, self._outbox, self.settings),
            Housekeeper(self.ledger, self.settings.publish_every, self.settings.tiers, self.settings.history_limit),
        )
        self._housekeeper.start()
        if resend:  # before anybody looks at the targets: this says that they are to be taken over
            self._give_whole_tables(resend, RESENT)
        self._deliverer.start()
        let_the_jvm_yield(self.spark)
        if reading:
            self._resident()  # it starts while the first ticks are run
        self._enter(State.CHOOSING)

    def rename(self) -> None:
        """Let the ledger know the names of now. `start` does so by itself; whoever makes state before that (a second
        run over the logs) needs them first."""
        if names := renames(self.topology, self.ledger.head):
            self._notes = describe_renamed(names)
            self._rename(names)

    def _typed_sinks(self, plan: Plan) -> list[Sink]:
        """Only Spark knows the types of what an SQL step selects; a plan has them."""
        return [replace(sink, schema=_schema(plan.schemas[sink.inputs[0]])) for sink in self._sinks]

    def _rename(self, names: Names) -> None:
        """One commit: state, coverage, letters and cursors go on under other names."""
        plan = self.plan(self._pace.ways[0])
        hand_over(self.topology.name, self._typed_sinks(plan), names, self.ledger, self._outbox, self.settings)
        made = self._committer.renaming(plan, names)
        move_published(self.ledger.store, names)
        let_go(names, self.ledger, made.commit)

    def run(
        self,
        target: Clock | None,
        stop: threading.Event,
        complete: bool = False,
        between: Callable[[], bool] | None = None,
    ) -> Summary:
        """Tick until the target clock is reached (None: for ever) or `stop` is set.

        `complete` says that there will be no more than that: then what waits for time is done, too. `between` does a
        piece of other work between two ticks, and says whether there is more of it: then the run goes on.
        """
        self._stop = stop
        more = between is not None
        while not (stop.is_set() or self._deliverer.stopped or (self._reached(target) and not more)):
            began = time.monotonic()
            more = between is not None and between()
            if not self.tick(target):
                if more:
                    stop.wait(_BETWEEN_SECONDS)  # the other work may be waiting for its next piece
                else:
                    self.rest()
            spare = self.settings.every_ms / 1000 - (time.monotonic() - began)
            if spare > 0 and not self._reached(target):
                stop.wait(spare)
        if complete and self._reached(target):
            self.complete()
        return self.stop()

    def rest(self) -> None:
        """Wait a little, because there was nothing to do: until there may be news, where somebody follows the logs."""
        wait = idle_wait(self._idle, eager=not self.settings.latency_ms)
        self._idle += 1
        resident = self._resident()
        if resident is None or not self._followed:
            self._stop.wait(wait)
            return
        if resident.heard.keys() < self._followed:  # it has not been told yet where we are, or could not follow
            if self._idle % _TELL_AGAIN == 1:
                self._follow(resident, self.position())
            resident.wait(wait)
            return
        resident.wait(LONGEST_IDLE_SECONDS if len(self._followed) == len(self.logs.sources) else wait)

    def _follow(self, resident: Resident, position: Clock) -> None:
        """What comes after this position is read ahead from now on."""
        if self._followed:
            positions = {name: row for name, row in position.offsets.items() if name in self._followed}
            resident.follow(positions, self._newer_rosters(RESIDENT))

    def stop(self, drain: bool = True) -> Summary:
        """Deliver what is committed, and end. What cannot be delivered in time waits in the outbox."""
        self._enter(State.DRAINING)
        self._keeper.stop()
        if drain:
            self._report("delivering", "delivering what is committed")
            self._deliverer.drain(_DRAIN_SECONDS, once=self._stop.is_set())
            if lacking := self._deliverer.lacking():
                self._give_whole_tables(lacking)
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
            ledger=self.ledger.address,
            commit=head.commit,
            ticks=self._ticks,
            rows=self._rows,
            errors=self._errors,
            late=head.late,
            skipped=self._skipped,
            rejected=sum(state.rejected for state in self._deliverer.states().values()),
            seconds=seconds,
            undelivered=self._deliverer.undelivered(),
        )

    def fail(self) -> None:
        """End at once after an error. Deliveries that are under way are finished by the next run."""
        self.state = State.FAILED
        self._keeper.stop()
        if self._beside is not None:
            self._deliverer.stop()
            self._housekeeper.stop()

    @property
    def _deliverer(self) -> Deliverer:
        assert self._beside is not None, "not started"
        return self._beside.deliverer

    @property
    def _housekeeper(self) -> Housekeeper:
        assert self._beside is not None, "not started"
        return self._beside.housekeeper

    # A tick

    def tick(self, target: Clock | None = None) -> bool:
        """Choose, advance, commit. False when there was nothing to do, or it was given up to stop."""
        began = time.perf_counter()
        self._commit_compactions()
        if lacking := self._deliverer.lacking():
            self._give_whole_tables(lacking)
        slow = self._too_far_behind()
        if slow is not None:
            self._pass_through(State.PAUSED)
            message = f"until sink '{slow}' is at most {self.settings.outbox_limit:,} commits behind"
            self._report("paused", message, lag=self._lag(target))
            return False
        choice = self._chosen(target)
        if choice is None:
            self._pass_through(State.IDLE)
            return False
        interval = choice.interval
        if not len(interval) and not choice.holes and not self.due():
            self._pass_through(State.IDLE)
            if self._last.phase != "running" or self._last.lag:
                self._report("running", lag=0, rows=0)
            return False
        self._enter(State.ADVANCING)
        chosen, began_at = time.perf_counter(), time.time()
        now = self._now()
        resident = self._resident(wait=self._insists)
        way = self._pace.way(len(interval), resident is not None)
        plan, rosters = self.plan(way), self._newer_rosters(way)
        work = Work(self.ledger, self.ledger.head, interval, int(now.timestamp() * 1_000_000), rosters=rosters)
        outcome = self._attempts.advance(plan, work, self._stop, resident if way == RESIDENT else None)
        if outcome is None:
            return False
        if resident is not None and outcome.way == RESIDENT and not resident.lost:
            self._follow(resident, outcome.interval.end)
        self._outbox.hold(outcome.held)
        fault("after-write")
        choice, interval = replace(choice, interval=outcome.interval), outcome.interval
        self._recent = self._attempts.refuse_bad_tick(outcome, self._recent)
        advanced = time.perf_counter()
        self._pace.observe(outcome.way, len(interval), advanced - chosen, choice.cut)
        self.logs.weights.learn(outcome.seen)
        self._enter(State.COMMITTING)
        outcome.timings["choose"] = chosen - began
        # A commit cannot say how long it takes itself, nor how long its delivery: it says it of those before.
        outcome.timings["commit"] = self._committing
        outcome.timings["deliver"] = max((sink.seconds for sink in self._deliverer.states().values()), default=0.0)
        commit = self._committer.tick(choice, outcome, self._recent, now, advanced - began)
        self._skipped += commit.skipped
        outcome.timings["commit"] = self._committing = time.perf_counter() - advanced
        self._journeys.committed(commit.commit, outcome.seen, began_at, outcome.timings.get("read", 0.0))
        self.logs.committed(interval.end)
        self._after_tick(outcome, choice.lag_after, time.perf_counter() - began)
        self._enter(State.CHOOSING)
        return True

    def replace(self, replacement: Replacement) -> None:
        """Between two ticks: let this state take the place of that of its steps."""
        self._committer.backfill(self.plan(self._pace.ways[0]), replacement)
        self.ledger.store.delete_folder(replacement.folder)
        self._deliverer.notify(self.ledger.head.commit)
        self._housekeeper.notice(self.ledger.head)
        # Their sinks lack the whole table, which they would find out when they are opened.
        fed = tuple(sink for sink, shape in self.ledger.head.sinks.items() if shape.since == self.ledger.head.commit)
        if fed:
            self._give_whole_tables(fed)

    def retry(self) -> Retried:
        """Give dead letters their second chance: first rows that sinks rejected, then records, each as one commit."""
        self._enter(State.ADVANCING)
        retry = Retry(
            self.spark, self.topology, self.ledger, self._attempts, self._committer, self._deliverer, self._sinks
        )
        done = retry.rejected_rows() + retry.letters(self._stop)
        self._recent = self.ledger.head.recent
        self._enter(State.COMMITTING)
        self._deliverer.notify(self.ledger.head.commit)
        self._housekeeper.notice(self.ledger.head)
        self._enter(State.CHOOSING)
        return done

    def position(self) -> Clock:
        return self.ledger.head.position()

    def plan(self, way: int) -> Plan:
        tasks = max(way, PREPARED)  # a resident worker runs the passes of the prepared plan
        if tasks not in self._plans:
            plan = compile_topology(self.spark, self.logs.used_by(self.topology), tasks)
            self._plans[tasks] = plan, dict(self.logs.rosters)
        return self._plans[tasks][0]

    def _newer_rosters(self, way: int) -> Rosters:
        """Of spouts whose logs have come or gone since the plan of this way was made. It stays, and so does a worker
        that knows it."""
        known = self._plans[max(way, PREPARED)][1]
        return {spout: roster for spout, roster in self.logs.rosters.items() if roster != known.get(spout)}

    def _resident(self, wait: bool = False) -> Resident | None:
        """The resident worker, if ticks may use one and it is there. If it is lost, this starts another one."""
        if RESIDENT not in self._pace.ways:
            return None
        return self._keeper.resident_for(self.plan(RESIDENT), wait)

    def _chosen(self, target: Clock | None) -> Choice | None:
        """The next clock; None, after a while, when a log cannot be reached at the moment."""
        try:
            resident = self._resident()
            look = self.logs.look(self.position(), None if resident is None else resident.heard)
            self._committer.beginnings(look)
            # What is too much is known once the pace is.
            on_overload = self.settings.on_overload if self._pace.settled else "queue"
            choice = self.logs.choose(
                self.position(), look.ends, target, self._pace.rows, on_overload, self.settings.max_tick_bytes
            )
        except TransientLogError as error:
            self._unreachable += 1
            wait = retry_wait(self.topology.name, self._unreachable)
            self._report("running", f"trying again in {wait:.1f} s: {error.what}")
            self._stop.wait(wait)
            return None
        self._unreachable = 0
        return choice

    def due(self) -> bool:
        """Whether a tick is due without input: by the watermark that a commit would have now, or by the wall clock."""
        head = self.ledger.head
        if not any(shape.agendas for shape in head.steps.values()):
            return False
        now = int(self._now().timestamp() * 1_000_000)
        times = self._times.of_steps(self._times.after(head, {}, now), self._agendas.released(head, {}, head.reached))
        return self._agendas.is_due(head, times, now)

    def complete(self) -> None:
        """Say that the logs hold all that there will be, and do all that has waited for time."""
        self._committer.complete(self._now())
        while self.due() and not self._stop.is_set():
            self.tick(self.position())

    def _reached(self, target: Clock | None) -> bool:
        return target is not None and self.position().covers(target) and not self.due()

    def _lag(self, target: Clock | None) -> int:
        """How many records wait while nothing is read. What was known before, when a log does not answer."""
        with suppress(TransientLogError):
            position = self.position()
            return self.logs.choose(position, self.logs.look(position).ends, target, 1).lag
        return self._last.lag

    # Around a tick

    def _commit_compactions(self) -> None:
        if found := self._housekeeper.finished():
            live = {table: {run.id for run in runs} for table, runs in self.ledger.head.runs.items()}
            # What was merged of runs that have been replaced meanwhile is of no use.
            changes = {t: change for t, change in found.items() if live.get(t, set()).issuperset(change.removed)}
            if changes:
                self._committer.compaction(changes)
            self._housekeeper.committed(found, self.ledger.head)
        if merged := merged_letters(self.ledger):
            self._committer.letters(merged)

    def _after_tick(self, outcome: Outcome, lag: int, seconds: float) -> None:
        head = self.ledger.head
        self._resident()  # a worker that is lost is let go now, and the next one starts
        self._idle = 0
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
            way=way_name(outcome.way),
            timings={phase: spent * 1000 for phase, spent in outcome.timings.items()},
        )

    def _give_whole_tables(self, sinks: tuple[str, ...], why: str = JOINED) -> None:
        """A commit with the tables of these sinks as they are now."""
        now, position = self._now(), self.position()
        work = Work(self.ledger, self.ledger.head, Interval(position, position), int(now.timestamp() * 1_000_000))
        plan = self.plan(self._pace.ways[0])
        outbox = {sink: whole_table(self.spark, plan, work, sink) or self._no_rows(sink) for sink in sinks}
        self._deliverer.notify(self._committer.whole(outbox, dict.fromkeys(sinks, why), now).commit)

    def _no_rows(self, sink: str) -> tuple[DataFile, ...]:
        """An empty table has a file, too: what waits for a sink is what has files for it."""
        none = pa.table({KIND: pa.array([], pa.string())})
        return (write_rows(self.ledger.store, f"outbox/{sink}", none, self.ledger.stamp),)

    def _too_far_behind(self) -> str | None:
        """A sink whose outbox is full, if there is one."""
        states = self._deliverer.states()
        return next((name for name, state in states.items() if state.behind > self.settings.outbox_limit), None)

    def _report(self, phase: Phase, message: str = "", **known: Any) -> None:
        head = self.ledger.head
        sinks = {} if self._beside is None else self._deliverer.states()
        watermark = None if head.watermark is None else datetime.fromisoformat(head.watermark)
        fields: dict[str, Any] = {
            "tick_ms": self._last.tick_ms,
            "rows_per_second": self._last.rows_per_second,
            "lag": self._last.lag,
            "way": self._last.way,
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
            journeys=() if self._beside is None else tuple(self._journeys.ended(self._deliverer.delivered())),
            notes=self._notes,
            **{**fields, **known},
        )
        self._tell(self._last)

    def _enter(self, state: State) -> None:
        ending = state in (State.DRAINING, State.FAILED)
        assert ending or state in _NEXT[self.state], f"{self.state} -> {state}"
        self.state = state

    def _pass_through(self, state: State) -> None:
        self._enter(state)
        self._resident()
        self._enter(State.CHOOSING)


def _ways_called(names: str, cores: int) -> tuple[int, ...]:
    """The ways that a setting names, as pacing counts them."""
    counts = {"resident": RESIDENT, "prepared": PREPARED, "planned": cores}
    return tuple(dict.fromkeys(counts[name] for name in names.split(", ")))


def _schema(columns: pa.Schema) -> Schema:
    fields = from_arrow_schema(columns).fields
    return Schema(tuple(Column(field.name, type_text(field.dataType)) for field in fields))
