"""A bare Spark batch job: aggregates the rows of one tick and writes Parquet. It keeps no state and commits nothing.

It is measured with one partition a core and with one; the faster of the two is the limit.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession

from bench.peers.peer import CORES, Tick, scratch_folder, spark_settings
from bench.peers.streaming import SCHEMAS, results_of
from bench.work import Work, lines


class Batch:
    def __init__(self, work: Work, partitions: int = CORES) -> None:
        self.work, self.partitions = work, partitions
        self.folder = scratch_folder("batch")
        self.start = work.keys  # the other peers have used the numbers below to fill their state

    def prepare(self) -> Mapping[str, float]:
        builder = SparkSession.builder.appName("bench").master(f"local[{CORES}]")
        for name, value in {**spark_settings(), **self._settings()}.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        return {}

    def _settings(self) -> dict[str, str]:
        return {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": str(self.partitions)}

    def burst(self, ticks: int) -> list[Tick]:
        return [self._job() for _ in range(ticks + 1)][1:]

    def figures(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        self.spark.stop()

    def _job(self) -> Tick:
        start, end = self.start, self.start + self.work.rows
        self.start = end
        if self.work.is_json:
            self._put(start, end)
        began = time.perf_counter()
        results_of(self.work, self._rows(start, end))[0].write.parquet(str(self.folder / "out"))
        ms = (time.perf_counter() - began) * 1000
        shutil.rmtree(self.folder / "out")
        return Tick(ms, self.work.rows)

    def _rows(self, start: int, end: int) -> DataFrame:
        if self.work.is_json:
            return self.spark.read.schema(SCHEMAS[self.work.kind]).json(str(self.folder / "in"))
        return self.spark.range(start, end, 1, self.partitions).selectExpr("id AS value")

    def _put(self, start: int, end: int) -> None:
        shutil.rmtree(self.folder / "in", ignore_errors=True)
        (self.folder / "in").mkdir()
        for part in range(CORES):
            first, last = (start + (end - start) * (part + n) // CORES for n in (0, 1))
            text = "\n".join(lines(self.work, first, last).to_pylist()) + "\n"
            (self.folder / "in" / f"{part}.json").write_text(text)
