"""Attempts: an advance that is tried until it succeeds, or until a person must see why it does not.

The negotiator calls `Attempts.advance` once per tick. What may pass is tried again with growing waits; records on which
a tick fails are found and left out as dead letters; and too many bad rows are a bug, so nothing of them is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from hailstorm.engine.advance import Outcome, Work, advance, first_failure
from hailstorm.engine.place import nowhere
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.resident.resident import Resident, Unfinished
from hailstorm.engine.retry_wait import retry_wait
from hailstorm.engine.ticks.bad_records import (
    Budget,
    Found,
    Ranges,
    SearchStopped,
    Spent,
    bad_records,
    count_records,
    first_half,
    with_records,
)
from hailstorm.engine.tolerance import Recent, Tolerance, total
from hailstorm.errors import BadRecordsError, LogError, RunError, TransientLogError, TransientRunError
from hailstorm.ledger.ledger import Ledger
from hailstorm.topology.settings import Settings
from hailstorm.topology.topology import Topology

_TRIES = 3
_EXAMPLES = 3


@dataclass(frozen=True)
class Attempts:
    """`tell(message)` lets those who watch know why it takes longer."""

    spark: SparkSession
    topology: Topology
    ledger: Ledger
    settings: Settings
    tell: Callable[[str], None]

    def advance(
        self, plan: Plan, work: Work, stop: threading.Event, resident: Resident | None = None
    ) -> Outcome | None:
        """Advance; what may pass is tried again. None when it failed after we were asked to stop: Ctrl-C in a
        terminal also ends the workers, and a tick that was given up never happened. The outcome may be of the beginning
        of the interval only, when the rest has too many bad records to find them all now.
        """
        searched, failed, budget = False, 0, self._budget(stop)
        while True:
            try:
                return self._advance(plan, work, stop, resident)
            except (RunError, LogError) as error:
                if stop.is_set():
                    return None
                # Of letters only a search knows which ones the named records are.
                if isinstance(error, BadRecordsError) and error.records and not work.letters:
                    work = self._without_named(work, error)
                    try:
                        budget.spend(count_records(work.excluded))
                    except Spent:
                        # Fewer records are named sooner. The rest of them has its turn in the next tick.
                        work, budget = replace(work, interval=first_half(work.interval)), self._budget(stop)
                    except SearchStopped:
                        return None
                    continue
                if isinstance(error, BadRecordsError) and not searched:
                    searched = True
                    try:
                        work = self._without_bad_records(plan, work, error, budget, resident)
                    except (SearchStopped, Unfinished):  # the latter only when we were asked to stop
                        return None
                    continue
                # A log that cannot be reached is waited for; what else may pass is tried a few times.
                failed += 1
                again = isinstance(error, TransientLogError | TransientRunError)
                if not again or (failed >= _TRIES and not isinstance(error, TransientLogError)):
                    raise
                wait = retry_wait(self.topology.name, failed + 3)
                self.tell(f"a tick failed, trying again in {wait:.1f} s: {error.what}")
                stop.wait(wait)

    def refuse_bad_tick(self, outcome: Outcome, recent: Recent) -> Recent:
        """Too many bad rows are a bug and not bad rows; and a step may ask to stop at the first.

        `recent` is what the ticks before have counted; the answer is that with this tick.
        """
        self.refuse_fatal(outcome)
        tolerance = Tolerance.of(self.settings)
        counted = tolerance.after(recent, outcome.rows, outcome.errors)
        if outcome.errors > tolerance.most(recent, outcome.rows):
            step, failures = first_failure(outcome.failures)
            alone = outcome.errors > tolerance.most((), outcome.rows)
            rows, bad = (outcome.rows, outcome.errors) if alone else total(counted)
            raise self._too_many(f"{bad} of {'' if alone else 'the last '}{rows} rows", step, failures.reason)
        return counted

    def _too_many(self, count: str, step: str, reason: str) -> RunError:
        return RunError(
            5,
            f"{count} failed, more than {self.settings.error_limit:.0%}: in step '{step}', {reason}",
            at=self.topology.step(step).at,
            hint="That many are a bug and not bad rows. Nothing of this tick was committed; fix it and run again,\n"
            "or allow more: --set error_limit=50%",
        )

    def refuse_fatal(self, outcome: Outcome) -> None:
        for step, failures in outcome.failures.items():
            if failures.fatal:
                raise RunError(
                    4,
                    f"step '{step}' failed on {failures.count} rows: {failures.reason}",
                    at=self.topology.step(step).at,
                    hint='It is declared with on_error="fail". Nothing of this tick was committed.',
                )

    def _advance(self, plan: Plan, work: Work, stop: threading.Event, resident: Resident | None) -> Outcome:
        """One try. What a resident worker does not finish is run as prepared, at once."""
        if resident is not None and not resident.lost:
            try:
                return advance(self.spark, plan, work, resident)
            except Unfinished as error:
                if stop.is_set():
                    raise
                self.tell(f"{error.what}; it is run as a Spark job")
        return advance(self.spark, plan, work)

    def _budget(self, stop: threading.Event) -> Budget:
        return Budget(self.settings.search_jobs, self.settings.search_time_ms / 1000, stop)

    def _without_named(self, work: Work, error: BadRecordsError) -> Work:
        """The work without the records that a task has named. Raises RunError when there are too many of them: then the
        rest of them need not be named, for which the tick would have to be run again and again."""
        excluded = with_records(work.excluded, error.records)
        if excluded == work.excluded:
            raise error
        rows, bad = sum(map(len, work.records())), count_records(work.excluded) + error.count
        if bad > Tolerance.of(self.settings).most((), rows):
            first = error.records[0]
            raise self._too_many(f"at least {bad:,} of {rows:,} rows", first.spout, first.why) from error
        return replace(work, excluded=excluded)

    def _without_bad_records(
        self, plan: Plan, work: Work, error: BadRecordsError, budget: Budget, resident: Resident | None
    ) -> Work:
        """The work without the records that make it fail, or its beginning when they are too many to find at once.

        Raises the error when they are too many to be bad rows.
        """
        self.tell(f"looking for the records on which a tick fails: {error.what}")

        def attempt(part: Ranges) -> BadRecordsError | None:
            try:
                with nowhere(self.ledger) as place:
                    self._advance(plan, work.part(part, place=place), budget.stop, resident)
            except BadRecordsError as failure:
                return failure
            return None

        found = bad_records(work.ranges(), attempt, budget)
        rows = sum(map(len, found.looked_through))
        # A search goes on from a bad record through what is right behind it: where it is cut short, it has come far
        # when there are few. So what it has seen may be judged, however few records that is.
        judged = not found.whole or rows >= self.settings.error_limit_rows
        too_many = not work.letters and judged and found.count > self.settings.error_limit * rows
        if too_many or not rows or (found.whole and not found.count):  # the last: all together fail, and none alone
            raise _with_examples(error, found, rows)
        if work.letters:
            return replace(work, letters=tuple(found.looked_through), excluded=found.bad)
        excluded = with_records(work.excluded, found.records())
        return replace(work, interval=found.interval(work.interval), excluded=excluded)


def _with_examples(error: BadRecordsError, found: Found, rows: int) -> BadRecordsError:
    lines = [error.hint]
    if found.count:
        lines.append(f"bad records: {found.count:,} of the first {rows:,} that were looked through, such as:")
        lines += found.first(_EXAMPLES)
    if not found.whole:
        lines.append("The search was cut short: --set search_time=1m --set search_jobs=1000 looks for longer.")
    return BadRecordsError(int(error.code.rpartition("-")[2]), error.what, at=error.at, hint="\n".join(lines))
