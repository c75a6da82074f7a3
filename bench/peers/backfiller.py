"""Hailstorm's backfills: the state of a step made once more from the log, offline, or in pieces between live ticks."""

from __future__ import annotations

import time
from typing import Any

from bench.peers.hailstorm import Hailstorm
from bench.peers.peer import Tick
from bench.peers.topologies import SPOUT
from bench.work import Work
from hailstorm.history.backfill import Beside, finished, second_run

STEP = "counts"
WAITED = "from due to done"  # of a live tick, in milliseconds
_PERIOD = 0.1  # seconds from one live tick to the next
_PIECE_MS = 500  # as a run with a latency of one second makes them


class Backfiller(Hailstorm):
    """`prepare` reads all rows of the work (`filled`); each tick of a burst is one backfill of them, with the commit by
    which it takes over."""

    def burst(self, ticks: int) -> list[Tick]:
        return [self._backfill() for _ in range(ticks + 1)][1:]

    def _backfill(self) -> Tick:
        began = time.perf_counter()
        made = finished(second_run(self.negotiator, (STEP,), lose=False))
        self.negotiator.replace(made)
        ms = (time.perf_counter() - began) * 1000
        rows = self.negotiator.ledger.head.coverage[STEP][SPOUT]["0"][0][1]
        assert rows == self.work.fill, f"{rows} rows"
        return Tick(ms, self.work.fill)


class LiveBackfiller(Hailstorm):
    """Live ticks, ten per second; with `beside`, a backfill at half speed between them, again and again."""

    def __init__(self, work: Work, beside: bool, **options: Any) -> None:
        super().__init__(work, **options)
        self.beside = beside
        self.piece: Beside | None = None
        self.pieces = 0

    def burst(self, ticks: int) -> list[Tick]:
        found = []
        began = time.perf_counter()
        for number in range(ticks):
            due = began + number * _PERIOD
            while time.perf_counter() < due:
                self._between(due)
            (tick,) = self._advance(self.work.rows)
            waited = (time.perf_counter() - due) * 1000
            found.append(Tick(tick.ms, tick.rows, {**tick.parts, WAITED: waited}))
            self._between(due)
        return found

    def figures(self) -> dict[str, float]:
        return {**super().figures(), "pieces": self.pieces}

    def close(self) -> None:
        if self.piece is not None and self.piece.second is not None:
            self.piece.second.close()
        super().close()

    def _between(self, due: float) -> None:
        """A piece of the backfill, when its time has come; else a moment of rest."""
        if self.beside:
            if self.piece is None:
                second = second_run(self.negotiator, (STEP,), lose=False, latency_ms=_PIECE_MS)
                self.piece = Beside(self.negotiator, second, speed=0.5)
            waits = time.monotonic() < self.piece.next_piece
            self.pieces += not waits
            if not self.piece():
                self.piece = None
            if not waits:
                return
        time.sleep(max(0.0, min(0.002, due - time.perf_counter())))
