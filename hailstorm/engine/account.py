"""The account of a run: what it has done so far, told to those who watch, and its sum at the end.

The negotiator keeps one, in its own thread. What the ledger and the sinks know is asked for when it is told.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from hailstorm.engine.advance import Outcome
from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.progress import OnProgress, Phase, Progress, Summary
from hailstorm.engine.ticks.journeys import Journeys
from hailstorm.engine.ticks.pacing import way_name
from hailstorm.ledger.commit import Commit
from hailstorm.ledger.ledger import Ledger


class Account:
    def __init__(self, ledger: Ledger, on_progress: OnProgress) -> None:
        self._ledger, self._tell = ledger, on_progress
        self._ticks = self._rows = self._errors = self._skipped = 0
        self._journeys = Journeys()
        self._started = time.monotonic()
        self.deliverer: Deliverer | None = None  # from the start of delivery on
        self.notes: tuple[str, ...] = ()  # what is different from the run before
        self.last = Progress("starting")

    def committed(self, commit: Commit, outcome: Outcome, began: float) -> None:
        """A tick that began then, in seconds since 1970, is in this commit. Before anybody can deliver it."""
        self._ticks += 1
        self._rows += outcome.rows
        self._errors += outcome.errors
        self._skipped += commit.skipped
        self._journeys.committed(commit.commit, outcome.seen, began, outcome.timings.get("read", 0.0))

    def say_tick(self, outcome: Outcome, lag: int, seconds: float) -> None:
        self.say(
            "running",
            rows=outcome.rows,
            tick_ms=seconds * 1000,
            rows_per_second=outcome.rows / seconds,
            lag=lag,
            way=way_name(outcome.way),
            timings={phase: spent * 1000 for phase, spent in outcome.timings.items()},
        )

    def say(self, phase: Phase, message: str = "", **known: Any) -> None:
        """Tell how it is now. Of the last tick, what is not `known` is as it was told before."""
        head, last = self._ledger.head, self.last
        fields: dict[str, Any] = {
            "tick_ms": last.tick_ms,
            "rows_per_second": last.rows_per_second,
            "lag": last.lag,
            "way": last.way,
        }
        if self.deliverer is not None:
            fields["sinks"] = self.deliverer.states()
            fields["journeys"] = tuple(self._journeys.ended(self.deliverer.delivered()))
        self.last = Progress(
            phase=phase,
            message=message,
            commit=head.commit,
            total_rows=self._rows,
            watermark=None if head.watermark is None else datetime.fromisoformat(head.watermark),
            errors=self._errors,
            late=head.late,
            skipped=self._skipped,
            notes=self.notes,
            **{**fields, **known},
        )
        self._tell(self.last)

    def summary(self) -> Summary:
        head, deliverer = self._ledger.head, self.deliverer
        return Summary(
            ledger=self._ledger.address,
            commit=head.commit,
            ticks=self._ticks,
            rows=self._rows,
            errors=self._errors,
            late=head.late,
            skipped=self._skipped,
            rejected=0 if deliverer is None else sum(state.rejected for state in deliverer.states().values()),
            seconds=time.monotonic() - self._started,
            undelivered=() if deliverer is None else deliverer.undelivered(),
        )
