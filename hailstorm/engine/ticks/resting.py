"""Resting: what the loop does while there is nothing to do. It waits until there may be news.

    followed   Kafka, by a resident worker, which says when there is more
    watched    logs in folders, by this process: the system says when something has come into them
    others     are looked at again after a while, and so are all of them while nobody follows or watches

Who is told looks now and then all the same: something may be due by the wall clock. Logs are asked for that once per
second only (`Logs.look`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from hailstorm.clock.clock import Clock
from hailstorm.engine.resident.resident import Resident
from hailstorm.engine.resident.wire import ready
from hailstorm.engine.ticks.logs import Logs
from hailstorm.engine.ticks.pacing import RESIDENT, idle_wait
from hailstorm.engine.ticks.plans import Plans
from hailstorm.errors import HailstormError
from hailstorm.spouts.roster import watched
from hailstorm.spouts.source import Followed
from hailstorm.spouts.watching import Watcher

TOLD_SECONDS = 0.5  # between two looks of who is told: at the wall clock, and whether to stop
_TELL_AGAIN = 50  # rests after which a worker that does not follow is asked to do so once more


class Resting:
    """Of one run. `end` it: the system has few watchers."""

    def __init__(self, logs: Logs, plans: Plans, eager: bool) -> None:
        """Who is `eager` pays processor time for shorter waits."""
        self._logs, self._plans, self._eager = logs, plans, eager
        self._followed = {name for name, source in logs.sources.items() if isinstance(source, Followed)}
        self._watched = {name: log for name, source in logs.sources.items() if (log := watched(source)) is not None}
        self._others = set(logs.sources) - self._followed - self._watched.keys()
        self._watcher: Watcher | None = None
        self._is_told = False  # of all that has come into folders since the last look
        self._is_passed = False  # whether a tick has gone past the position that a worker was told last
        self._known: Mapping[str, Mapping[int, int]] | None = None  # what a worker had told at the last look
        self._rests = 0  # in a row

    def over(self) -> None:
        """There was something to do."""
        self._rests = 0

    def end(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
            self._watcher, self._is_told = None, False

    def pause(self, stop: threading.Event) -> None:
        """Wait a little for something else than the logs."""
        stop.wait(idle_wait(self._rests, self._eager))
        self._rests += 1

    def rest(self, stop: threading.Event, resident: Resident | None, position: Clock) -> None:
        """Wait a little: until there may be news, where somebody tells of it."""
        wait = idle_wait(self._rests, self._eager)
        self._rests += 1
        follower = resident if self._followed else None
        if follower is not None and follower.heard is not self._known:
            return  # it came after the look, and nobody would say it again
        is_followed = self._is_followed(follower, position)
        self._is_told = self._is_watched()
        if is_followed and self._is_told and not self._others:
            wait = TOLD_SECONDS
        watchers = () if self._watcher is None else (self._watcher,)
        if follower is not None:
            follower.wait(wait, watchers)
        elif watchers:
            ready(wait, *watchers)
        else:
            stop.wait(wait)

    def heard(self, resident: Resident | None) -> dict[str, Mapping[int, int]]:
        """How far the logs are that somebody tells of; they need not be looked at."""
        self._known = None if resident is None else resident.heard
        told = {} if self._known is None or self._is_passed else self._known
        return {**self.quiet(), **told}

    def quiet(self) -> dict[str, dict[int, int]]:
        """The logs into which nothing has come since this was asked last, in the form of `Resident.heard`: with nothing
        new to say. Asked before every look, so those need not be looked at."""
        has_news = self._watcher is None or self._watcher.take_news()
        return {} if has_news or not self._is_told else {name: {} for name in self._watched}

    def follow(self, resident: Resident, position: Clock) -> None:
        """What comes after this position is read ahead from now on."""
        if self._followed:
            positions = {name: row for name, row in self._logs.there(position).items() if name in self._followed}
            resident.follow(positions, self._plans.newer_rosters(RESIDENT))
            self._is_passed = False

    def pass_by(self) -> None:
        """A tick was run in another way. What a worker has heard is out of date, and it has told all that it was asked
        for; the next rest says where we are. Sooner would let it read what the next large tick reads, too."""
        self._is_passed = True

    def _is_followed(self, follower: Resident | None, position: Clock) -> bool:
        """Whether somebody tells of more in all logs that can be followed. Who has not been told yet where we are, or
        could not follow, is told."""
        if follower is None:
            return not self._followed
        if follower.heard.keys() >= self._followed and not self._is_passed:
            return True
        if self._is_passed or self._rests % _TELL_AGAIN == 1:
            self.follow(follower, position)
        return False

    def _is_watched(self) -> bool:
        """Whether the system tells of more in all logs that are folders, and has done so since before the last look."""
        if not self._watched:
            return True
        try:
            self._watcher = self._watcher or Watcher()
            folders = [log.folders() for log in self._watched.values()]
            is_new = self._watcher.watch(folder for some in folders for folder in some)
        except (OSError, HailstormError):  # nobody tells; or the log is not there, and the next look says so
            return False
        return all(folders) and not is_new
