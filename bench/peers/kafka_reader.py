"""`hs.Kafka` as Spark tasks read it, and nothing else: all records of a topic go through Arrow into the JVM.

There they are counted and their columns looked at, as `peers/spark_kafka.py` does with those of Spark's own reader.
One task a partition on both sides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

import hailstorm as hs
from bench.peers.peer import CORES, Tick, scratch_folder
from bench.work import Work
from hailstorm.engine.spark.session import start_session

_COLUMNS = "offset BIGINT, time TIMESTAMP, key BINARY, value BINARY"
# The same text is in peers/spark_kafka.py, which can import nothing from here.
LOOKS = ("count(*) AS rows", "sum(length(value)) AS bytes", "sum(offset) AS offsets", "count(key) AS keys")


class KafkaReader:
    def __init__(self, work: Work, servers: str, topic: str) -> None:
        self.folder = scratch_folder("kafka-reader")
        self.log = hs.Kafka(topic, servers=servers)
        self.seen: dict[str, float] = {}

    def prepare(self) -> Mapping[str, float]:
        self.spark = start_session("bench", self.folder / "spark.log", f"local[{CORES}]")
        return {}

    def burst(self, ticks: int) -> list[Tick]:
        return [self._job() for _ in range(ticks + 1)][1:]

    def figures(self) -> Mapping[str, float]:
        return self.seen

    def close(self) -> None:
        self.spark.stop()

    def _job(self) -> Tick:
        began = time.perf_counter()
        first, last = self.log.earliest(), self.log.latest()
        ranges = [(partition, first[partition], last[partition]) for partition in sorted(last)]
        tasks = self.spark.range(0, len(ranges), 1, len(ranges))
        rows = tasks.mapInArrow(_reading(self.log, ranges), _COLUMNS)
        self.seen = rows.selectExpr(*LOOKS, "max(time) AS newest").drop("newest").collect()[0].asDict()
        return Tick((time.perf_counter() - began) * 1000, int(self.seen["rows"]))


def _reading(
    log: hs.Kafka, ranges: list[tuple[int, int, int]]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for task in batch.column(0).to_pylist():
                yield from log.read(*ranges[task])

    return read
