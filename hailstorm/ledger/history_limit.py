"""The limit of history: how much disk old commits may take before fewer of them are kept.

What a kept commit costs depends on the load: at full load every second rewrites a large part of the state, and the
tiers of retention, which speak of time alone, would fill any disk. So vacuum weighs what only old commits need.
While they are over the limit, all commits are kept for half as long and the intervals of all tiers double, once per
look; the reach into the past stays. When there is much room again, it goes back by the same steps.

Nothing is remembered: a run that starts again gets to the same place by looking.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hailstorm.ledger.live import Live
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import Store
from hailstorm.topology.retention import Retention

LOOK_SECONDS = 60.0
FILE_COSTS = 256_000  # bytes: a small file costs a name, a look at every listing, and a block of the disk
_MOST = 10  # how often to halve and double
_MUCH_ROOM = 4  # so many times the history fits


@dataclass
class HistoryLimit:
    """`retention` as declared, and `limit` in bytes; None is no limit."""

    retention: Retention
    limit: int | None
    halvings: int = field(default=0, init=False)
    _next_look: float = field(default=0.0, init=False)

    @property
    def current(self) -> Retention:
        """What is kept now."""
        return self.retention.coarser(2**self.halvings)

    def look(self, store: Store, head: Live, now: float) -> None:
        """Weigh the history, if it is time to; `now` in seconds."""
        if self.limit is None or self.retention.keeps_all or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        live = {run_name(step, run.id): run.bytes for step, runs in head.runs.items() for run in runs}
        weight = sum(max(file.bytes, FILE_COSTS) for file in store.files("state") if file.name not in live)
        # A state that is larger than the limit may have a history of its own size: else nothing of it could be kept.
        allowed = max(self.limit, sum(live.values()))
        if weight > allowed:
            self.halvings = min(self.halvings + 1, _MOST)
        elif weight * _MUCH_ROOM < allowed:
            self.halvings = max(self.halvings - 1, 0)
