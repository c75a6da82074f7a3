"""The calendar of a run: what time it is by the system, and whether a tick is due without input."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from hailstorm.engine.ticks.agendas import Agendas
from hailstorm.engine.ticks.times import Times
from hailstorm.ledger.ledger import Ledger
from hailstorm.topology.topology import Topology


class Calendar:
    def __init__(self, topology: Topology, ledger: Ledger, clock: Callable[[], datetime]) -> None:
        """`clock` is the wall's, or that of a test."""
        self._ledger, self._clock = ledger, clock
        self._times, self._agendas = Times(topology), Agendas(topology, ledger)

    def now(self) -> datetime:
        return self._agendas.system_time(self._ledger.head, self._clock())

    def is_due(self) -> bool:
        """Whether something is due: by the watermark that a commit would have now, or by the wall clock."""
        head = self._ledger.head
        if not any(shape.agendas for shape in head.steps.values()):
            return False
        now = int(self.now().timestamp() * 1_000_000)
        times = self._times.of_steps(self._times.after(head, {}, now), self._agendas.released(head, {}, head.reached))
        return self._agendas.is_due(head, times, now)
