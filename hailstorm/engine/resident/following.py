"""The worker's eye on the logs: follows the spouts that can be followed, and tells the driver once when there is more.

`worker.py` owns one. Logs call `wake` from threads of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from contextlib import suppress

from hailstorm.engine.resident.messages import Follow, News, encoded
from hailstorm.engine.resident.wire import HungUp, Wire
from hailstorm.engine.stages.chain import Pass
from hailstorm.engine.stages.read import ReadLog
from hailstorm.errors import HailstormError
from hailstorm.spouts.source import Followed


class Following:
    def __init__(self, wire: Wire, passes: Iterable[Pass]) -> None:
        stages = [stage for one in passes for line in one.lines for stage in line.stages]
        self._wire = wire
        self._spouts = {
            stage.spout: stage for stage in stages if isinstance(stage, ReadLog) and isinstance(stage.source, Followed)
        }
        self._telling = threading.Lock()
        self._waits: Follow | None = None  # somebody waits to hear of more than this

    def hush(self) -> None:
        """There is an order: the driver does not wait."""
        with self._telling:
            self._waits = None

    def go_on(self, follow: Follow) -> None:
        """Follow from there; say how far that is by now, and once more when there is more."""
        with self._telling:  # until it is said: news must not overtake it, or the driver would take the older word
            ends = self._ends(follow)
            self._waits = follow if all(ends[spout] == follow.positions[spout] for spout in ends) else None
            self._wire.send(encoded(News(ends)))

    def wake(self) -> None:
        with self._telling:  # until it is said: after the next order, these positions would be old
            follow, self._waits = self._waits, None
            if follow is not None:
                with suppress(HungUp):  # the driver is gone: the worker notices that by itself
                    self._wire.send(encoded(News(self._ends(follow))))

    def _ends(self, follow: Follow) -> dict[str, dict[int, int]]:
        """Of the spouts that are followed in all their partitions."""
        found: dict[str, dict[int, int]] = {}
        for spout, stage in self._spouts.items():
            positions = follow.positions.get(spout)
            if positions:
                with suppress(HailstormError):  # who reads it meets the error, too
                    ends = dict(stage.source_with(follow.rosters).follow(positions, self.wake))
                    if ends.keys() == positions.keys():
                        found[spout] = ends
        return found
