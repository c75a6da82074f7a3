"""Choosing the next clock: how far the logs are, how much of that a tick takes, and what it leaves out on overload.

A topology is overloaded when more than ten ticks' worth of records waits. Then, of what waits in each partition,

    queue    reads the oldest, as ever: the log keeps the rest
    drop     skips to the newest tick's worth, and reads that
    sample   takes the oldest tenth, and reads the newest tick's worth of it: one in k where k times too many come

so a tick reads one stretch of a partition, which its commit names, and what it skipped is a hole before that stretch.
The negotiator looks once per tick. Logs change around us: topics and partitions appear, logs are deleted and made
again. So each spout has a roster, which the ledger keeps beside the clock. Where a partition begins that the clock does
not name yet is asked once and committed before anything of it is read: what comes between two looks is never skipped.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine.ticks.weighing import Weights
from hailstorm.errors import LogError, TransientLogError
from hailstorm.ledger.commit import GONE, Hole, Holes, count_skipped
from hailstorm.ledger.live import Live
from hailstorm.spouts.roster import OneLog, living
from hailstorm.spouts.source import Gradual, LivingSource, holes
from hailstorm.topology.settings import OnOverload
from hailstorm.topology.topology import Topology

OnDataLoss = Literal["fail", "continue"]
Rosters = dict[str, dict[str, str]]
_SETTLING = 10.0  # seconds for which a log may end before our clock
_OVERLOAD = 10  # ticks' worth of records
_FEW = 8  # a part of a tick, by the number of partitions, that every partition may have
_FRESH = 1.0  # seconds for which a log that is followed need not be asked
# What the holes are called, and the part of what waits that a tick covers.
_SKIPPING: Mapping[str, tuple[str, float]] = {
    "drop": ("dropped", 1.0),
    "sample": ("sampled", 1 / _OVERLOAD),
}


@dataclass(frozen=True)
class Look:
    """How far the logs are, which logs they are, and where partitions begin that the ledger's clock does not name."""

    ends: Clock
    begins: Clock
    rosters: Rosters

    def news(self, head: Live) -> dict[str, Any]:
        """The fields of a commit that tells what is new since `head`; none when nothing is."""
        clock = head.position().join(self.begins).to_json()
        if clock == head.clock and self.rosters == head.rosters:
            return {}
        # A log that was replaced says nothing more: its partitions must not hold the watermark back.
        there = {spout: {str(p) for p in partitions} for spout, partitions in self.ends.offsets.items()}
        event_times = {
            spout: {p: seen for p, seen in row.items() if p in there.get(spout, row)}
            for spout, row in head.event_times.items()
        }
        return {"start": clock, "end": clock, "rosters": self.rosters, "event_times": event_times}


@dataclass(frozen=True)
class Choice:
    """What the next tick reads, how many records wait in all, and which ones nobody will read."""

    interval: Interval
    lag: int
    holes: Holes
    cut: bool = False  # whether there would be more, were it not for its bytes

    @property
    def lag_after(self) -> int:
        """How many records wait when the tick is done."""
        return max(0, self.lag - len(self.interval) - count_skipped(self.holes))


