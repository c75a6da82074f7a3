"""The plan: a topology as waves of Spark jobs.

A branch is a flow that ends in a Python stage which writes. Branches read what earlier ones leave, so each record is
read once and each user function runs once per record. A wave is one job: all branches that can run beside each other.

The same compiler serves both ways to run. With one task there is no shuffle, because one partition needs none: the
plan is *prepared*, and the same DataFrames are run for every tick. All branches that need nothing of the JVM are lines
of one pass, also those that read each other. With more tasks the plan is *planned*: where it has a shuffle, Spark must
plan it again for every tick, or it would reuse the shuffle files of the tick before.

compiler.py makes it; advance runs it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import UnknownException, convert_exception
from pyspark.sql import DataFrame

from hailstorm.engine.plan.flow import DONE, Flow, Job
from hailstorm.engine.plan.needs import Need
from hailstorm.engine.stages.chain import Line, Pass
from hailstorm.engine.stages.order import Inbox
from hailstorm.ledger.commit import StepShape


@dataclass(frozen=True)
class Branch:
    """A flow that leaves the rows of `step`, or writes them. Whoever reads it comes in a later wave when it `waits`.

    (A top whose buffer has run short has its changes only after it was filled again.)
    """

    step: str
    flow: Flow
    waits: bool = False
    outputs: tuple[str, ...] = ()  # what it leaves beside the step's own rows: `hourly.late`

    @property
    def leaves(self) -> tuple[str, ...]:
        return (self.step, *self.outputs)


@dataclass(frozen=True)
class CompiledStep:
    """One step as the plan has it."""

    schema: pa.Schema  # its public columns, types as Spark sees them
    rows: Callable[[int], Flow]  # its rows or changes, for a reader of so many tasks
    whole: Callable[[], Flow] | None = None  # of a table: all its rows, as inserts
    shape: StepShape | None = None  # of a stateful step: how it keeps and shows its rows
    rejects: Job | None = None  # what finds the rows behind null keys, where Spark has aggregated them away
    refill: Job | None = None  # what fills its state again from the whole table that it reads
    fills_outbox: Callable[[], Job] | None = None  # of a sink of a table: what brings it the whole table


@dataclass(frozen=True)
class Seen:
    """What Spark makes of a frame."""

    frame: DataFrame  # kept, because its id would be another's otherwise
    passes: Mapping[str, int]  # how many tasks each Python pass has, by its slot
    shuffles: bool


@dataclass(frozen=True)
class Plan:
    tasks: int
    branches: tuple[Branch, ...]
    steps: Mapping[str, CompiledStep]
    inbox: Inbox
    _seen: dict[int, Seen] = field(default_factory=dict)
    _prepared: dict[int, tuple[DataFrame, Any]] = field(default_factory=dict)

    @property
    def schemas(self) -> dict[str, pa.Schema]:
        return {name: step.schema for name, step in self.steps.items()}

    @property
    def stateful(self) -> dict[str, StepShape]:
        return {name: step.shape for name, step in self.steps.items() if step.shape is not None}

    @property
    def key_types(self) -> dict[str, tuple[str, ...]]:
        """The types of the key columns of every stateful step, as Spark has resolved them."""
        return {name: shape.key_types for name, shape in self.stateful.items()}

    def rejects(self, step: str) -> Job:
        """What finds the rows behind the null keys that a fold has met."""
        job = self.steps[step].rejects
        assert job is not None, step
        return job

    def refill(self, step: str) -> Job:
        """What fills the state of a step that has asked for it."""
        job = self.steps[step].refill
        assert job is not None, step
        return job

    def whole(self, sink: str) -> Job:
        """What brings the whole table of a sink into its outbox."""
        filled = self.steps[sink].fills_outbox
        assert filled is not None, sink
        return filled()

    @cached_property
    def waves(self) -> tuple[Job, ...]:
        """One job per wave: all its branches side by side."""
        waves = []
        for branches in self.branches_by_wave():
            first, *others = self._jobs(branches)
            frame = first.frame
            for other in others:
                frame = frame.unionAll(other.frame)
            waves.append(Job(frame) if others else first)
        return tuple(waves)

    @property
    def can_be_resident(self) -> bool:
        """Whether every wave is a pass that needs nothing of the JVM."""
        return self.tasks == 1 and all(job.alone is not None for job in self.waves)

    @property
    def needs(self) -> tuple[Need, ...]:
        """Why it cannot be resident."""
        return tuple(dict.fromkeys(need for branch in self.branches for need in branch.flow.needs))

    @cached_property
    def passes(self) -> Mapping[str, Pass]:
        """All passes that are jobs of their own, by slot: those of waves, and what fills a step again."""
        jobs = [*self.waves, *(step.refill for step in self.steps.values())]
        return {job.alone.slot: job.alone for job in jobs if job is not None and job.alone is not None}

    def branches_by_wave(self) -> list[list[Branch]]:
        numbers: dict[str, int] = {}
        known = {name: branch for branch in self.branches for name in branch.leaves}
        for branch in self.branches:
            sources = [(numbers[known[name].step], known[name]) for name in branch.flow.reads]
            numbers[branch.step] = max(
                (number + (not self._in_one_pass(source, branch)) for number, source in sources), default=0
            )
        last = max(numbers.values(), default=-1)
        return [[b for b in self.branches if numbers[b.step] == number] for number in range(last + 1)]

    def _in_one_pass(self, source: Branch, reader: Branch) -> bool:
        return self.tasks == 1 and not (source.waits or source.flow.needs_jvm or reader.flow.needs_jvm)

    def _jobs(self, branches: list[Branch]) -> Iterator[Job]:
        """The branches of one wave. Those that need nothing of the JVM are one pass, where there is one task."""
        together = [branch for branch in branches if self.tasks == 1 and not branch.flow.needs_jvm]
        if together:
            alone = self.one_pass(together)
            yield Job(together[0].flow.base.mapInArrow(alone, DONE), alone)
        yield from (branch.flow.ended() for branch in branches if branch not in together)

    def one_pass(self, branches: list[Branch]) -> Pass:
        here = {name for branch in branches for name in branch.leaves}
        lines = tuple(
            Line(b.step, b.flow.stages, tuple(name for name in b.flow.reads if name in here), b.outputs)
            for b in branches
        )
        elsewhere = (name for b in self.branches if b.step not in here for name in b.flow.reads)
        threads = branches[0].flow.base.sparkSession.sparkContext.defaultParallelism
        slot = self.inbox.slot("pass")
        return Pass(
            slot, lines, threads, self.inbox.accumulator, left=frozenset(here.intersection(elsewhere)), ends=True
        )

    def text(self) -> str:
        """The plan for people: waves, branches and stages, a line for each. Golden files hold it."""
        rows = [f"{'prepared' if self.tasks == 1 else 'planned'}, tasks: {self.tasks}"]
        for number, (branches, job) in enumerate(zip(self.branches_by_wave(), self.waves, strict=True), 1):
            nodes = Counter(node.nodeName() for node in _nodes(self._planned(job.frame).executedPlan()))
            rows.append(f"wave {number}, passes: {nodes['MapInArrow']}, shuffles: {nodes['Exchange']}")
            for branch in branches:
                reads = f", reads {', '.join(branch.flow.reads)}" if branch.flow.reads else ""
                rows.append(f"  {branch.step}{reads}")
                passes = [[f"    {type(stage).__name__}" for stage in stages] for stages in branch.flow.passes]
                rows += passes[0]
                for stages in passes[1:]:
                    rows += ["    (Spark)", *stages]
        return "\n".join(rows)

    def expected(self, frame: DataFrame) -> Mapping[str, int]:
        """How many tasks must report under each slot when this frame has run: every pass, wherever Spark runs it."""
        return self._looked_at(frame).passes

    def _looked_at(self, frame: DataFrame) -> Seen:
        if id(frame) not in self._seen:
            planned = self._planned(frame).executedPlan()
            shuffles = any(node.nodeName() == "Exchange" for node in _nodes(planned))
            self._seen[id(frame)] = Seen(frame, dict(_passes(planned)), shuffles)
        return self._seen[id(frame)]

    def job(self, frame: DataFrame) -> Callable[[], None]:
        """What runs a frame of this plan once. Frames keep their RDD, unless there is a shuffle in them.

        Counting the RDD instead of collecting the DataFrame leaves out what Spark does around a query (events, plan
        texts): a third of the JVM's work in a small tick. Counting it as a future is what cleans the fewest closures,
        for which Spark reads the class files of itself again each time: a tenth of a small tick.
        """
        if self.tasks > 1 and self._looked_at(frame).shuffles:
            rdd = self._planned(frame.select("*")).toRdd().toJavaRDD()
        else:
            if id(frame) not in self._prepared:
                self._prepared[id(frame)] = (frame, self._planned(frame).toRdd().toJavaRDD())
            _, rdd = self._prepared[id(frame)]

        def run() -> None:
            try:
                rdd.countAsync().get()
            except Py4JJavaError as error:
                raise _failure_of_job(error) from None

        return run

    def _planned(self, frame: DataFrame) -> Any:
        """Spark's plan of a frame, with this plan's number of tasks.

        Spark asks the session for it when it plans, and by then another plan (of a retry, of another way to run) may
        have been compiled in the same session.
        """
        frame.sparkSession.conf.set("spark.sql.shuffle.partitions", str(self.tasks))
        return frame._jdf.queryExecution()


def _passes(node: Any) -> Iterator[tuple[str, int]]:
    """The Python passes below a node of Spark's plan: the name of each, which is its slot, and its number of tasks."""
    return ((n.func().name(), n.execute().getNumPartitions()) for n in _nodes(node) if n.nodeName() == "MapInArrow")


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    children = node.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def _failure_of_job(error: Py4JJavaError) -> Exception:
    """What the future's exception is about, as pyspark tells it."""
    told: Exception = error
    cause = error.java_exception.getCause()
    if cause is not None:
        told = convert_exception(cause)
    if isinstance(told, UnknownException):
        told = Py4JJavaError("A job failed.\n", cause)
    return told
