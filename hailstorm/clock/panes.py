"""Panes: the parts of the time line that sliding windows share. Pure values over arrays of microseconds since 1970.

A pane is the stretch from one bound of any window to the next bound of any window. So no window cuts a pane in two, and
a row is in one pane, however many windows it is in. Where `every` divides `size`, a pane is as long as `every`; where
it does not, panes are by turns `size % every` and the rest of `every`: at most two for each window that begins.

In a zone panes are counted in what its clocks show, as windows are: a pane that holds an hour which is shown twice is
longer than others. The number of a pane is what the clocks show when it begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hailstorm.clock.windows import HOUR, Times, Windows


@dataclass(frozen=True)
class Panes:
    """Of windows that overlap, and that are either in UTC or as long as whole hours (`can_share`)."""

    windows: Windows

    def of(self, times: Times) -> Times:
        """The pane of each moment."""
        windows = self.windows
        since = windows.shown(times) - windows.offset
        begun = since // windows.every * windows.every
        return begun + np.where(since - begun >= self._rest, self._rest, 0) + windows.offset

    def windows_of(self, panes: Times) -> tuple[Times, Times, Times]:
        """The windows that hold each pane: the index of the pane, start and end; of each pane the first one first."""
        windows = self.windows
        last = (panes - windows.offset) // windows.every * windows.every + windows.offset
        count = (windows.size - 1 - (panes - last)) // windows.every + 1
        index = np.repeat(np.arange(len(panes)), count)
        place = np.arange(len(index)) - np.repeat(np.cumsum(count) - count, count)
        start = last[index] - (count[index] - 1 - place) * windows.every
        return index, windows.moment(start), windows.moment(start + windows.size)

    def over(self, moment: int) -> int:
        """All windows of panes up to this number have ended by then."""
        return moment - self.windows.reach

    @property
    def _rest(self) -> int:
        return self.windows.size % self.windows.every


def can_share(windows: Windows) -> bool:
    """Whether these windows overlap, and are cut by what clocks show alone."""
    return windows.at_most > 1 and (windows.zone == "UTC" or windows.pane % HOUR == 0)
