"""Choosing the next clock: how far the logs are, how much of that a tick takes, and what it leaves out on overload.

A topology is overloaded when more than ten ticks' worth of records waits. Then, of what waits in each partition,

    queue    reads the oldest, as ever: the log keeps the rest
    drop     skips to the newest tick's worth, and reads that
    sample   takes the oldest tenth, and reads the newest tick's worth of it: one in k where k times too many come

so a tick reads one stretch of a partition, which its commit names, and what it skipped is a hole before that stretch.
The negotiator asks once per tick. Logs of a system of its own (Kafka) change around us: they have a roster, which the
ledger keeps beside the clock, and they are told when a commit was made.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from hailstorm.clock.clock import Clock, Interval
from hailstorm.errors import LogError
from hailstorm.ledger.commit import GONE, Hole, Holes, count_skipped
from hailstorm.ledger.live import Live
from hailstorm.spouts.source import LivingSource, Source, holes
from hailstorm.topology.settings import OnOverload
from hailstorm.topology.step import Spout, Step
from hailstorm.topology.topology import Topology

OnDataLoss = Literal["fail", "continue"]
_OVERLOAD = 10  # ticks' worth of records
# What the holes are called, and the part of what waits that a tick covers.
_SKIPPING: Mapping[str, tuple[str, float]] = {
    "drop": ("dropped", 1.0),
    "sample": ("sampled", 1 / _OVERLOAD),
}


@dataclass(frozen=True)
class Choice:
    """What the next tick reads, how many records wait in all, and which ones nobody will read."""

    interval: Interval
    lag: int
    holes: Holes

    @property
    def lag_after(self) -> int:
        """How many records wait when the tick is done."""
        return max(0, self.lag - len(self.interval) - count_skipped(self.holes))


class Logs:
    """The logs of a topology's spouts, as a ledger remembers them."""

    def __init__(self, topology: Topology, head: Live, on_data_loss: OnDataLoss = "fail") -> None:
        self._on_data_loss = on_data_loss
        self.rosters = dict(head.rosters)
        self._telling = threading.Lock()
        self._untold: Clock | None = None
        self.sources: dict[str, Source] = {}
        for step in topology.steps:
            if isinstance(step, Spout):
                self.sources[step.name] = step.source
                if isinstance(step.source, LivingSource):
                    self.sources[step.name] = step.source.remembering(self.rosters.get(step.name, {}))

    def refresh(self) -> bool:
        """Ask living logs for their rosters. Whether one has changed: then tasks need the new copy of the log."""
        changed = False
        for name, source in self.sources.items():
            if isinstance(source, LivingSource):
                roster = dict(source.roster(accept_new=self._on_data_loss == "continue"))
                if roster != self.rosters.get(name):
                    self.rosters[name] = roster
                    self.sources[name] = source.remembering(roster)
                    changed = True
        return changed

    def used_by(self, topology: Topology) -> Topology:
        """The topology with its spouts reading these copies."""

        def remembering(step: Step) -> Step:
            return replace(step, source=self.sources[step.name]) if isinstance(step, Spout) else step

        return topology.with_steps(remembering)

    def latest(self) -> Clock:
        """Where the logs end now: the target of `--until caught-up`."""
        try:
            self.refresh()  # with the topics that have appeared since the last run
            return Clock({name: dict(source.latest()) for name, source in self.sources.items()})
        except OSError as error:
            raise LogError(90, f"a log cannot be read: {error}") from error

    def choose(self, head: Clock, target: Clock | None, limit: int, on_overload: OnOverload = "queue") -> Choice:
        """The next interval from `head`, of at most about `limit` records, spread over partitions by what waits."""
        starts: dict[str, dict[int, int]] = {}
        waiting: dict[str, dict[int, int]] = {}
        left_out: Holes = {}
        for name, source in self.sources.items():
            latest = source.latest()
            starts[name] = self._starts(name, source, head, latest)
            if self._on_data_loss == "continue":
                for partition, lost in holes(source, starts[name]).items():
                    starts[name][partition] = lost.stop
                    _add(left_out, name, partition, Hole(lost.start, lost.stop, GONE))
            ends = {p: min(end, (target.offset(name, p) or 0) if target else end) for p, end in latest.items()}
            waiting[name] = {p: max(0, ends[p] - starts[name][p]) for p in latest}
        lag = sum(count for partitions in waiting.values() for count in partitions.values())
        share = min(1.0, limit / lag) if lag else 1.0
        reason, covered = _SKIPPING.get(on_overload, ("", share)) if lag > _OVERLOAD * limit else ("", share)
        clock: dict[str, dict[int, int]] = {}
        for name, partitions in waiting.items():
            clock[name] = {p: starts[name][p] + _part(count, covered) for p, count in partitions.items()}
            for partition, count in partitions.items():
                begin = clock[name][partition] - _part(count, share)
                if begin > starts[name][partition]:
                    _add(left_out, name, partition, Hole(starts[name][partition], begin, reason))
                    starts[name][partition] = begin
        return Choice(Interval(head.join(Clock(starts)), head.join(Clock(clock))), lag, left_out)

    def _starts(self, name: str, source: Source, head: Clock, latest: Mapping[int, int]) -> dict[int, int]:
        """Where to go on in each partition; one that is new begins at its first record, or where the log says."""
        known = {p: offset for p in latest if (offset := head.offset(name, p)) is not None}
        if len(known) == len(latest):
            return known
        first = source.beginning(known) if isinstance(source, LivingSource) else source.earliest()
        return {p: known[p] if p in known else first.get(p, 0) for p in latest}

    def committed(self, clock: Clock) -> None:
        """Let living logs show how far we are, for other people's dashboards. Nobody waits for it, or needs it."""
        if any(isinstance(source, LivingSource) for source in self.sources.values()):
            self._untold = clock
            if not self._telling.locked():
                threading.Thread(target=self._tell, name="offsets", daemon=True).start()

    def _tell(self) -> None:
        """Tell the newest clock, and the one that has come meanwhile: it may be the last for a long time.

        Whoever finds the lock taken leaves it to the one who has it: that one looks again after letting it go.
        """
        while self._untold is not None and self._telling.acquire(blocking=False):
            try:
                clock, self._untold = self._untold, None
                for name, source in self.sources.items():
                    if clock is not None and isinstance(source, LivingSource) and clock.offsets.get(name):
                        source.committed(clock.offsets[name])
            except (LogError, OSError):
                pass  # the ledger knows how far we are; a dashboard that is behind harms nobody
            finally:
                self._telling.release()


def _part(count: int, share: float) -> int:
    """A share of so many records, and at least one of any."""
    return min(count, math.ceil(count * share))


def _add(holes: Holes, spout: str, partition: int, hole: Hole) -> None:
    holes.setdefault(spout, {}).setdefault(str(partition), []).append(hole)
