"""A chain of stages: one Python pass of one Spark task.

Consecutive Python steps become one chain, because every pass costs a worker process and two copies of the data.
A stage takes batches and gives batches; what else it does (files written, rows refused) it tells the task.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from hailstorm.engine.order import Failures, Order, Report
from hailstorm.ledger.cache import OpenRun, RunCache, write_arrow
from hailstorm.ledger.commit import DataFile, Run
from hailstorm.ledger.letters import letters_table
from hailstorm.ledger.runs import write_rows, write_run
from hailstorm.ledger.store import LocalStore

Batches = Iterator[pa.RecordBatch]

_LONGEST_REASON = 1_000


class Stage(Protocol):
    @property
    def phase(self) -> str:
        """Where its time is shown: read, compute, look up, merge, write."""

    def __call__(self, batches: Batches, task: Task) -> Batches: ...


@dataclass
class Task:
    """What the stages of one pass share: the order, the ledger, and the report that they fill in."""

    order: Order
    partition: int
    report: Report
    letters: list[tuple[str | None, int | None, int | None, str, str, bytes | None]] = field(default_factory=list)
    parts: list[Task] = field(default_factory=list)

    def part(self) -> Task:
        """For a branch of the pass that runs beside others: it has a report of its own."""
        self.parts.append(Task(self.order, self.partition, Report(f"{self.report.slot}/{len(self.parts)}")))
        return self.parts[-1]

    @cached_property
    def store(self) -> LocalStore:
        return LocalStore(Path(self.order.ledger))

    @cached_property
    def cache(self) -> RunCache:
        return RunCache(self.store, Path(self.order.cache))

    def open_runs(self, step: str) -> list[OpenRun]:
        """The live runs of a step, newest first."""
        return [self.cache.open(step, run) for run in reversed(self.order.runs.get(step, ()))]

    def write_state(self, step: str, rows: pa.Table) -> Run:
        run = write_run(self.store, step, rows, self.order.seq)
        self.cache.put(step, run.id, rows)
        self.report.runs.setdefault(step, []).append(run)
        return run

    def write_outbox(self, sink: str, rows: pa.Table) -> None:
        self.report.outbox.setdefault(sink, []).append(self.write_file(f"outbox/{sink}", rows))

    def write_scratch(self, step: str, rows: pa.Table) -> None:
        path = Path(self.order.scratch) / f"{step}-{uuid.uuid4().hex}.arrow"
        write_arrow(rows, path)
        self.report.scratch.setdefault(step, []).append(str(path))

    def refuse(
        self,
        step: str,
        reason: str,
        on_error: str,
        origin: tuple[str | None, int | None, int | None],
        raw: bytes | None,
    ) -> None:
        """A row that cannot go on: counted, and kept as a dead letter unless the step says otherwise."""
        # What user code says may be of any length and need not be valid text.
        reason = reason[:_LONGEST_REASON].encode(errors="replace").decode()
        failures = self.report.failures.setdefault(step, Failures())
        failures.count += 1
        failures.reason = failures.reason or reason
        failures.fatal = failures.fatal or on_error == "fail"
        if on_error == "dead-letter":
            self.letters.append((*origin, step, reason, raw))

    def finish(self) -> list[Report]:
        """The reports of the task and of its parts, with what they refused written down."""
        if self.letters:
            self.report.letters.append(self.write_file("errors", letters_table(self.letters)))
        return [self.report, *(report for part in self.parts for report in part.finish())]

    def write_file(self, folder: str, rows: pa.Table) -> DataFile:
        return write_rows(self.store, folder, rows, self.order.seq)


@dataclass(frozen=True)
class Chain:
    """The function that Spark's `mapInArrow` gets."""

    name: str
    stages: Sequence[Stage]
    inbox: Accumulator[list[Report]]

    def __call__(self, batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        task = Task(Order.of_this_task(), partition, Report(f"{self.name}/{partition}"))
        yield from run_stages(self.stages, batches, task)
        self.inbox.add(task.finish())


@dataclass(frozen=True)
class Fan:
    """The end of a pass whose rows several steps read: each goes on with them, and writes.

    A pass is one task, also where there are more cores. Our own stages are at work in Arrow, numpy and files, so
    threads use them. Functions of users expect to be called one at a time.
    """

    side_by_side: tuple[tuple[Stage, ...], ...]
    in_turn: tuple[tuple[Stage, ...], ...]
    threads: int

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = list(batches)
        began = time.perf_counter()
        chains = (*self.side_by_side, *self.in_turn)
        parts = [task.part() for _ in chains]

        def run(number: int) -> None:
            for _ in run_stages(chains[number], iter(kept), parts[number]):
                raise AssertionError("a branch ends with what it writes")

        first = len(self.side_by_side)
        with ThreadPoolExecutor(self.threads) as pool:
            list(pool.map(run, range(first)))
        for number in range(first, len(chains)):
            run(number)
        _share_out(time.perf_counter() - began, [part.report for part in parts])
        yield from ()


def _share_out(seconds: float, reports: Sequence[Report]) -> None:
    """Threads that wait for each other count that as work: let their times add up to what it took in all."""
    counted = sum(spent for report in reports for spent in report.timings.values())
    for report in reports if counted > seconds else ():
        report.timings = {phase: spent * seconds / counted for phase, spent in report.timings.items()}


def run_stages(stages: Sequence[Stage], batches: Batches, task: Task) -> Batches:
    """What comes out of the last stage. The time of each is added to its phase in the task's report."""
    timed = _Timed(batches)
    clocks = [timed]
    for stage in stages:
        timed = _Timed(stage(timed, task))
        clocks.append(timed)
    yield from timed
    # What a stage's iterator took, less what the one before it took. The first one waits for the JVM.
    timings = task.report.timings
    timings["compute"] = timings.get("compute", 0.0) + clocks[0].seconds
    for stage, clock, before in zip(stages, clocks[1:], clocks[:-1], strict=True):
        timings[stage.phase] = timings.get(stage.phase, 0.0) + clock.seconds - before.seconds


class _Timed:
    """An iterator that knows how long it kept its reader waiting."""

    def __init__(self, batches: Batches) -> None:
        self._batches = iter(batches)
        self.seconds = 0.0

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> pa.RecordBatch:
        started = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self.seconds += time.perf_counter() - started
