"""Hailstorm's audit of a state: everything that was read is computed once more, in one batch, and compared."""

from __future__ import annotations

import time

from bench.peers.hailstorm import Hailstorm
from bench.peers.peer import Tick
from hailstorm.history.audit import Audit


class Auditor(Hailstorm):
    """`prepare` reads all rows of the work (`filled`); each tick of a burst is one audit of them."""

    def burst(self, ticks: int) -> list[Tick]:
        return [self._audit() for _ in range(ticks + 1)][1:]

    def _audit(self) -> Tick:
        ledger = self.negotiator.ledger
        began = time.perf_counter()
        (found,) = Audit(self.spark, self.negotiator.topology, ledger, ledger.head).run()
        ms = (time.perf_counter() - began) * 1000
        compared = found.comparison
        assert (compared.rows, compared.different, found.by) == (self.work.keys, 0, "batch"), found
        return Tick(ms, self.work.fill)
