"""advance: run a compiled topology over one interval. The one function that everything else is made of.

It reads, computes and writes files, and gives back what they are. It commits nothing: a crash before the commit
leaves files that nobody names. The caller (negotiator, test driver, later replay and audit) decides what to do
with the outcome.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from py4j.protocol import Py4JJavaError
from pyspark.errors import (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    PySparkException,
    SparkRuntimeException,
)
from pyspark.sql import DataFrame, SparkSession

from hailstorm.clock.clock import Interval, Range
from hailstorm.engine.isolation import Excluded
from hailstorm.engine.order import PROPERTY, Failures, Order, Report, Seen, TaskRange
from hailstorm.engine.plan import Plan
from hailstorm.errors import RunError
from hailstorm.ledger.commit import DataFile, Run, StateChange
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import changed_runs

_SQL_ERRORS = (
    ArithmeticException,
    ArrayIndexOutOfBoundsException,
    DateTimeException,
    NumberFormatException,
    SparkRuntimeException,
)


@dataclass
class Outcome:
    """What an advance wrote and saw: the body of a commit."""

    state: dict[str, StateChange] = field(default_factory=dict)
    outbox: dict[str, tuple[DataFile, ...]] = field(default_factory=dict)
    letters: tuple[DataFile, ...] = ()
    failures: dict[str, Failures] = field(default_factory=dict)
    seen: dict[str, dict[int, Seen]] = field(default_factory=dict)
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return sum(seen.rows for partitions in self.seen.values() for seen in partitions.values())

    @property
    def errors(self) -> int:
        return sum(failures.count for failures in self.failures.values())


def advance(
    spark: SparkSession,
    plan: Plan,
    ledger: Ledger,
    interval: Interval,
    now: int,
    letters: tuple[str, ...] = (),
    excluded: Excluded | None = None,
) -> Outcome:
    """Run the plan over the interval, from the ledger's head. Waves run one after another, each as one job.

    `letters` are files of dead letters, for a plan that was compiled to retry them. `excluded` records are refused.
    """
    outcome = Outcome()
    scratch = ledger.cache.folder / "scratch" / uuid.uuid4().hex
    ranges = task_ranges(interval.ranges(), plan.tasks)
    runs: dict[str, tuple[Run, ...]] = dict(ledger.head.runs)
    inputs: dict[str, tuple[str, ...]] = {}

    def order(refill: str = "") -> Order:
        return Order(
            ledger=str(ledger.root.resolve()),
            cache=str(ledger.cache.folder.resolve()),
            scratch=str(scratch.resolve()),
            seq=ledger.head.commit + 1,
            now=now,
            ranges=ranges,
            runs=runs,
            inputs=inputs,
            refill=refill,
            letters=letters,
            excluded=excluded or {},
        )

    try:
        for frame in plan.waves:
            reports = _run(spark, plan, frame, order(), outcome)
            for step in sorted({step for report in reports for step in report.null_keys}):
                found = _run(spark, plan, plan.rejects[step], order(), outcome)
                # The rows were read again to find these; of all that happened again only the letters are new.
                _take_letters(outcome, [report for report in found if report.slot.startswith(f"{step}!null")])
            _take(outcome, reports, runs, inputs)
            for step in sorted({step for report in reports for step in report.refill}):
                refill = plan.refills[step]
                # The table's changes of this tick are in its runs by now: fill from there.
                _take(outcome, _run(spark, plan, refill.frame, order(refill=refill.table), outcome), runs, inputs)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return outcome


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


def _run(spark: SparkSession, plan: Plan, frame: DataFrame, order: Order, outcome: Outcome) -> list[Report]:
    spark.sparkContext.setLocalProperty(PROPERTY, order.encode())
    list(plan.inbox.take())  # what a failed try left
    started = time.perf_counter()
    run = plan.job(frame)
    planned = time.perf_counter()
    try:
        run()
    except (PySparkException, Py4JJavaError) as error:
        raise _job_failed(error) from error
    spent = time.perf_counter() - planned
    reports = list(plan.inbox.take())
    in_python = {"read": 0.0, "look up": 0.0, "merge": 0.0, "write": 0.0}
    for report in reports:
        for phase, seconds in report.timings.items():
            if phase in in_python:
                in_python[phase] += seconds
    # Passes overlap with the JVM and with each other: what Python did not account for is Spark's.
    busy = sum(in_python.values()) / plan.tasks
    timings = {"plan": planned - started, "compute": max(0.0, spent - busy)}
    for phase, seconds in {**timings, **{p: s / plan.tasks for p, s in in_python.items()}}.items():
        outcome.timings[phase] = outcome.timings.get(phase, 0.0) + seconds
    return reports


def _take(
    outcome: Outcome, reports: list[Report], runs: dict[str, tuple[Run, ...]], inputs: dict[str, tuple[str, ...]]
) -> None:
    """Add the reports of a wave to the outcome, and to what the next wave finds."""
    for report in reports:
        for step in report.replaced:
            _change_state(outcome, runs, step, StateChange(removed=tuple(run.id for run in runs.get(step, ()))))
        for step, added in report.runs.items():
            _change_state(outcome, runs, step, StateChange(added=tuple(added)))
        for sink, files in report.outbox.items():
            outcome.outbox[sink] = (*outcome.outbox.get(sink, ()), *files)
        for step, paths in report.scratch.items():
            inputs[step] = (*inputs.get(step, ()), *paths)
        for spout, partitions in report.seen.items():
            for partition, seen in partitions.items():
                known = outcome.seen.setdefault(spout, {}).setdefault(partition, Seen())
                known.rows += seen.rows
                known.highest = max((h for h in (known.highest, seen.highest) if h is not None), default=None)
    _take_letters(outcome, reports)


def _take_letters(outcome: Outcome, reports: list[Report]) -> None:
    for report in reports:
        outcome.letters = (*outcome.letters, *report.letters)
        for step, failures in report.failures.items():
            known = outcome.failures.setdefault(step, Failures())
            known.count += failures.count
            known.reason = known.reason or failures.reason
            known.fatal = known.fatal or failures.fatal


def _change_state(outcome: Outcome, runs: dict[str, tuple[Run, ...]], step: str, change: StateChange) -> None:
    runs[step] = changed_runs(runs.get(step, ()), change)
    before = outcome.state.get(step, StateChange())
    outcome.state[step] = StateChange(added=(*before.added, *change.added), removed=(*before.removed, *change.removed))


def _job_failed(error: PySparkException | Py4JJavaError) -> RunError:
    if isinstance(error, _SQL_ERRORS):
        return _sql_failed(error)
    cause = _cause(error)
    if "HS-RUN-010" in cause:  # an expression that Arrow computes
        return _expression_failed(cause.partition("HS-RUN-010")[2].strip())
    if "No space left on device" in cause:
        hint = "The disk is full. Nothing of this tick was committed; make room and run again."
        return RunError(8, f"a tick could not be written: {cause}", hint=hint)
    failure = RunError(1, f"a Spark job failed: {cause}", hint="Spark's log is in the ledger: .cache/spark.log")
    # What Hailstorm itself said in a task (a log's records are gone, say) will be said again; the rest may pass.
    failure.poisoned = "HS-RUN-011" in cause  # a monoid of the user's own raises
    failure.log_unreachable = "TransientLogError" in cause
    failure.transient = failure.log_unreachable or "HS-" not in cause
    return failure


def _sql_failed(error: PySparkException) -> RunError:
    """An expression of the user's that fails on a row: Spark says why, and quotes it."""
    why, _, rest = str(error).partition(" SQLSTATE")
    quoted = [line for line in rest.splitlines()[1:] if line and not line.startswith(("==", "^", " "))]
    return _expression_failed(f"an SQL expression fails on a row: {why}" + (f" In: {quoted[0]}" if quoted else ""))


def _expression_failed(what: str) -> RunError:
    failure = RunError(
        10,
        what,
        hint="Nothing of this tick was committed. Let it give null on such rows (try_cast, try_divide, nullif),\n"
        "or leave them out before it (where).",
    )
    failure.poisoned = True
    return failure


def _cause(error: PySparkException | Py4JJavaError) -> str:
    """The last line of a traceback says what happened; the first lines are Spark's plumbing."""
    if isinstance(error, Py4JJavaError):  # what pyspark has no class for, such as a worker that was killed
        said = str(error.java_exception.getMessage()).partition("\n")[0]
        return said.rpartition("most recent failure: ")[2]
    lines = [line for line in str(error).strip().splitlines() if line and not line.startswith((" ", "\t"))]
    raised = [line for line in lines if not line.startswith(("Traceback", "Driver stacktrace", "at "))]
    return raised[-1] if raised else type(error).__name__


def first_failure(failures: Mapping[str, Failures]) -> tuple[str, Failures]:
    """The step with the most failures: the one to look at."""
    return max(failures.items(), key=lambda item: item[1].count)
