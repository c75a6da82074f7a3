"""Compaction of a large state as Spark tasks: each merges one range of hashes, and writes its runs.

The housekeeper asks, where tasks run on other machines than the driver: there the driver would read and write all of
the state by itself, and keep a copy of it. A task reads the runs that have hashes of its range: those of a large layer
are cut by hash, so they are few. What a task wrote that Spark then runs again is named by no commit: vacuum removes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

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
    ledger: str  # its id
    merge: Merge
    ranges: tuple[tuple[int, int], ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = open_store(self.address)
        cache = RunCache(store, cache_of_this_machine(self.address, self.ledger))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                runs = merged(store, cache, self.merge, between=self.ranges[number])
                yield pa.RecordBatch.from_pydict({"runs": [msgspec.json.encode(runs)]}, _ANSWER)


@dataclass(frozen=True)
class MergeInTasks:
    spark: SparkSession
    address: str
    ledger: str

    def __call__(self, merge: Merge) -> list[Run] | None:
        """The new runs; None when the tasks could not do it. Called by one thread at a time, beside ticks."""
        ranges = tuple(merge.ranges())
        work = MergeRange(self.address, self.ledger, merge, ranges)
        self.spark.sparkContext.setLocalProperty("spark.scheduler.pool", _POOL)
        try:
            rows = self.spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(work, "runs BINARY").collect()
        except (PySparkException, Py4JJavaError):
            return None  # the driver does it by itself, and if it cannot either, that says why
        return [run for row in rows for run in msgspec.json.decode(bytes(row.runs), type=list[Run])]
