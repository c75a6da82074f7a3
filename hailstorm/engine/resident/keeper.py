"""The keeper: has a resident worker ready for the plan that ticks run, and another one when that is lost.

The negotiator owns one and asks it before and after every tick, in its own thread. Workers are started and ended beside
the ticks; while there is none, ticks are run as prepared, so nobody ever waits for a worker.

      none ──> starting ──> ready ──> lost, grown, or of an old plan
                  ▲                     │
                  └─────────────────────┘   (at once, or after waits that grow while workers are short-lived)
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.resident.resident import Refused, Resident, start_resident
from hailstorm.engine.spark.session import has_a_slot_for_a_resident, is_on_this_machine

_LONG_LIFE = 100  # ticks: a worker that has run so many was no failure
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
_SECONDS_OF_A_PLAN = 5.0  # a log that grows by files has a new plan for each: those get no worker
_SECONDS_TO_STOP = 5.0
_LOOK_SECONDS = 1.0  # between two looks at a cluster's slots


@dataclass(frozen=True)
class _Ready:
    """A worker knows the passes of one plan. Another plan may have passes of the same names."""

    plan: Plan
    resident: Resident


class Keeper:
    """`most_memory` is in bytes: a worker that has more is replaced between ticks. `tell` says to those who watch why
    a worker is replaced.
    """

    def __init__(self, spark: SparkSession, most_memory: int, tell: Callable[[str], None]) -> None:
        self._spark, self._most_memory, self._tell = spark, most_memory, tell
        self._changing = threading.Lock()
        self._plan: Plan | None = None  # that ticks run
        self._ready: _Ready | None = None
        self._starting: threading.Thread | None = None
        self._leaving: list[threading.Thread] = []
        self._short_lives = 0
        self._not_before = 0.0
        self._failure = ""  # why the last one did not start
        self._is_refused = False  # whether none ever will
        self._stopped = threading.Event()

    def resident_for(self, plan: Plan, wait: bool = False) -> Resident | None:
        """A worker that can run this plan, if there is one by now; else one is on its way, unless the plan needs the
        JVM. `wait` is for those who want no other way.
        """
        if self._stopped.is_set() or not plan.can_be_resident:
            return None
        with self._changing:
            self._note(plan)
            self._look()
            may_start = not self._is_refused and (wait or time.monotonic() >= self._not_before)
            if self._ready is None and self._starting is None and may_start:
                self._starting = threading.Thread(target=self._start, args=(plan,), name="resident", daemon=True)
                self._starting.start()
            starting = self._starting
        if wait and starting is not None:
            starting.join()
        ready = self._ready
        return ready.resident if ready is not None and ready.plan is plan else None

    def stop(self) -> None:
        """End the worker. Returns when it has left, or Spark was told to end it."""
        with self._changing:
            self._stopped.set()
            ready, self._ready = self._ready, None
        if ready is not None:
            ready.resident.end()
        for thread in (*self._leaving, self._starting):
            if thread is not None:
                thread.join(_SECONDS_TO_STOP)

    def _note(self, plan: Plan) -> None:
        if self._plan is not None and self._plan is not plan:
            self._not_before = max(self._not_before, time.monotonic() + _SECONDS_OF_A_PLAN)
        self._plan = plan

    def _look(self) -> None:
        """Let go of a worker that is of no more use."""
        if self._failure:
            self._tell(f"no resident worker has started: {self._failure}")
            self._failure = ""
        if self._ready is None:
            return
        resident = self._ready.resident
        if not resident.is_there():
            why = f"lost: {resident.lost}"
        elif resident.memory > self._most_memory:
            why = f"replaced: it has {resident.memory / 1e6:,.0f} MB, more than resident_memory allows"
        elif self._ready.plan is not self._plan:
            why = ""
        else:
            return
        if why:
            self._tell(f"the resident worker is {why}")
            self._count_life(resident.ticks)
        self._ready = None
        leaving = threading.Thread(target=resident.end, name="resident leaves", daemon=True)
        leaving.start()
        self._leaving = [thread for thread in self._leaving if thread.is_alive()] + [leaving]

    def _count_life(self, ticks: int) -> None:
        self._short_lives = 0 if ticks >= _LONG_LIFE else self._short_lives + 1
        if self._short_lives > 1:
            wait = min(_FIRST_WAIT * 2.0 ** (self._short_lives - 2), _LONGEST_WAIT)
            self._not_before = time.monotonic() + wait

    def _start(self, plan: Plan) -> None:
        started, why = None, ""
        try:
            started = start_resident(self._spark, plan.passes, lambda: self._wants(plan))
        except Exception as error:  # whatever it is: ticks go on as prepared
            why, self._is_refused = str(error), isinstance(error, Refused)
        with self._changing:
            self._starting = None
            if not self._wants(plan):
                unwanted = started
            elif started is None:
                unwanted, self._failure = None, why
                self._count_life(0)
            else:
                unwanted, self._ready = None, _Ready(plan, started)
                if not is_on_this_machine(self._spark):
                    threading.Thread(target=self._watch, args=(self._ready,), name="slots", daemon=True).start()
        if unwanted is not None:
            unwanted.end()

    def _wants(self, plan: Plan) -> bool:
        return not self._stopped.is_set() and self._plan is plan

    def _watch(self, ready: _Ready) -> None:
        """Executors of a cluster come and go. A worker that has the last slot would let the job of a tick wait for
        ever, and with it whoever asks us: so a thread of its own looks."""
        with suppress(Py4JError, OSError):  # the JVM has ended: so has the worker
            while self._ready is ready and not self._stopped.wait(_LOOK_SECONDS):
                if not has_a_slot_for_a_resident(self._spark):
                    ready.resident.dismiss("Spark needs its slot")
                    return
