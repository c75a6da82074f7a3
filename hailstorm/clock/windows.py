"""Windows: which stretches of the time line a moment falls into. Pure values over arrays of microseconds since 1970.

Windows are aligned to 1970 in a zone, moved by an offset: [start, end), one beginning every `every`. In a zone with
summer time they are aligned to what its clocks show, so a day has 23, 24 or 25 hours. A bound is when the clocks first
show it: a bound within an hour that is shown twice has passed, although they show an earlier time once more. Where a
changed clock moves windows by whole windows, as those that divide an hour, they all keep their length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Times = npt.NDArray[np.int64]
Emit = Literal["updates", "final"]
Late = Literal["correct", "side", "drop"]

HOUR = 3_600_000_000
MOST = 1_000  # windows that a row may be in, where each of them costs something


@dataclass(frozen=True)
class Closing:
    """When windows give their rows, and what becomes of late ones. `keep` is in microseconds."""

    emit: Emit = "updates"
    late: Late = "correct"
    keep: int = 24 * HOUR

    @property
    def accepts(self) -> int:
        """How long after its end a window still takes rows."""
        return self.keep if self.late == "correct" else 0


@dataclass(frozen=True)
class Windows:
    """Durations are microseconds. `every` may be larger than `size`: then there are gaps."""

    size: int
    every: int
    offset: int = 0
    zone: str = "UTC"

    @property
    def pane(self) -> int:
        """The largest stretch that no window cuts in two: windows that overlap share them."""
        return gcd(self.size, self.every)

    @property
    def at_most(self) -> int:
        """In how many windows a moment can be."""
        return -(-self.size // self.every)

    @property
    def reach(self) -> int:
        """How far from a moment the bounds of its windows can be. A zone's clocks are less than a day from UTC."""
        return self.size + (0 if self.zone == "UTC" else 48 * HOUR)

    def fits_its_zone(self) -> bool:
        """Whether a clock that is moved by an hour leaves every window in one piece.

        It does where bounds are hours that clocks show; where an hour more makes the same windows; and where each
        window lies within an hour.
        """
        within = HOUR % self.size == 0 and self.offset % self.size == 0
        return self.zone == "UTC" or self.pane % HOUR == 0 or HOUR % self.every == 0 or within

    def of(self, times: Times) -> tuple[npt.NDArray[np.int64], Times, Times]:
        """The windows of each moment: the index of the moment, start and end, a row per window."""
        places = np.arange(len(times))
        if self.size == self.every and len(times):
            start, end = self._only(times)
            return places, start, end
        shown = self.shown(times)
        last = (shown - self.offset) // self.every * self.every + self.offset  # the last one that begins before it
        found = []
        for number in range(self.at_most):
            start = last - number * self.every
            inside = shown - start < self.size
            found.append((places[inside], start[inside], times[inside], shown[inside]))
        index, start, moment, seen = (np.concatenate(parts) for parts in zip(*found, strict=True))
        return index, self._moment(start, moment, seen), self._moment(start + self.size, moment, seen)

    def _only(self, times: Times) -> tuple[Times, Times]:
        """The window of each moment, where each is in one. Most often all of them are in the same."""
        ends = np.array([times.min(), times.max()])
        if self.zone == "UTC" and ends[1] - ends[0] < self.every:
            first, last = (ends - self.offset) // self.every * self.every + self.offset
            start = np.full(len(times), first) if first == last else np.where(times < last, first, last)
            return start, start + self.size
        shown = self.shown(times)
        start = (shown - self.offset) // self.every * self.every + self.offset
        return self._moment(start, times, shown), self._moment(start + self.size, times, shown)

    def shown(self, times: Times) -> Times:
        """What the clocks of the zone show at these moments; once they were put back, at least the last bound of a
        window that they had shown before."""
        if self.zone == "UTC":
            return times
        shown = _local(times, self.zone)
        return shown if self._keep_their_length else self._never_back(times, shown)

    def _never_back(self, times: Times, shown: Times) -> Times:
        found, places = shown.copy(), np.arange(len(times))
        while len(places):
            bounds = self._next_bounds(found[places])
            passed = self.moment(bounds) <= times[places]
            places = places[passed]
            found[places] = bounds[passed]
        return found

    def _next_bounds(self, shown: Times) -> Times:
        """The first bound of any window after what the clocks show."""
        since = shown - self.offset
        begun, rest = since // self.every * self.every, self.size % self.every
        return self.offset + begun + np.where(since - begun < rest, rest, self.every)

    @property
    def _keep_their_length(self) -> bool:
        """Whether clocks that are put back or forward leave the bounds of windows where they were: so each window that
        they show twice is two. With gaps between windows, that takes clocks which change where one may begin."""
        unit = self.size if self.offset % self.size == 0 and HOUR % self.size == 0 else self.every
        return self.pane < HOUR and all(change % unit == 0 for change in _changes(self.zone))

    def _moment(self, shown: Times, moment: Times, seen: Times) -> Times:
        """When the clocks first show this. `seen` is what they show at a moment in the same window."""
        if self.zone == "UTC":
            return shown
        if self._keep_their_length:
            return shown - seen + moment
        return self.moment(shown)

    def moment(self, shown: Times) -> Times:
        """When the clocks of the zone first show this; where they skip it, when they go on."""
        if self.zone == "UTC":
            return shown
        local = pa.array(shown, pa.int64()).cast(pa.timestamp("us"))
        zoned = pc.assume_timezone(local, self.zone, ambiguous="earliest", nonexistent="latest")
        return np.asarray(zoned.cast(pa.int64()))


def _local(times: Times, zone: str) -> Times:
    """What the clocks of a zone show at these moments."""
    zoned = pa.array(times, pa.int64()).cast(pa.timestamp("us", tz=zone))
    return np.asarray(pc.local_timestamp(zoned).cast(pa.int64()))


@lru_cache(64)
def _changes(zone: str) -> frozenset[int]:
    """By how much the clocks of a zone were ever put back or forward since 1970, as seen every few weeks until 2040."""
    times = np.arange(0, 70 * 365, 15, dtype=np.int64) * 24 * HOUR
    return frozenset(np.diff(_local(times, zone) - times).tolist())
