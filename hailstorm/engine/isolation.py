"""Isolation: which records make a tick fail, when only Spark or a monoid of one's own can tell.

A bolt in Python refuses a row where it fails. An SQL expression that fails on a row ends the whole Spark job instead.
Then the interval is halved until the bad records are alone; they become dead letters, as whole records, and the tick
runs again without them. It costs a few tries per bad record, and only when there is one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hailstorm.clock.clock import Clock, Interval, Range
from hailstorm.errors import RunError

Excluded = dict[str, dict[int, dict[int, str]]]  # spout -> partition -> offset -> why


def poisoned_records(interval: Interval, attempt: Callable[[Interval], RunError | None], most: int) -> Excluded | None:
    """The records on which `attempt` fails by themselves; None when there are more than `most`."""
    found: Excluded = {}
    count = 0
    open_ = [_halves(interval.ranges())]
    while open_:
        for ranges in open_.pop():
            error = attempt(_interval_of(ranges))
            if error is None:
                continue
            if sum(map(len, ranges)) > 1:
                open_.append(_halves(ranges))
                continue
            (only,) = ranges
            found.setdefault(only.spout, {}).setdefault(only.partition, {})[only.start] = error.what
            count += 1
            if count > most:
                return None
    return found


def _halves(ranges: Sequence[Range]) -> list[tuple[Range, ...]]:
    """The ranges as two shares of about as many offsets; one share when there is one offset."""
    left: list[Range] = []
    right: list[Range] = []
    room = -(-sum(map(len, ranges)) // 2)
    for one in ranges:
        cut = min(one.end, one.start + room)
        room -= cut - one.start
        if cut > one.start:
            left.append(Range(one.spout, one.partition, one.start, cut))
        if one.end > cut:
            right.append(Range(one.spout, one.partition, cut, one.end))
    return [tuple(share) for share in (left, right) if share]


def _interval_of(ranges: Sequence[Range]) -> Interval:
    starts: dict[str, dict[int, int]] = {}
    ends: dict[str, dict[int, int]] = {}
    for one in ranges:
        starts.setdefault(one.spout, {})[one.partition] = one.start
        ends.setdefault(one.spout, {})[one.partition] = one.end
    return Interval(Clock(starts), Clock(ends))
