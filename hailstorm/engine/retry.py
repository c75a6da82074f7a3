"""Retry: dead letters get their second chance (`hailstorm errors --retry`).

A letter leaves the list only when its row went through the step at which it failed, once, or when somebody discards it
(ledger/discarding.py).
Everything else stays: what fails again, letters of steps that are gone, rows whose key is null. What a row becomes
below its step is committed together with the shorter list, so no crash can count it twice or lose it. A row that fails
at a step below becomes a new letter there.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Interval, Range
from hailstorm.engine.advance import Outcome, Work
from hailstorm.engine.delivery.courier import columns_of
from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.delivery.second_chance import second_chance
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.progress import Retried
from hailstorm.engine.stages.order import letter_id
from hailstorm.engine.ticks.attempts import Attempts
from hailstorm.engine.ticks.committing import Committer
from hailstorm.ledger.commit import DataFile
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.runs import write_rows
from hailstorm.ledger.stores.store import read_table
from hailstorm.topology.ends import Sink
from hailstorm.topology.topology import Topology

_DRAIN_SECONDS = 60.0


@dataclass(frozen=True)
class Retry:
    """One retry, on a topology that is started and does not tick."""

    spark: SparkSession
    topology: Topology
    ledger: Ledger
    attempts: Attempts
    committer: Committer
    deliverer: Deliverer
    sinks: Sequence[Sink]
    now: datetime  # by the run's calendar

    def rejected_rows(self) -> Retried:
        """Offer the rows that sinks rejected to them again."""
        if not self._count_rejected():
            return Retried()
        # What a sink has not got yet may be rejected, too: it must have got all, or its rows wait for another retry.
        self.deliverer.drain(_DRAIN_SECONDS)
        states = self.deliverer.states()
        ready = [sink for sink in self.sinks if not states[sink.name].behind and states[sink.name].stopped is None]
        offered = second_chance(self.ledger, {sink.name: (columns_of(sink), sink.key) for sink in ready})
        waiting = self._count_rejected() - offered.rows - offered.outdated
        if offered.retried:
            self.deliverer.notify(self.committer.second_chance(offered, self.now).commit)
            self.deliverer.drain(_DRAIN_SECONDS)
        return Retried(offered.rows + waiting, self._count_rejected(), offered.outdated)

    def letters(self, stop: threading.Event) -> Retried:
        """Run the letters of all steps that can take them once more, as one commit; none when none went through."""
        base = self.ledger.head
        count = sum(file.rows for file in base.dead_letters)
        left = {file.path: self._why_not(file) for file in base.dead_letters}
        whys = sum(left.values(), Counter[tuple[str, str]]())
        left_out = tuple(f"{number:,} of '{step}' stay: {why}" for (step, why), number in whys.items())
        tried = tuple(
            Range(file.path, number, 0, file.rows)
            for number, file in enumerate(base.dead_letters)
            if not left[file.path]
        )
        if not tried:
            return Retried(count, count, left=left_out)
        plan = compile_topology(self.spark, self.topology, 1, retrying=True)
        nothing = Interval(base.position(), base.position())
        work = Work(self.ledger, base, nothing, int(self.now.timestamp() * 1_000_000), letters=tried)
        outcome = self.attempts.advance(plan, work, stop)
        if outcome is None:
            return Retried(count, count, left=left_out)
        self.attempts.refuse_fatal(outcome)
        changed, through = self._remaining(outcome)
        if not through:
            return Retried(count, count, left=left_out)
        self.committer.retry(outcome, changed, self.now)
        failed = count - through + sum(file.rows for file in outcome.letters)
        return Retried(count, failed, late=outcome.late, left=left_out)

    def _why_not(self, file: DataFile) -> Counter[tuple[str, str]]:
        """The step of these letters, why they are not tried, and how many; nothing when they are.

        A file has letters of one step only.
        """
        letters = read_table(self.ledger.store, file.path, ["step", "reason"], file.sums)
        step: str = letters["step"][0].as_py()
        found = next((one for one in self.topology.steps if one.name == step), None)
        if found is None:
            gone = "the topology has no such step any more. Give it back its name, or discard them"
            return Counter({(step, gone): file.rows})
        if found.can_retry:
            return Counter()
        # No code of the user's runs in such a step: it refuses rows for what they are (a null key, or time).
        reasons = letters["reason"].to_pylist()
        return Counter((step, f"{reason}, which no fix of the code can change. Discard them") for reason in reasons)

    def _remaining(self, outcome: Outcome) -> tuple[dict[str, DataFile | None], int]:
        """The files of which letters went through, each with the one that takes its place; and how many letters did."""
        base = self.ledger.head
        tried: dict[int, list[Range]] = {}
        for one in outcome.letters_tried:
            tried.setdefault(one.partition, []).append(one)
        changed: dict[str, DataFile | None] = {}
        through = 0
        for number, ranges in tried.items():
            file = base.dead_letters[number]
            went = {row for one in ranges for row in range(one.start, one.end)}
            went -= {row for row in went if letter_id(number, row) in outcome.again}
            if went:
                reasons = {row: outcome.again.get(letter_id(number, row)) for row in range(file.rows)}
                changed[file.path] = self._rewritten(file, went, reasons)
                through += len(went)
        return changed, through

    def _rewritten(self, file: DataFile, gone: set[int], reasons: Mapping[int, str | None]) -> DataFile | None:
        stay = [row for row in range(file.rows) if row not in gone]
        if not stay:
            return None
        letters = read_table(self.ledger.store, file.path, sums=file.sums).take(pa.array(stay))
        newest = pa.array([reasons[row] for row in stay], pa.string())
        place = letters.schema.get_field_index("reason")
        letters = letters.set_column(place, "reason", pc.coalesce(newest, letters.column("reason").combine_chunks()))
        return write_rows(self.ledger.store, "errors", letters, self.ledger.stamp)

    def _count_rejected(self) -> int:
        return sum(letters.num_rows for letters in self.ledger.rejected(self.ledger.head))
