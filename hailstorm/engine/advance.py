"""advance: run a compiled topology over one interval. The one function that everything else is made of.

It reads, computes and writes files, and gives back what they are. It commits nothing: a crash before the commit
leaves files that nobody names. The caller (the negotiator, a retry, an audit, a replay) decides what to do with
the outcome.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hailstorm.clock.clock import Interval, Range
from hailstorm.clock.watermark import OfSteps
from hailstorm.engine.place import SCRATCH, Place
from hailstorm.engine.plan.flow import Job
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.plan.ranges import settle
from hailstorm.engine.resident.resident import Resident
from hailstorm.engine.spark.session import is_on_this_machine
from hailstorm.engine.stages.between import remove_rows
from hailstorm.engine.stages.order import PROPERTY, Failures, Order, Report, Seen, TaskRange
from hailstorm.engine.taps import tap_of
from hailstorm.engine.ticks.bad_records import Excluded, interval_of
from hailstorm.engine.ticks.failures import SPARK_LOG, failure_of_job
from hailstorm.engine.ticks.pacing import RESIDENT
from hailstorm.errors import TransientRunError
from hailstorm.ledger.commit import DataFile, Run, StateChange
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live, changed_runs
from hailstorm.ledger.stores import is_folder, open_store

T = TypeVar("T")


@dataclass
class Outcome:
    """What an advance wrote and saw: the body of a commit."""

    interval: Interval
    state: dict[str, StateChange] = field(default_factory=dict)
    outbox: dict[str, tuple[DataFile, ...]] = field(default_factory=dict)
    taps: dict[str, tuple[DataFile, ...]] = field(default_factory=dict)  # the rows of tapped steps
    letters: tuple[DataFile, ...] = ()  # new ones
    letters_tried: tuple[Range, ...] = ()  # of the work
    again: dict[int, str] = field(default_factory=dict)  # letters of the work that failed once more, and why
    failures: dict[str, Failures] = field(default_factory=dict)
    seen: dict[str, dict[int, Seen]] = field(default_factory=dict)
    late: int = 0
    way: int = 1  # how it was run, as pacing counts ways
    held: dict[str, bytes] = field(default_factory=dict)  # rows of small files, by name, as Arrow's stream
    synced: bool = True  # whether a power cut leaves all its files; else whoever commits it sees to that
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(seen.rows for partitions in self.seen.values() for seen in partitions.values())

    @property
    def errors(self) -> int:
        return sum(failures.count for failures in self.failures.values())


@dataclass(frozen=True)
class Work:
    """What one advance is asked to do. Live ticks, retries and everything in history/ differ in these alone.

    `ledger` is what is read from: its runs and its cache. Nothing asks it for its head; `base` says what is live.
    """

    ledger: Ledger
    base: Live
    interval: Interval
    now: int  # µs
    watermarks: OfSteps | None = None  # by which rows are late and things are due; None: those of the base
    rosters: Mapping[str, dict[str, str]] = field(default_factory=dict)  # where they are newer than the plan
    place: Place | None = None  # where files go; None: into the ledger
    taps: tuple[str, ...] = ()  # steps whose rows are wanted back; the plan's topology has taps on them (taps.py)
    # Dead letters, for a plan that was compiled to retry them: path, number of the file, rows.
    letters: tuple[Range, ...] = ()
    excluded: Excluded = field(default_factory=dict)  # records to refuse
    only: tuple[Range, ...] | None = None  # of the interval, these records and no others; None: all

    def ranges(self) -> tuple[Range, ...]:
        """What it reads: records, or dead letters."""
        return self.letters or self.records()

    def records(self) -> tuple[Range, ...]:
        whole = self.interval.ranges()
        if self.only is None:
            return whole
        return tuple(common for one in whole for part in self.only if (common := one.common(part)) is not None)

    def part(self, ranges: tuple[Range, ...], **changes: Any) -> Work:
        """The same work on some of these only."""
        what = {"letters": ranges} if self.letters else {"interval": interval_of(ranges), "only": ranges}
        return replace(self, **what, **changes)


def advance(spark: SparkSession, plan: Plan, work: Work, resident: Resident | None = None) -> Outcome:
    """Run the plan over the interval. Waves run one after another, each as one job.

    A `resident` worker runs all jobs that are one pass; then Spark is asked only for the others.
    """
    way = plan.tasks if resident is None else RESIDENT
    outcome = Outcome(work.interval, letters_tried=work.letters, way=way)
    wave = _Wave(spark, plan, work, outcome, dict(work.base.runs), resident)
    try:
        for job in plan.waves:
            reports = wave.run(job)
            for step in sorted({step for report in reports for step in report.null_keys}):
                found = wave.run(plan.rejects(step))
                # The rows were read again to find these; of all that happened again only the letters are new.
                _take_letters(outcome, [report for report in found if report.slot.startswith(f"{step}!null")])
            wave.take(reports)
            for step in sorted({step for report in reports for step in report.refill}):
                # The table's changes of this tick are in its runs by now: fill from there.
                wave.take(wave.run(plan.refill(step)))
    except BaseException:
        wave.remove_files()
        raise
    finally:
        wave.remove_scratch()
    outcome.taps = {step: outcome.outbox.pop(tap_of(step), ()) for step in work.taps}
    return outcome


def whole_table(
    spark: SparkSession, plan: Plan, work: Work, sink: str, written: Iterable[str] = ()
) -> tuple[DataFile, ...]:
    """The table that a sink gets, as it is at the base, written for its outbox as inserts. Reads no log.

    `written` are runs of the base that are in the work's place, and not in the ledger.
    """
    outcome = Outcome(work.interval)
    wave = _Wave(spark, plan, work, outcome, dict(work.base.runs), written=set(written))
    wave.take(wave.run(plan.whole(sink)))
    return outcome.outbox.get(sink, ())


def task_ranges(ranges: tuple[Range, ...], tasks: int) -> tuple[tuple[TaskRange, ...], ...]:
    """Cut the ranges into equal shares, one a task; a partition may be read by several tasks."""
    total = sum(len(r) for r in ranges)
    share = -(-total // tasks) if total else 0
    shares: list[list[TaskRange]] = [[] for _ in range(tasks)]
    task, room = 0, share
    for r in ranges:
        start = r.start
        while start < r.end:
            end = min(r.end, start + room)
            shares[task].append(TaskRange(r.spout, r.partition, start, end))
            room -= end - start
            start = end
            if room == 0 and task < tasks - 1:
                task, room = task + 1, share
    return tuple(tuple(share) for share in shares)


@dataclass
class _Wave:
    """What the jobs of an advance share: what earlier ones left is what the next one finds."""

    spark: SparkSession
    plan: Plan
    work: Work
    outcome: Outcome
    runs: dict[str, tuple[Run, ...]]
    resident: Resident | None = None
    inputs: dict[str, tuple[str, ...]] = field(default_factory=dict)  # scratch files by step
    written: set[str] = field(default_factory=set)  # ids of the runs of this advance
    reports: list[Report] = field(default_factory=list)  # of all jobs so far
    orders: int = 0  # that were too large to be sent, and are scratch files

    def __post_init__(self) -> None:
        ledger = self.work.ledger
        self.one_disk = is_folder(ledger.address) or is_on_this_machine(self.spark)  # for driver and tasks
        place = ledger.cache.address if self.one_disk else ledger.store.address
        self.scratch = f"{place}/{SCRATCH}/{uuid.uuid4().hex}"

    def run(self, job: Job) -> list[Report]:
        """One job, and what all its tasks have reported."""
        if self.resident is not None and job.alone is not None:
            return self._run_resident(self.resident, job.alone.slot)
        return self._run_in_spark(job)

    def _run_resident(self, resident: Resident, slot: str) -> list[Report]:
        started = time.perf_counter()
        # Where we see the worker's disk, and the files go into the ledger, all of them are synced at once, at the end.
        synced = self.work.place is not None or not resident.is_near
        self.outcome.synced &= synced
        reports = resident.run(slot, self._order(synced))
        self.reports += reports
        self.outcome.held |= resident.attached
        _refuse_missing({slot: 1}, reports)
        self._count_time(0.0, time.perf_counter() - started, reports)
        return reports

    def _run_in_spark(self, job: Job) -> list[Report]:
        plan = self.plan
        sent = self._order().sent(self.orders)
        self.orders += not sent.startswith("{")
        self.spark.sparkContext.setLocalProperty(PROPERTY, sent)
        list(plan.inbox.take())  # what a failed try left
        started = time.perf_counter()
        try:
            settle(self.spark, plan.tasks)
            run = plan.job(job.frame)
            planned = time.perf_counter()
            run()
        except (PySparkException, Py4JJavaError) as error:
            raise failure_of_job(error) from error
        finally:
            reports = list(plan.inbox.take())  # also of a job that failed: some of its tasks were done
            self.reports += reports
        spent = time.perf_counter() - planned
        _refuse_missing(plan.expected(job.frame), reports)
        self._count_time(planned - started, spent, reports)
        return reports

    def take(self, reports: list[Report]) -> None:
        """Add the reports of a wave to the outcome, and to what the next wave finds."""
        outcome = self.outcome
        # All of a step at once: a tuple that grows by every report would take the square of their number.
        for step, added in _by_name(report.runs for report in reports).items():
            self._change_state(step, StateChange(added=tuple(added)))
            self.written.update(run.id for run in added)
        for sink, files in _by_name(report.outbox for report in reports).items():
            outcome.outbox[sink] = (*outcome.outbox.get(sink, ()), *files)
        for step, paths in _by_name(report.scratch for report in reports).items():
            self.inputs[step] = (*self.inputs.get(step, ()), *paths)
        for report in reports:
            outcome.late += sum(report.late.values())
            for spout, partitions in report.seen.items():
                for partition, seen in partitions.items():
                    known = outcome.seen.setdefault(spout, {}).setdefault(partition, Seen())
                    known.add(seen)
        _take_letters(outcome, reports)

    def remove_files(self) -> None:
        """Of an advance that failed. What is left even so (a worker was killed) is an orphan that vacuum removes."""
        place = self.work.place
        store = self.work.ledger.store if place is None else open_store(place.address)
        for report in self.reports:
            for name in report.files():
                with suppress(OSError):  # that would hide why the advance has failed
                    store.delete(name)

    def remove_scratch(self) -> None:
        """What waves left for each other. In most ticks that is nothing, and then nothing is asked of a store."""
        if is_folder(self.scratch) or self.orders or any(report.scratch for report in self.reports):
            with suppress(OSError):  # a later run removes it
                remove_rows(self.scratch)

    def _order(self, synced: bool = True) -> Order:
        work, place = self.work, self.work.place
        return Order(
            ledger=work.ledger.store.address,
            cache=work.ledger.cache.address if self.one_disk else None,
            copies=work.ledger.copies,
            scratch=self.scratch,
            seq=work.base.commit + 1,
            epoch=work.ledger.epoch,
            now=work.now,
            place=None if place is None else (place.address, str(place.cache.resolve()) if self.one_disk else None),
            written=frozenset() if place is None else frozenset(self.written),
            synced=synced,
            ranges=task_ranges(work.records(), self.plan.tasks),
            rosters=dict(work.rosters),
            runs=self.runs,
            inputs=self.inputs,
            watermarks=work.base.watermarks if work.watermarks is None else work.watermarks,
            reached=work.base.reached,
            coverage=work.base.coverage if work.letters else {},
            letters=tuple(TaskRange(one.spout, one.partition, one.start, one.end) for one in work.letters),
            excluded=work.excluded,
        )

    def _change_state(self, step: str, change: StateChange) -> None:
        self.runs[step] = changed_runs(self.runs.get(step, ()), change)
        before = self.outcome.state.get(step, StateChange())
        added, removed = (*before.added, *change.added), (*before.removed, *change.removed)
        self.outcome.state[step] = StateChange(added=added, removed=removed)

    def _count_time(self, planning: float, spent: float, reports: list[Report]) -> None:
        in_python = {"read": 0.0, "look up": 0.0, "merge": 0.0, "write": 0.0}
        for report in reports:
            for phase, seconds in report.timings.items():
                if phase in in_python:
                    in_python[phase] += seconds
        # Passes overlap with the JVM and with each other: what Python did not account for is Spark's.
        tasks = self.plan.tasks
        timings = {"plan": planning, "compute": max(0.0, spent - sum(in_python.values()) / tasks)}
        for phase, seconds in {**timings, **{p: s / tasks for p, s in in_python.items()}}.items():
            self.outcome.timings[phase] = self.outcome.timings.get(phase, 0.0) + seconds


def _refuse_missing(expected: Mapping[str, int], reports: list[Report]) -> None:
    """A tick counts only when every pass of every task has reported: what is missing may have written state."""
    heard = Counter(report.slot.partition("/")[0] for report in reports if report.slot.count("/") == 1)
    for slot, tasks in expected.items():
        if heard[slot] != tasks:
            raise TransientRunError(
                30,
                f"{tasks - heard[slot]} of {tasks} tasks of '{slot.partition('#')[0]}' have not reported what they did",
                hint="Nothing of this tick was committed. It is tried again; if it stays so, Spark's log may say why:\n"
                + SPARK_LOG,
            )


def _by_name(reported: Iterable[Mapping[str, list[T]]]) -> dict[str, list[T]]:
    """What all reports have of each step or sink, in their order."""
    found: dict[str, list[T]] = {}
    for one in reported:
        for name, items in one.items():
            found.setdefault(name, []).extend(items)
    return found


def _take_letters(outcome: Outcome, reports: list[Report]) -> None:
    outcome.letters = (*outcome.letters, *(letter for report in reports for letter in report.letters))
    for report in reports:
        outcome.again |= report.again
        for step, failures in report.failures.items():
            known = outcome.failures.setdefault(step, Failures())
            known.count += failures.count
            known.reason = known.reason or failures.reason
            known.fatal = known.fatal or failures.fatal


def first_failure(failures: Mapping[str, Failures]) -> tuple[str, Failures]:
    """The step with the most failures: the one to look at."""
    return max(failures.items(), key=lambda item: item[1].count)
