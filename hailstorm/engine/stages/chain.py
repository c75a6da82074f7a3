"""A pass: the Python part of one Spark task, as lines of stages.

Every pass costs a worker process and two copies of the data, so as much as possible is done in one. A stage takes
batches and gives batches; what else it does (files written, rows refused) it tells the task. A line is stages one after
another. A pass with several lines is a small graph: what one line leaves under a name, others read by that name, from
memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from hailstorm.engine.stages.order import Order, Report
from hailstorm.engine.stages.task import Batches, Shelf, Task


class Stage(Protocol):
    @property
    def phase(self) -> str:
        """Where its time is shown: read, compute, look up, merge, write."""

    def __call__(self, batches: Batches, task: Task) -> Batches: ...


@dataclass(frozen=True)
class Line:
    """Stages one after another. The first one reads, unless rows come from the JVM."""

    name: str
    stages: tuple[Stage, ...]
    reads: tuple[str, ...] = ()  # what other lines leave for it
    outputs: tuple[str, ...] = ()  # what it leaves beside its own rows, by whole names

    @property
    def calls_users(self) -> bool:
        """Whether functions of users run in it. They expect to be called one at a time."""
        return any(getattr(stage, "calls_users", False) for stage in self.stages)


@dataclass(frozen=True)
class Pass:
    """The function that Spark's `mapInArrow` gets.

    One line may give its rows to the JVM. Otherwise a pass `ends`: what its lines write is what matters. A line comes
    after all that it reads.
    """

    slot: str
    lines: tuple[Line, ...]
    threads: int
    inbox: Accumulator[list[Report]]
    left: frozenset[str] = frozenset()  # what lines leave for other passes, too
    ends: bool = False

    @property
    def __name__(self) -> str:
        return self.slot  # for Spark, too: plan.py finds its passes by that

    def __call__(self, batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        task = self.task(Order.of_this_task(), context.partitionId())
        with task.without_traces_of_failure():
            if self.ends:
                self.run(batches, task)
                for _ in batches:
                    pass  # a worker that leaves something unread is not used again
            else:
                yield from run_stages(self.lines[0].stages, batches, task)
            reports = task.finish()
        self.inbox.add(reports)

    def task(self, order: Order, partition: int, leisure: list[Callable[[], None]] | None = None) -> Task:
        """For one run of the pass."""
        shelf = Shelf(frozenset(name for line in self.lines for name in line.reads), self.left)
        task = Task(order, partition, Report(f"{self.slot}/{partition}"), shelf, leisure=leisure)
        gone = task.cache.let_go(order.runs)  # a worker lives for many ticks
        if order.cache is None:
            # Nobody else does, on this machine. What was merged is twice there until it is done.
            task.cache.tidy(order.runs, now=gone)
            task.cache.drop_unused()
        return task

    def run(self, base: Iterable[pa.RecordBatch], task: Task) -> None:
        """Run the lines, those of one depth beside each other.

        A pass is one task, also where there are more cores. Our own stages are at work in Arrow, numpy and files, so
        threads use them. Functions of users are called one at a time, in the thread that they have always run in.
        """
        if len(self.lines) == 1:
            _run_line(self.lines[0], base, task)
            return
        base = list(base)  # each line reads it
        with ThreadPoolExecutor(self.threads) as pool:
            for level in _levels(self.lines):
                began = time.perf_counter()
                parts = [(line, task.part(line.name)) for line in level]
                beside = [part for part in parts if len(parts) > 1 and not part[0].calls_users]
                futures = [pool.submit(_run_line, line, base, part) for line, part in beside]
                for line, part in parts:
                    if (line, part) not in beside:
                        _run_line(line, base, part)
                for future in futures:
                    future.result()
                _share_out(time.perf_counter() - began, [part.report for _, part in parts])


def _run_line(line: Line, base: Iterable[pa.RecordBatch], task: Task) -> None:
    for _ in run_stages(line.stages, iter(base), task):
        pass  # whoever reads a line's rows finds them where it left them


def _levels(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines by depth: each reads only what lines of earlier levels leave."""
    depth: dict[str, int] = {}
    levels: list[list[Line]] = []
    for line in lines:
        here = max((depth[name] + 1 for name in line.reads), default=0)
        depth |= dict.fromkeys((line.name, *line.outputs), here)
        levels += [[] for _ in range(here + 1 - len(levels))]
        levels[here].append(line)
    return levels


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
