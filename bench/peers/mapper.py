"""The function of the bolt bench in a bare mapInArrow, and a native count and sum of what comes out of it."""

from __future__ import annotations

import time
from collections import namedtuple
from collections.abc import Iterator, Mapping

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.functions import count, sum

from bench.peers.peer import CORES, Tick, scratch_folder, spark_settings
from bench.peers.topologies import doubled
from bench.work import Work

_RETURNS = ("half", "double")
_Row = namedtuple("_Row", ["value"])


def _mapped(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [doubled(_Row(value)) for value in batch.column("value").to_pylist()]
        columns = [pa.array([row[name] for row in rows], pa.int64()) for name in _RETURNS]
        yield pa.RecordBatch.from_arrays(columns, list(_RETURNS))


class Mapper:
    def __init__(self, work: Work) -> None:
        self.work = work
        self.folder = scratch_folder("mapper")
        self.start = work.keys

    def prepare(self) -> Mapping[str, float]:
        builder = SparkSession.builder.appName("bench").master(f"local[{CORES}]")
        for name, value in {**spark_settings(), "spark.sql.adaptive.enabled": "false"}.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        return {}

    def burst(self, ticks: int) -> list[Tick]:
        return [self._job() for _ in range(ticks + 1)][1:]

    def figures(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        self.spark.stop()

    def _job(self) -> Tick:
        start, end = self.start, self.start + self.work.rows
        self.start = end
        began = time.perf_counter()
        rows = self.spark.range(start, end, 1, CORES).selectExpr("id AS value")
        mapped = rows.mapInArrow(_mapped, "half BIGINT, double BIGINT")
        mapped.agg(count("*"), sum("double")).collect()
        return Tick((time.perf_counter() - began) * 1000, self.work.rows)
