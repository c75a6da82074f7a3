"""Isolation: which records make a tick fail, when only Spark or a monoid of one's own can tell.

A bolt in Python refuses a row where it fails. An SQL expression that fails on a row ends the whole Spark job instead.
Then the interval is halved until the bad records are alone; they become dead letters, as whole records, and the tick
runs again without them. It costs a few tries per bad record, so it has a budget. What was looked through when that is
spent is the beginning of the interval: a shorter tick can go on with it.

A monoid of one's own names the records on which it fails, some at each try of the tick (stages/own.py). These tries
spend the same budget; when it is spent, the tick is tried on the first half of its interval.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hailstorm.clock.clock import Clock, Interval, Range
from hailstorm.errors import BadRecord, RunError
from hailstorm.halving import failing_parts

Excluded = dict[str, dict[int, dict[int, str]]]  # spout -> partition -> offset -> why
Ranges = tuple[Range, ...]


def with_records(excluded: Excluded, records: Iterable[BadRecord]) -> Excluded:
    """What is excluded, and these as well. The first reason that was found for a record stays."""
    grown = {spout: {partition: dict(of) for partition, of in found.items()} for spout, found in excluded.items()}
    for record in records:
        grown.setdefault(record.spout, {}).setdefault(record.partition, {}).setdefault(record.offset, record.why)
    return grown


def count_records(excluded: Excluded) -> int:
    return sum(len(offsets) for partitions in excluded.values() for offsets in partitions.values())


class SearchStopped(Exception):
    """We were asked to stop while we looked."""


class Spent(Exception):
    """The budget is spent."""


@dataclass
class Budget:
    """How many jobs a search may run, and for how long. `stop` ends it at once.

    Time counts from the first bad record on: an error without an example helps nobody.
    """

    jobs: int
    seconds: float
    stop: threading.Event = field(default_factory=threading.Event)
    _ends: float | None = None

    def spend(self, found: int) -> None:
        if self.stop.is_set():
            raise SearchStopped
        if found and self._ends is None:
            self._ends = time.monotonic() + self.seconds
        if self.jobs <= 0 or (self._ends is not None and time.monotonic() > self._ends):
            raise Spent
        self.jobs -= 1


@dataclass
class Found:
    """The records that fail by themselves, and what was looked through to find them: all, or a beginning."""

    bad: Excluded = field(default_factory=dict)
    count: int = 0
    looked_through: list[Range] = field(default_factory=list)
    whole: bool = False

    def records(self) -> Iterator[BadRecord]:
        for spout, partitions in self.bad.items():
            for partition, offsets in partitions.items():
                for offset, why in offsets.items():
                    yield BadRecord(spout, partition, offset, why)

    def first(self, most: int) -> list[str]:
        """`tweets/0@17: why`, of the first few."""
        few = itertools.islice(self.records(), most)
        return [f"{one.spout}/{one.partition}@{one.offset}: {one.why}" for one in few]

    def interval(self, whole: Interval) -> Interval:
        """The beginning of the interval that was looked through; a partition that was not reached stays where it is."""
        ends = {(one.spout, one.partition): one.end for one in self.looked_through}
        reached: dict[str, dict[int, int]] = {}
        for spout, partition, end in whole.end:
            start = whole.start.offset(spout, partition)
            kept = ends.get((spout, partition), min(end, start or 0))
            if start is not None or kept:
                reached.setdefault(spout, {})[partition] = kept
        return Interval(whole.start, Clock(reached))


def bad_records(ranges: Ranges, attempt: Callable[[Ranges], RunError | None], budget: Budget) -> Found:
    """The records on which `attempt` fails by themselves. It is known to fail on all of them together."""
    found = Found()

    def counted(part: Ranges) -> RunError | None:
        budget.spend(found.count)
        failure = attempt(part)
        if failure is None or not _halves(part):
            found.looked_through.extend(part)
        return failure

    try:
        for (only,), failure in failing_parts(_halves(ranges) or [ranges], counted, _halves):
            found.bad.setdefault(only.spout, {}).setdefault(only.partition, {})[only.start] = failure.what
            found.count += 1
    except Spent:
        return found
    found.whole = True
    return found


def first_half(interval: Interval) -> Interval:
    """The beginning of an interval with about half of its records; all of it when that is one record."""
    halves = _halves(interval.ranges())
    return Found(looked_through=list(halves[0])).interval(interval) if halves else interval


def interval_of(ranges: Sequence[Range]) -> Interval:
    """The smallest interval that has all of them, in order of their offsets."""
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for one in ranges:
        starts.setdefault(one.spout, {}).setdefault(one.partition, one.start)
        ends.setdefault(one.spout, {})[one.partition] = one.end
    return Interval(Clock(starts), Clock(ends))


def _halves(ranges: Ranges) -> list[Ranges]:
    """The ranges as two shares of about as many offsets; nothing when there is one offset."""
    count = sum(map(len, ranges))
    if count < 2:
        return []
    left: list[Range] = []
    right: list[Range] = []
    room = -(-count // 2)
    for one in ranges:
        cut = min(one.end, one.start + room)
        room -= cut - one.start
        if cut > one.start:
            left.append(Range(one.spout, one.partition, one.start, cut))
        if one.end > cut:
            right.append(Range(one.spout, one.partition, cut, one.end))
    return [tuple(left), tuple(right)]
