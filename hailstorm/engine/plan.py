"""The plan: a topology as waves of Spark jobs.

A wave is one job. What a step leaves for several others, and what a stateful step leaves for any other, is written
to scratch files that the next wave reads; so each record is read once and each user function runs once per record.
Within a wave a branch is a DataFrame that ends in a Python stage which writes. With one task, readers that go on in
Python do so in the pass that made the rows.

The same plan serves both ways to run. With one task it has no shuffle, because one partition needs none: it is
*prepared*, and the same DataFrames are run for every tick. With more tasks it is *planned*: Spark must plan it anew
for every tick, or it would reuse the shuffle files of the tick before.

compiler.py makes it; the negotiator runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors.exceptions.captured import UnknownException, convert_exception
from pyspark.sql import DataFrame

from hailstorm.engine.flow import Flow
from hailstorm.engine.order import Inbox
from hailstorm.engine.stages.read import ReadScratch


@dataclass(frozen=True)
class Branch:
    """One end of a wave: `flow` writes for `step`, and for the steps on the way that wrote and passed on."""

    step: str
    flow: Flow

    @property
    def reads(self) -> str | None:
        """The step whose scratch files are all that this branch reads, if it goes on in Python from there."""
        first = self.flow.stages[0] if self.flow.stages else None
        return first.step if type(first) is ReadScratch else None


@dataclass(frozen=True)
class Refill:
    """How a top gets its rows from the whole state of `table`, when its buffer has run short."""

    table: str
    frame: DataFrame


@dataclass(frozen=True)
class Plan:
    tasks: int
    branches: tuple[Branch, ...]
    rejects: Mapping[str, DataFrame]  # for each keyed fold, what finds the rows behind null keys
    refills: Mapping[str, Refill]  # for each top
    schemas: Mapping[str, pa.Schema]  # the public columns of every step, types as Spark sees them
    stateful: Mapping[str, tuple[str, ...]]  # the value columns of every stateful step
    inbox: Inbox
    _prepared: dict[int, tuple[DataFrame, Any]] = field(default_factory=dict)

    @cached_property
    def waves(self) -> tuple[DataFrame, ...]:
        """One DataFrame a wave: all its branches side by side."""
        waves = []
        for number in sorted({branch.flow.wave for branch in self.branches}):
            frames = [branch.flow.ended() for branch in self.branches if branch.flow.wave == number]
            whole = frames[0]
            for frame in frames[1:]:
                whole = whole.unionAll(frame)
            waves.append(whole)
        return tuple(waves)

    def job(self, frame: DataFrame) -> Callable[[], None]:
        """What runs a frame of this plan once. Prepared frames keep their RDD, planned ones are planned anew.

        Counting the RDD instead of collecting the DataFrame leaves out what Spark does around a query (events, plan
        texts): a third of the JVM's work in a small tick. Counting it as a future is what cleans the fewest closures,
        for which Spark reads the class files of itself anew each time: a tenth of a small tick.
        """
        if self.tasks > 1:
            rdd = frame.select("*")._jdf.queryExecution().toRdd().toJavaRDD()
        else:
            if id(frame) not in self._prepared:
                self._prepared[id(frame)] = (frame, frame._jdf.queryExecution().toRdd().toJavaRDD())
            _, rdd = self._prepared[id(frame)]

        def run() -> None:
            try:
                rdd.countAsync().get()
            except Py4JJavaError as error:
                raise _failure_of_job(error) from None

        return run


def _failure_of_job(error: Py4JJavaError) -> Exception:
    """What the future's exception is about, as pyspark tells it."""
    told: Exception = error
    cause = error.java_exception.getCause()
    if cause is not None:
        told = convert_exception(cause)
    if isinstance(told, UnknownException):
        told = Py4JJavaError("A job failed.\n", cause)
    return told
