"""The way of a record from its arrival to its delivery, as times: what `run --profile` shows.

    waiting    from the time that the log gave the record (the mean of the tick's records) until its tick began
    reading    until its tick had read it
    tick       until its tick was committed
    hand-over  until its sink began with it: another transaction may have been under way
    sink       until the sink had it, durably

The negotiator tells of ticks and asks; couriers say when they delivered what.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from hailstorm.engine.delivery.sink_state import Delivered
from hailstorm.engine.stages.order import Seen, mean_arrival

_MOST = 1_000  # ticks that wait for their delivery; a sink that is further behind says so elsewhere


@dataclass(frozen=True)
class _Tick:
    waiting: float
    reading: float
    tick: float
    committed: float  # by the clock of time.monotonic


class Journeys:
    def __init__(self) -> None:
        self._ticks: dict[int, _Tick] = {}

    def committed(self, commit: int, seen: Mapping[str, Mapping[int, Seen]], began: float, reading: float) -> None:
        """A tick that began then, in seconds since 1970, and read for so many seconds, has just been committed."""
        arrived = mean_arrival(one for partitions in seen.values() for one in partitions.values())
        if arrived is not None:
            waiting, whole = max(0.0, began - arrived / 1e6), max(0.0, time.time() - began)
            self._ticks[commit] = _Tick(waiting, reading, max(0.0, whole - reading), time.monotonic())
            self._ticks.pop(commit - _MOST, None)

    def ended(self, delivered: Iterable[Delivered]) -> Iterator[dict[str, float]]:
        """The journeys that these deliveries have ended, in milliseconds by part."""
        for one in delivered:
            for commit in one.commits:
                if (tick := self._ticks.get(commit)) is not None:
                    parts = {
                        "waiting": tick.waiting,
                        "reading": tick.reading,
                        "tick": tick.tick,
                        "hand-over": max(0.0, one.began - tick.committed),
                        "sink": one.ended - one.began,
                    }
                    yield {name: seconds * 1000 for name, seconds in parts.items()}
