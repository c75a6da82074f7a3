"""Attempts: an advance that is tried until it succeeds, or until a person must see why it does not.

The negotiator calls `Attempts.advance` once a tick. What may pass is tried again with growing waits; records on which
a tick fails are found and left out as dead letters; and too many bad rows are a bug, so nothing of them is kept.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from hailstorm.clock.clock import Interval
from hailstorm.engine.advance import Outcome, advance, first_failure
from hailstorm.engine.delivery import retry_wait
from hailstorm.engine.isolation import Excluded, poisoned_records
from hailstorm.engine.plan import Plan
from hailstorm.errors import RunError
from hailstorm.ledger.ledger import Ledger
from hailstorm.topology.settings import Settings
from hailstorm.topology.topology import Topology

_TRIES = 3


@dataclass(frozen=True)
class Attempts:
    """`plan(way)` gives what to run; `tell(message)` lets those who watch know why it takes longer."""

    spark: SparkSession
    topology: Topology
    ledger: Ledger
    settings: Settings
    plan: Callable[[int], Plan]
    tell: Callable[[str], None]

    def advance(self, way: int, interval: Interval, micros: int, stop: threading.Event) -> Outcome | None:
        """Advance; what may pass is tried again. None when it failed after we were asked to stop: Ctrl-C in a
        terminal also ends the workers, and a tick that was given up never happened.
        """
        excluded: Excluded = {}
        for attempt in itertools.count(1):
            try:
                return advance(self.spark, self.plan(way), self.ledger, interval, micros, excluded=excluded)
            except RunError as error:
                if stop.is_set():
                    return None
                if error.poisoned and not excluded:
                    excluded = self._isolated(way, interval, micros, error)
                    continue
                if not error.transient or (attempt == _TRIES and not error.log_unreachable):
                    raise
                wait = retry_wait(self.topology.name, attempt + 3)
                self.tell(f"a tick failed, trying again in {wait:.1f} s: {error.what}")
                stop.wait(wait)
        raise AssertionError("unreachable")

    def refuse_bad_tick(self, outcome: Outcome) -> None:
        """Too many bad rows are a bug and not bad rows; and a step may ask to stop at the first."""
        for step, failures in outcome.failures.items():
            if failures.fatal:
                raise RunError(
                    4,
                    f"step '{step}' failed on {failures.count} rows: {failures.reason}",
                    at=self.topology.step(step).at,
                    hint='It is declared with on_error="fail". Nothing of this tick was committed.',
                )
        limit = self.settings.error_limit * outcome.rows
        if outcome.rows >= self.settings.error_limit_rows and outcome.errors > limit:
            step, failures = first_failure(outcome.failures)
            raise RunError(
                5,
                f"{outcome.errors} of {outcome.rows} rows failed, more than {self.settings.error_limit:.0%}: "
                f"in step '{step}', {failures.reason}",
                at=self.topology.step(step).at,
                hint="That many are a bug and not bad rows. Nothing of this tick was committed; fix it and run again,\n"
                "or allow more: --set error_limit=50%",
            )

    def _isolated(self, way: int, interval: Interval, micros: int, error: RunError) -> Excluded:
        """The records that make a tick fail. Raises the error when they are too many to be bad rows."""
        self.tell(f"looking for the records on which a tick fails: {error.what}")

        def attempt(part: Interval) -> RunError | None:
            try:
                advance(self.spark, self.plan(way), self.ledger, part, micros)
            except RunError as failure:
                if not failure.poisoned:
                    raise
                return failure
            return None

        rows = len(interval)
        limit = self.settings.error_limit * rows if rows >= self.settings.error_limit_rows else rows
        found = poisoned_records(interval, attempt, most=int(limit))
        if not found:  # too many; or it fails on all together and on none alone
            raise error
        return found
