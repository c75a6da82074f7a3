"""Resting: what the loop does while there is nothing to do. It waits until there may be news.

Where a resident worker follows the logs, it says when there is more. All other logs are looked at again after a while.
"""

from __future__ import annotations

import threading

from hailstorm.clock.clock import Clock
from hailstorm.engine.resident.resident import Resident
from hailstorm.engine.ticks.logs import Logs
from hailstorm.engine.ticks.pacing import LONGEST_IDLE_SECONDS, RESIDENT, idle_wait
from hailstorm.engine.ticks.plans import Plans
from hailstorm.spouts.source import Followed

_TELL_AGAIN = 50  # rests after which a worker that does not follow is asked to do so once more


class Resting:
    def __init__(self, logs: Logs, plans: Plans, eager: bool) -> None:
        """Who is `eager` pays processor time for shorter waits."""
        self._plans, self._eager = plans, eager
        self._followed = {name for name, source in logs.sources.items() if isinstance(source, Followed)}
        self._are_all = len(self._followed) == len(logs.sources)
        self._rests = 0  # in a row

    def over(self) -> None:
        """There was something to do."""
        self._rests = 0

    def rest(self, stop: threading.Event, resident: Resident | None, position: Clock) -> None:
        """Wait a little: until there may be news, where somebody follows the logs."""
        wait = idle_wait(self._rests, self._eager)
        self._rests += 1
        if resident is None or not self._followed:
            stop.wait(wait)
            return
        if resident.heard.keys() < self._followed:  # it has not been told yet where we are, or could not follow
            if self._rests % _TELL_AGAIN == 1:
                self.follow(resident, position)
            resident.wait(wait)
            return
        resident.wait(LONGEST_IDLE_SECONDS if self._are_all else wait)

    def follow(self, resident: Resident, position: Clock) -> None:
        """What comes after this position is read ahead from now on."""
        if self._followed:
            positions = {name: row for name, row in position.offsets.items() if name in self._followed}
            resident.follow(positions, self._plans.newer_rosters(RESIDENT))
