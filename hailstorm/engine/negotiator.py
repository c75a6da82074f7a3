"""The negotiator: the driver's loop. It forms clocks, advances, commits, and lets delivery and housekeeping follow.

      starting ──> choosing ──> advancing ──> committing ──┐
                    │  ▲ ▲                                 │
                    │  │ └─────────────────────────────────┘
             idle <─┤  │
           paused <─┘──┘        (idle: nothing new; paused: a sink is too far behind)

      every state ──> draining ──> stopped                  (asked to stop, or the target clock is reached)
      every state ──> failed                                (an error that a person must see)

It alone says when an advance is tried (ticks/attempts.py) and a commit made (ticks/committing.py). What is not
committed never happened: after a crash the next run goes on from the last commit, and nobody has to be asked. What
goes on beside ticks is in beside.py, what is told of them in account.py, and waiting for news in ticks/resting.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum

from pyspark.sql import SparkSession

from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine.account import Account
from hailstorm.engine.advance import Outcome, Work
from hailstorm.engine.beside import Beside, typed_sinks
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.delivery.renamed import hand_over, let_go
from hailstorm.engine.plan.needs import Found
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.progress import OnProgress, Retried, Summary, ignore_progress
from hailstorm.engine.resident.keeper import Keeper
from hailstorm.engine.resident.resident import Resident
from hailstorm.engine.retry import Retry
from hailstorm.engine.retry_wait import retry_wait
from hailstorm.engine.spark.priorities import let_the_jvm_yield
from hailstorm.engine.spark.session import is_on_this_machine
from hailstorm.engine.ticks.attempts import Attempts
from hailstorm.engine.ticks.beginning import begin
from hailstorm.engine.ticks.calendar import Calendar
from hailstorm.engine.ticks.committing import Committer
from hailstorm.engine.ticks.evolution import evolution, require_consent
from hailstorm.engine.ticks.logs import Choice, Logs, Look
from hailstorm.engine.ticks.pacing import PREPARED, RESIDENT, Pace, ways_called
from hailstorm.engine.ticks.plans import Made, Plans
from hailstorm.engine.ticks.renaming import describe_renamed, renames
from hailstorm.engine.ticks.replacing import Replacement
from hailstorm.engine.ticks.resting import Resting
from hailstorm.engine.tolerance import Tolerance
from hailstorm.errors import TransientLogError
from hailstorm.faults import fault
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.renaming import Names, move_published
from hailstorm.topology.settings import Settings
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

_BETWEEN_SECONDS = 0.005


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
        made: Made | None = None,
    ) -> None:
        """`made` are plans from before the ledger was ours (standby.py)."""
        self.logs = logs or Logs(topology, ledger.head, accept=accept)
        self.spark, self.topology, self.ledger = spark, topology, ledger
        self.settings = settings or topology.settings
        self.state = State.STARTING
        self._accept = accept
        self.account = Account(ledger, on_progress)
        self._outbox = LedgerOutbox(ledger)
        self._calendar = Calendar(topology, ledger, now)
        self._committer = Committer(topology, ledger, self._outbox)
        self._attempts = Attempts(spark, topology, ledger, self.settings, self._say)
        self._keeper = Keeper(spark, self.settings.resident_memory, self._say)
        # Whoever names the ways wants these and no others, also where that means to wait for a resident worker.
        self._insists = ways is not None or self.settings.ways != Settings.ways
        self._follows_cores = ways is None and not is_on_this_machine(spark)
        ways = ways or ways_called(self.settings.ways, spark.sparkContext.defaultParallelism)
        self._pace = Pace(self.settings.latency_ms / 1000, self.settings.max_tick_rows, ways)
        self._plans = Plans(spark, topology, self.logs, made)
        self._resting = Resting(self.logs, self._plans, eager=not self.settings.latency_ms)
        self._recent = Tolerance.of(self.settings).begun(ledger.head.recent)
        self._committing = 0.0  # seconds that the last commit took
        self._unreachable = 0  # how often in a row a log was not to be reached
        self._started: Beside | None = None
        self._stop = threading.Event()

    # Life

    def start(self, reading: bool = True, resend: tuple[str, ...] = (), replacement: Replacement | None = None) -> None:
        """Compile, check that the ledger may go on with this topology, and start delivery and housekeeping.

        Unless it is not for `reading`, where spouts begin is in the first commit. The sinks in `resend` get the whole
        of their table, whatever their targets hold. A `replacement` takes the place of the state of its steps first.

        The topology was validated by whoever took it from a user. A second run has a part of it, whose last steps
        nothing reads.
        """
        self.account.say("starting", "reading the ledger")
        look = None
        if reading:
            with suppress(TransientLogError):  # then the first tick waits for it
                look = self.logs.first_look(self.position())
        for name in self.logs.accepted:
            self.account.say("starting", f"spout '{name}' reads another log than before, from its beginning")
        self.account.say("starting", "compiling the topology")
        plan = self.plan(self._pace.ways[0])
        if reading and plan.tasks == PREPARED:
            Found(plan.can_be_resident, plan.needs).leave(self.ledger.cache.folder)
        self._go_on_with(plan, look, replacement)
        self._started = Beside(
            self.spark,
            self.topology,
            self.ledger,
            self.settings,
            plan,
            self._committer,
            self._outbox,
            self._calendar.now,
            max(*self._pace.ways, PREPARED),
        )
        self.account.deliverer = self._beside.deliverer
        self._beside.start(resend)
        let_the_jvm_yield(self.spark)
        if reading:
            self._resident()  # it starts while the first ticks are run
        self._enter(State.CHOOSING)

    def _go_on_with(self, plan: Plan, look: Look | None, replacement: Replacement | None) -> None:
        """Commit what is different from the run before, if the user consents to it."""
        found = evolution(self.topology, self.ledger.head, plan.key_types)
        self.account.notes = (*self.account.notes, *found.describe())
        require_consent(self.topology, found, self._accept, () if replacement is None else replacement.steps)
        if found.renamed:
            self._rename(found.renamed)
            found = evolution(self.topology, self.ledger.head, plan.key_types)
        if found.any or not self.ledger.head.commit:
            replaced = () if replacement is None else replacement.steps
            readers = [name for name in found.begins if name not in replaced]
            used = self.logs.used_by(self.topology)
            begun = begin(self.spark, used, self.ledger, readers, self._calendar.now())
            if begun is not None:
                self._attempts.refuse_fatal(begun.outcome)
            self._committer.evolution(plan, found, look, replacement, begun)
            self._recent = ()  # other code: what failed before says nothing of it
        else:
            if replacement is not None:
                self._committer.backfill(plan, replacement)
            if look is not None:
                self._committer.beginnings(look)
        if replacement is not None:
            self.ledger.store.delete_folder(replacement.folder)

    def rename(self) -> None:
        """Let the ledger know the names of now. `start` does so by itself; whoever makes state before that (a second
        run over the logs) needs them first."""
        if names := renames(self.topology, self.ledger.head):
            self.account.notes = describe_renamed(names)
            self._rename(names)

    def _rename(self, names: Names) -> None:
        """One commit: state, coverage, letters and cursors go on under other names."""
        plan = self.plan(self._pace.ways[0])
        hand_over(self.topology.name, typed_sinks(self.topology, plan), names, self.ledger, self._outbox, self.settings)
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
        while not (stop.is_set() or self._beside.deliverer.stopped or (self._reached(target) and not more)):
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
        """Wait a little, because there was nothing to do, or a sink is too far behind: then nothing new matters."""
        if self.account.last.phase == "paused":
            self._resting.pause(self._stop)
        else:
            self._resting.rest(self._stop, self._resident(), self.position())

    def stop(self) -> Summary:
        """Deliver what is committed, and end. What cannot be delivered in time waits in the outbox."""
        self._enter(State.DRAINING)
        self._keeper.stop()
        self.account.say("delivering", "delivering what is committed")
        self._resting.end()
        self._beside.end(in_a_hurry=self._stop.is_set())
        self._enter(State.STOPPED)
        self.account.say("stopped")
        return self.account.summary()

    def fail(self) -> None:
        """End at once after an error. Deliveries that are under way are finished by the next run."""
        self.state = State.FAILED
        self._keeper.stop()
        self._resting.end()
        if self._started is not None:
            self._started.abandon()

    @property
    def _beside(self) -> Beside:
        assert self._started is not None, "not started"
        return self._started

    # A tick

    def tick(self, target: Clock | None = None) -> bool:
        """Choose, advance, commit. False when there was nothing to do, or it was given up to stop."""
        began = time.perf_counter()
        self._beside.catch_up()
        choice = self._chosen(target)
        if choice is None:
            return False
        self._enter(State.ADVANCING)
        chosen, began_at, now = time.perf_counter(), time.time(), self._calendar.now()
        outcome = self._advanced(choice.interval, now)
        if outcome is None:
            return False
        choice = replace(choice, interval=outcome.interval)
        self._recent = self._attempts.refuse_bad_tick(outcome, self._recent)
        advanced = time.perf_counter()
        self._pace.observe(outcome.way, len(choice.interval), advanced - chosen, choice.cut)
        self.logs.weights.learn(outcome.seen)
        self._enter(State.COMMITTING)
        outcome.timings["choose"] = chosen - began
        # A commit cannot say how long it takes itself, nor how long its delivery: it says it of those before.
        states = self._beside.deliverer.states()
        outcome.timings["commit"] = self._committing
        outcome.timings["deliver"] = max((sink.seconds for sink in states.values()), default=0.0)
        commit = self._committer.tick(choice, outcome, self._recent, now, advanced - began)
        outcome.timings["commit"] = self._committing = time.perf_counter() - advanced
        self.account.committed(commit, outcome, began_at)
        self.logs.committed(choice.interval.end)
        self._resident()  # a worker that is lost is let go now, and the next one starts
        self._resting.over()
        self._beside.notice()
        self.account.say_tick(outcome, choice.lag_after, time.perf_counter() - began)
        self._enter(State.CHOOSING)
        return True

    def _chosen(self, target: Clock | None) -> Choice | None:
        """What the next tick does; None when there is nothing to do, or nothing may be done, at the moment."""
        slow = self._beside.too_far_behind()
        if slow is not None:
            self._pass_through(State.PAUSED)
            message = f"until sink '{slow}' is at most {self.settings.outbox_limit:,} commits behind"
            self.account.say("paused", message, lag=self._lag(target))
            return None
        choice = self._next(target)
        if choice is None:
            self._pass_through(State.IDLE)
        elif not len(choice.interval) and not choice.holes and not self.due():
            self._pass_through(State.IDLE)
            if self.account.last.phase != "running" or self.account.last.lag:
                self.account.say("running", lag=0, rows=0)
            return None
        return choice

    def _next(self, target: Clock | None) -> Choice | None:
        """The next clock; None, after a while, when a log cannot be reached at the moment."""
        try:
            resident = self._resident()
            look = self.logs.look(self.position(), self._resting.heard(resident))
            self._committer.beginnings(look)
            # What is too much is known once the pace is.
            on_overload = self.settings.on_overload if self._pace.settled else "queue"
            choice = self.logs.choose(
                self.position(), look.ends, target, self._pace.rows, on_overload, self.settings.max_tick_bytes
            )
        except TransientLogError as error:
            self._unreachable += 1
            wait = retry_wait(self.topology.name, self._unreachable)
            self._say(f"trying again in {wait:.1f} s: {error.what}")
            self._stop.wait(wait)
            return None
        self._unreachable = 0
        return choice

    def _advanced(self, interval: Interval, now: datetime) -> Outcome | None:
        """What the tick has made, in the way that promises to be the quickest; None when it was given up to stop."""
        resident = self._resident(wait=self._insists)
        if self._follows_cores:  # executors come and go: between ticks, the number of tasks may change
            self._pace.replan(self.spark.sparkContext.defaultParallelism)
        way = self._pace.way(len(interval), resident is not None)
        plan, rosters = self.plan(way), self._plans.newer_rosters(way)
        work = Work(self.ledger, self.ledger.head, interval, int(now.timestamp() * 1_000_000), rosters=rosters)
        outcome = self._attempts.advance(plan, work, self._stop, resident if way == RESIDENT else None)
        if outcome is None:
            return None
        if resident is not None and outcome.way == RESIDENT and not resident.lost:
            self._resting.follow(resident, outcome.interval.end)
        else:
            self._resting.pass_by()
        self._outbox.hold(outcome.held)
        fault("after-write")
        return outcome

    def position(self) -> Clock:
        return self.ledger.head.position()

    def plan(self, way: int) -> Plan:
        return self._plans.of(way)

    def due(self) -> bool:
        """Whether a tick is due without input."""
        return self._calendar.is_due()

    def _resident(self, wait: bool = False) -> Resident | None:
        """The resident worker, if ticks may use one and it is there. If it is lost, this starts another one."""
        if RESIDENT not in self._pace.ways:
            return None
        return self._keeper.resident_for(self.plan(RESIDENT), wait)

    def _reached(self, target: Clock | None) -> bool:
        return target is not None and self.position().covers(target) and not self.due()

    def _lag(self, target: Clock | None) -> int:
        """How many records wait while nothing is read. What was known before, when a log does not answer."""
        with suppress(TransientLogError):
            position = self.position()
            return self.logs.choose(position, self.logs.look(position).ends, target, 1).lag
        return self.account.last.lag

    # In place of a tick

    def complete(self) -> None:
        """Say that the logs hold all that there will be, and do all that has waited for time."""
        self._committer.complete(self._calendar.now())
        while self.due() and not (self._stop.is_set() or self._beside.deliverer.stopped):
            if not self.tick(self.position()):
                self.rest()

    def replace(self, replacement: Replacement) -> None:
        """Between two ticks: let this state take the place of that of its steps."""
        self._committer.backfill(self.plan(self._pace.ways[0]), replacement)
        self.ledger.store.delete_folder(replacement.folder)
        self._beside.notice()
        # Their sinks lack the whole table, which they would find out when they are opened.
        fed = tuple(sink for sink, shape in self.ledger.head.sinks.items() if shape.since == self.ledger.head.commit)
        if fed:
            self._beside.give_whole_tables(fed)

    def retry(self) -> Retried:
        """Give dead letters their second chance: first rows that sinks rejected, then records, each as one commit."""
        self._enter(State.ADVANCING)
        deliverer, sinks = self._beside.deliverer, self._beside.sinks
        now = self._calendar.now()
        retry = Retry(self.spark, self.topology, self.ledger, self._attempts, self._committer, deliverer, sinks, now)
        done = retry.rejected_rows() + retry.letters(self._stop)
        self._recent = self.ledger.head.recent
        self._enter(State.COMMITTING)
        self._beside.notice()
        self._enter(State.CHOOSING)
        return done

    # States

    def _enter(self, state: State) -> None:
        ending = state in (State.DRAINING, State.FAILED)
        assert ending or state in _NEXT[self.state], f"{self.state} -> {state}"
        self.state = state

    def _pass_through(self, state: State) -> None:
        self._enter(state)
        self._resident()
        self._enter(State.CHOOSING)

    def _say(self, message: str) -> None:
        self.account.say("running", message)