class Logs:
    """The logs of a topology's spouts, as a ledger remembers them."""

    def __init__(
        self, topology: Topology, head: Live, on_data_loss: OnDataLoss = "fail", accept: tuple[str, ...] = ()
    ) -> None:
        """`accept` names the spouts whose log may be another one than before, at the first look."""
        self._on_data_loss, self._accept = on_data_loss, set(accept)
        self.rosters: Rosters = dict(head.rosters)
        self._telling = threading.Lock()
        self._untold: Clock | None = None
        self._first: Look | None = None
        self.weights = Weights()
        self.accepted: list[str] = []  # spouts that read another log than before
        self._shorter_since: float | None = None
        self._asked: dict[str, float] = {}  # when each log was asked how far it is
        self._ends: dict[str, dict[int, int]] = {}  # what it said
        self.sources: dict[str, LivingSource] = {
            spout.name: living(spout.source).remembering(self.rosters.get(spout.name, {}), spout.name)
            for spout in topology.spouts
        }

    def first_look(self, head: Clock, at_all: bool = False) -> Look:
        """The look with which a run starts: taken once, and early, because `start="latest"` means that moment."""
        self._first = self._first or self.look(head, at_all=at_all)
        return self._first

    def look(self, head: Clock, heard: Mapping[str, Mapping[int, int]] | None = None, at_all: bool = False) -> Look:
        """Ask all logs. `head` is the ledger's clock.

        Of a spout that somebody follows, `heard` says how far it is, where that is further than before: those are asked
        themselves once per second only. The ends may be those of a part, of a log that a look only gets through in
        parts (Files); `at_all` looks at all that is there, however long that takes.
        """
        now = time.monotonic()
        known = {name for name in heard or () if now - self._asked.get(name, -math.inf) < _FRESH}
        asked = [name for name in self.sources if name not in known]
        try:
            self.refresh(asked)
            ends = {name: dict(_end(self.sources[name], at_all)) for name in asked}
            begins = {
                name: self._begins(name, self.sources[name], head, ends[name])
                for name in asked
                if name not in head.offsets or ends[name].keys() - head.offsets[name].keys()
            }
        except OSError as error:
            raise LogError(90, f"a log cannot be read: {error}") from error
        self._refuse_shorter(head, ends)
        self._asked |= dict.fromkeys(asked, now)
        self._ends |= ends
        for name in known:
            row = (heard or {})[name]
            ends[name] = {p: max(end, row.get(p, 0), head.offset(name, p) or 0) for p, end in self._ends[name].items()}
        return Look(Clock(ends), Clock(begins), dict(self.rosters))

    def refresh(self, names: Iterable[str] | None = None) -> bool:
        """Ask for the rosters. Whether one has changed: then tasks need the new copy of the log."""
        changed = False
        for name in list(self.sources if names is None else names):
            source = self.sources[name]
            # In a cluster topics come and go, and to go on without them is what "continue" says.
            goes_on = self._on_data_loss == "continue" and not isinstance(source, OneLog)
            roster = dict(source.roster(goes_on or name in self._accept))
            if name in self._accept and self.rosters.get(name, roster) != roster:
                self.accepted.append(name)
            self._accept.discard(name)
            if roster != self.rosters.get(name):
                self.rosters[name] = roster
                self.sources[name] = source.remembering(roster)
                changed = True
        return changed

    def _begins(self, name: str, source: LivingSource, head: Clock, ends: Mapping[int, int]) -> dict[int, int]:
        begins = source.beginning(first=name not in head.offsets)
        return {p: begins.get(p, 0) for p in ends if head.offset(name, p) is None}

    def _refuse_shorter(self, head: Clock, ends: Mapping[str, Mapping[int, int]]) -> None:
        """What would be appended below the clock would never be read. A broker may be behind for a moment."""
        for name, partition, offset in head:
            end = ends.get(name, {}).get(partition)
            if end is not None and end < offset:
                now = time.monotonic()
                self._shorter_since = self._shorter_since or now
                what = f"partition {partition} of spout '{name}' ends at {end}, and was already read up to {offset}"
                if now - self._shorter_since < _SETTLING:
                    raise TransientLogError(62, what)
                raise LogError(
                    62,
                    what,
                    hint="The log was restored from an old copy, or has lost records. Bring it back, or begin with a\n"
                    "new ledger: --ledger PATH",
                )
        self._shorter_since = None

    def used_by(self, topology: Topology) -> Topology:
        """The topology with its spouts reading these copies."""
        return topology.with_sources(lambda spout: self.sources[spout.name])

    def choose(
        self,
        head: Clock,
        ends: Clock,
        target: Clock | None,
        limit: int,
        on_overload: OnOverload = "queue",
        most_bytes: int | None = None,
    ) -> Choice:
        """The next interval from `head`, of at most about `limit` records, spread over partitions by what waits, and
        of at most about `most_bytes`.

        `head` names every partition of `ends`: where they begin has been committed.
        """
        starts: dict[str, dict[int, int]] = {}
        waiting: dict[str, dict[int, int]] = {}
        left_out: Holes = {}
        for name, latest in ends.offsets.items():
            starts[name] = {p: head.offsets[name][p] for p in latest}
            if self._on_data_loss == "continue":
                for partition, lost in holes(self.sources[name], starts[name]).items():
                    starts[name][partition] = lost.stop
                    _add(left_out, name, partition, Hole(lost.start, lost.stop, GONE))
            wanted = {p: min(end, (target.offset(name, p) or 0) if target else end) for p, end in latest.items()}
            waiting[name] = {p: max(0, wanted[p] - starts[name][p]) for p in latest}
        counts = [count for partitions in waiting.values() for count in partitions.values()]
        lag, share = sum(counts), _sharing(counts, limit)
        reason, covered = _SKIPPING.get(on_overload, ("", 0.0)) if lag > _OVERLOAD * limit else ("", 0.0)
        clock: dict[str, dict[int, int]] = {}
        for name, partitions in waiting.items():
            clock[name] = {}
            for partition, count in partitions.items():
                read = share(count)
                clock[name][partition] = starts[name][partition] + max(read, math.ceil(count * covered))
                begin = clock[name][partition] - read
                if begin > starts[name][partition]:
                    _add(left_out, name, partition, Hole(starts[name][partition], begin, reason))
                    starts[name][partition] = begin
        interval = Interval(head.join(Clock(starts)), head.join(Clock(clock)))
        light = interval if most_bytes is None else self.weights.bounded(interval, self.sources, most_bytes)
        return Choice(light, lag, left_out, light is not interval)

    def there(self, clock: Clock) -> dict[str, dict[int, int]]:
        """Of a clock, what the last look has found. A clock also names partitions of logs that are gone: whoever is
        asked for those refuses all."""
        ends = dict(self._ends)
        found = {
            name: {p: at for p, at in row.items() if p in ends.get(name, ())} for name, row in clock.offsets.items()
        }
        return {name: row for name, row in found.items() if row}

    def committed(self, clock: Clock) -> None:
        """Let logs show how far we are, for other people's dashboards. Nobody waits for it, or needs it."""
        if not all(isinstance(source, OneLog) for source in self.sources.values()):
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
                for name, offsets in self.there(clock or Clock({})).items():
                    self.sources[name].committed(offsets)
            except (LogError, OSError):
                pass  # the ledger knows how far we are; a dashboard that is behind harms nobody
            finally:
                self._telling.release()


def _end(source: LivingSource, of_all: bool) -> Mapping[int, int]:
    return source.latest_of_all() if of_all and isinstance(source, Gradual) else source.latest()


def _sharing(counts: Sequence[int], limit: int) -> Callable[[int], int]:
    """How many of the records that wait in a partition a tick takes, of at most about `limit` in all: by what waits, so
    that partitions stay together in time; but of a log with few records beside a large one, these at once."""
    if sum(counts) <= limit:
        return lambda count: count
    few = limit // (_FEW * len(counts))
    at_once = sum(min(count, few) for count in counts)
    waiting, spare = sum(counts) - at_once, limit - at_once

    def part(count: int) -> int:
        own = min(count, few)
        return own - (own - count) * spare // waiting  # rounded up: at least one of any

    return part


def _add(holes: Holes, spout: str, partition: int, hole: Hole) -> None:
    holes.setdefault(spout, {}).setdefault(str(partition), []).append(hole)
