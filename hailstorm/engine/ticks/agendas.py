"""What is due: the agendas of all steps against their watermarks and the wall clock.

A tick handles what its base's watermarks have made due (stages ask `Task.due`). The negotiator asks here whether there
is such a thing, to make a tick without input; the committer, how far a tick has come and which watermarks its steps
hand on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hailstorm.clock.watermark import BEGINNING, END, OfSteps, Time, due_until
from hailstorm.ledger.commit import Run, StateChange
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live, changed_runs
from hailstorm.ledger.lookup import range_of
from hailstorm.topology.topology import Topology

Runs = Mapping[str, tuple[Run, ...]]


@dataclass(frozen=True)
class Agendas:
    topology: Topology
    ledger: Ledger

    def system_time(self, live: Live, clock: datetime) -> datetime:
        """The wall clock; but when it was put back, the time up to which system timers have been handled.

        A timer that was set for a time before that would never be due.
        """
        handled = [live.reached.get(table, BEGINNING) for _, table, clock_ in self._all(live) if clock_ == "system"]
        latest = max(handled, default=BEGINNING)
        if latest == BEGINNING:
            return clock
        return max(clock, datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=latest))

    def is_due(self, live: Live, times: OfSteps, now: int) -> bool:
        """Whether a tick from here would find something due, at these watermarks and this time."""
        return any(
            self._has_entries(live.runs, live.reached, table, due_until(clock, times[step][0], now, live.commit))
            for step, table, clock in self._all(live)
            if clock != "kept"
        )

    def reached(self, base: Live, now: int) -> dict[str, int]:
        """How far every agenda has been handled after a tick from this base."""
        reached = dict(base.reached)
        for step, table, clock in self._all(base):
            until = due_until(clock, base.watermarks.get(step, (None, None))[0], now, base.commit)
            if until is not None:
                reached[table] = max(until, reached.get(table, BEGINNING))
        return reached

    def released(self, base: Live, change: Mapping[str, StateChange], reached: Mapping[str, int]) -> _Released:
        """What the steps that hold rows back hand on, once this tick from the base is committed."""
        # Also of agendas that no tick has handled yet: what a first tick has left to wait is not released.
        tables = [table for _, table, _ in self._all(base)]
        runs = {table: changed_runs(base.runs.get(table, ()), change.get(table, StateChange())) for table in tables}
        return _Released(self, base, runs, reached)

    def _all(self, live: Live) -> Iterator[tuple[str, str, str]]:
        """Step, table and clock of every agenda of the topology."""
        for step in self.topology.steps:
            shape = live.steps.get(step.name)
            for table, clock in shape.agendas.items() if shape is not None else ():
                yield step.name, table, clock

    def _has_entries(self, runs: Runs, reached: Mapping[str, int], table: str, until: Time) -> bool:
        after = reached.get(table, BEGINNING)
        if until is None or until <= after:
            return False
        near = (run for run in runs.get(table, ()) if run.first <= until and run.last > after)
        return any(range_of(self.ledger.cache.open(table, run), after, until).num_rows for run in near)


@dataclass(frozen=True)
class _Released:
    """The output watermark of a step: of one that holds rows back, up to where everything has been released; less how
    far behind it the rows of a step can be.

    When nothing waits until the new input watermark, that is this one; otherwise what the tick has handled, and the
    next tick releases the rest.
    """

    agendas: Agendas
    base: Live
    runs: Runs
    reached: Mapping[str, int]

    def __call__(self, step: str, watermark: Time) -> Time:
        declared = self.agendas.topology.step(step)
        if watermark is None:
            return None
        shape = self.base.steps.get(step) if declared.holds else None
        tables = [table for table, clock in shape.agendas.items() if clock == "event"] if shape is not None else []
        waiting = [t for t in tables if self.agendas._has_entries(self.runs, self.reached, t, watermark)]
        if waiting:
            handled = min(self.reached.get(table, BEGINNING) for table in waiting)
            return None if handled == BEGINNING else min(watermark, handled) - declared.behind_us
        return watermark if watermark == END else watermark - declared.behind_us
