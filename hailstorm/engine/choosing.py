"""Choosing the next clock: how far the logs are, and how much of that a tick takes.

The negotiator asks once per tick. Logs of a system of its own (Kafka) change around us: they have a roster, which the
ledger keeps beside the clock, and they are told when a commit was made.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from hailstorm.clock.clock import Clock, Interval
from hailstorm.errors import LogError
from hailstorm.ledger.live import Live
from hailstorm.spouts.source import LivingSource, Source, holes
from hailstorm.topology.step import Spout, Step
from hailstorm.topology.topology import Topology

OnDataLoss = Literal["fail", "continue"]
Holes = dict[str, dict[str, list[tuple[int, int]]]]  # spout -> partition -> ranges of offsets that are gone


@dataclass(frozen=True)
class Choice:
    """What the next tick reads, how many records wait in all, and which ones are gone for good."""

    interval: Interval
    lag: int
    holes: Holes


class Logs:
    """The logs of a topology's spouts, as a ledger remembers them."""

    def __init__(self, topology: Topology, head: Live, on_data_loss: OnDataLoss = "fail") -> None:
        self._on_data_loss = on_data_loss
        self.rosters = dict(head.rosters)
        self._telling = threading.Lock()
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

    def choose(self, head: Clock, target: Clock | None, limit: int) -> Choice:
        """The next interval from `head`, of at most about `limit` records, spread over partitions by what waits."""
        starts: dict[str, dict[int, int]] = {}
        waiting: dict[str, dict[int, int]] = {}
        gone: Holes = {}
        for name, source in self.sources.items():
            latest = source.latest()
            starts[name] = self._starts(name, source, head, latest)
            if self._on_data_loss == "continue":
                found = holes(source, starts[name])
                starts[name] |= {partition: lost.stop for partition, lost in found.items()}
                if found:
                    gone[name] = {str(p): [(lost.start, lost.stop)] for p, lost in found.items()}
            ends = {p: min(end, (target.offset(name, p) or 0) if target else end) for p, end in latest.items()}
            waiting[name] = {p: max(0, ends[p] - starts[name][p]) for p in latest}
        lag = sum(count for partitions in waiting.values() for count in partitions.values())
        share = 1.0 if lag <= limit else limit / lag
        ends_by_spout = {
            spout: {p: starts[spout][p] + -int(-count * share // 1) for p, count in partitions.items()}
            for spout, partitions in waiting.items()
        }
        return Choice(Interval(head.join(Clock(starts)), head.join(Clock(ends_by_spout))), lag, gone)

    def _starts(self, name: str, source: Source, head: Clock, latest: Mapping[int, int]) -> dict[int, int]:
        """Where to go on in each partition; one that is new begins at its first record, or where the log says."""
        known = {p: offset for p in latest if (offset := head.offset(name, p)) is not None}
        if len(known) == len(latest):
            return known
        first = source.beginning(known) if isinstance(source, LivingSource) else source.earliest()
        return {p: known[p] if p in known else first.get(p, 0) for p in latest}

    def committed(self, clock: Clock) -> None:
        """Let living logs show how far we are, for other people's dashboards. Nobody waits for it, or needs it."""
        living = [(n, s) for n, s in self.sources.items() if isinstance(s, LivingSource) and clock.offsets.get(n)]
        if living and self._telling.acquire(blocking=False):
            threading.Thread(target=self._tell, args=(living, clock), name="offsets", daemon=True).start()

    def _tell(self, living: list[tuple[str, LivingSource]], clock: Clock) -> None:
        try:
            for name, source in living:
                source.committed(clock.offsets[name])
        except (LogError, OSError):
            pass  # the ledger knows how far we are; a dashboard that is behind harms nobody
        finally:
            self._telling.release()
