"""Compaction of a large state as Spark tasks: each merges one range of hashes, and writes its runs.

The housekeeper asks, where tasks run on other machines than the driver: there the driver would read and write all of
the state by itself, and keep a copy of it. A range is merged by the task that owns its hashes in a tick: on a machine
that has copies of these runs, and that needs the new ones next. So no machine gets copies of what is another's. What a
task wrote that Spark then runs again is named by no commit: vacuum removes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hailstorm.columns import HASH
from hailstorm.engine.plan.ranges import owned
from hailstorm.engine.stages.exchange import borders
from hailstorm.ledger.cache import RunCache, cache_of_this_machine
from hailstorm.ledger.commit import Run
from hailstorm.ledger.compaction import Merge, merged
from hailstorm.ledger.stores import open_store

_POOL = "housekeeping"  # beside ticks, and not in front of them
_ANSWER = pa.schema([("runs", pa.binary())])


@dataclass(frozen=True)
class MergeRange:
    """The function that runs in tasks: it is given the numbers of ranges."""

    address: str
    copies: str  # which copies of its runs can be believed
    merge: Merge
    ranges: tuple[tuple[int, int], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self.address)
        cache = RunCache(store, cache_of_this_machine(self.address, self.copies), self.copies)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                runs = merged(store, cache, self.merge, between=self.ranges[number])
                yield pa.RecordBatch.from_pydict({"runs": [msgspec.json.encode(runs)]}, _ANSWER)


@dataclass(frozen=True)
class MergeInTasks:
    spark: SparkSession
    address: str
    copies: str
    tasks: int  # of a planned tick: who owns which hashes

    def __call__(self, merge: Merge) -> list[Run] | None:
        """The new runs; None when the tasks could not do it. Called by one thread at a time, beside ticks."""
        ranges = tuple(merge.ranges())
        work = MergeRange(self.address, self.copies, merge, ranges)
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        try:
            return [run for some in self._rounds(ranges) for run in self._merged(work, some)]
        except (PySparkException, Py4JJavaError):
            return None  # the driver does it by itself, and if it cannot either, that says why

    def _rounds(self, ranges: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
        """The numbers and first hashes of the ranges, as jobs that have one of each owner at most.

        An executor with one core that merged all of its ranges at once would keep a tick waiting for so long.
        """
        rounds: list[list[tuple[int, int]]] = []
        given, starts = Counter[int](), borders(self.tasks)
        for number, (low, _) in enumerate(ranges):
            owner = bisect_right(starts, low)
            if given[owner] == len(rounds):
                rounds.append([])
            rounds[given[owner]].append((number, low))
            given[owner] += 1
        return rounds

    def _merged(self, work: MergeRange, numbers: list[tuple[int, int]]) -> list[Run]:
        named = self.spark.createDataFrame(numbers, f"number INT, {HASH} BIGINT")
        rows = owned(named, self.tasks).mapInArrow(work, "runs BINARY").collect()
        return [run for row in rows for run in msgspec.json.decode(bytes(row.runs), type=list[Run])]
