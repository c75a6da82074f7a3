"""Structured Streaming, as a good user would set it up by hand.

RocksDB state with changelog checkpointing, one shuffle partition a core, update mode, no empty micro-batches, a
sink that throws the rows away (the cheapest there is), and for numbers Spark's own generator as the source, which
is faster than any file. `tuned` also switches off the count of rows in the state, which costs a lookup per change
and is on by default.

The query runs for as long as the peer lives. Between bursts its JVM is halted with SIGSTOP, because an idle query
still asks its source a hundred times a second. The micro-batch that a halt cuts in two is not counted, and neither
is the one after it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import expr
from pyspark.sql.streaming.listener import StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from bench.peers.peer import CORES, Tick, scratch_folder, spark_settings
from bench.peers.streaming_of_time import MODES, result_of_time
from bench.work import Work, lines

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_STATE = "spark.sql.streaming.stateStore"
_POLL = 0.03
_SMALL = 20_000  # rows: below this, one input partition is faster than two


class Streaming:
    def __init__(self, work: Work, tuned: bool = True, partitions: int = CORES, way: str = "") -> None:
        self.work, self.tuned, self.partitions, self.way = work, tuned, partitions, way
        self.folder = scratch_folder("streaming")
        self.written = 0  # rows put into files so far
        self.last = 0  # the last micro-batch that files were put for
        self.queries: list[StreamingQuery] = []
        # Micro-batches after a halt that do not count: the one that finds cold caches, and before it, with a source
        # that never ends, the one that was cut in two.
        self.skip = 1 if work.is_json else 2

    def prepare(self) -> Mapping[str, float]:
        builder = SparkSession.builder.appName("bench").master(f"local[{CORES}]")
        for name, value in {**spark_settings(), **self._settings()}.items():
            builder = builder.config(name, value)
        self.spark = builder.getOrCreate()
        jvm = self.spark._jvm
        assert jvm is not None
        self.jvm_pid = int(jvm.ProcessHandle.current().pid())
        began = time.perf_counter()
        if self._has_files:
            self._begin()
            self.queries = self._start(self.work.rows)
            self._wait_for([0])
        else:
            self.queries = self._start(self.work.fill)
            self._wait_for([0] * len(self.queries))
            for query in self.queries:
                query.stop()
            self.queries = self._start(self.work.rows)
        fill = time.perf_counter() - began
        os.kill(self.jvm_pid, signal.SIGSTOP)
        return {"fill_s": fill}

    def burst(self, ticks: int) -> list[Tick]:
        if self._has_files:
            self._remove_old()
            for _ in range(ticks + self.skip):
                self._put(self.work.rows)
        os.kill(self.jvm_pid, signal.SIGCONT)
        # With files it is known, and need not be asked: the next one may have ended before the answer comes.
        lasts = [self.last if self._has_files else self._last_batch(query) for query in self.queries]
        firsts = [last + 1 + self.skip for last in lasts]
        self.last += self.skip + ticks
        self._wait_for([first + ticks - 1 for first in firsts])
        found = [_ticks(query, first, ticks, self.work.rows) for query, first in zip(self.queries, firsts, strict=True)]
        os.kill(self.jvm_pid, signal.SIGSTOP)
        # Queries side by side do the work together: a tick of all of them takes as long as the slowest one.
        return [max(together, key=lambda tick: tick.ms) for together in zip(*found, strict=True)]

    @property
    def _has_files(self) -> bool:
        """Whether the rows are in files, a micro-batch after the other; else Spark makes them."""
        return self.work.is_json

    def _begin(self) -> None:
        (self.folder / "in").mkdir()
        self._put(self.work.fill)

    def _remove_old(self) -> None:
        for old in (self.folder / "in").glob("*.json"):
            old.unlink()

    def figures(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        os.kill(self.jvm_pid, signal.SIGCONT)
        for query in self.queries:
            query.stop()
        self.spark.stop()

    def _settings(self) -> dict[str, str]:
        return {
            f"{_STATE}.providerClass": _ROCKSDB,
            f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
            f"{_STATE}.rocksdb.trackTotalNumberOfRows": str(not self.tuned).lower(),
            "spark.sql.streaming.noDataMicroBatches.enabled": "false",
            "spark.sql.shuffle.partitions": str(self.partitions),
        }

    def _start(self, rows: int) -> list[StreamingQuery]:
        return [
            result.writeStream.format("noop")
            .outputMode(MODES.get(self.work.kind, "update"))
            .option("checkpointLocation", str(self.folder / f"checkpoint-{number}"))
            .start()
            for number, result in enumerate(self._results(self._source(rows)))
        ]

    def _results(self, rows: DataFrame) -> list[DataFrame]:
        of_time = None if self.work.is_json else result_of_time(self.work, rows, self.way)
        return results_of(self.work, rows) if of_time is None else [of_time]

    def _source(self, rows: int) -> DataFrame:
        stream = self.spark.readStream
        if self.work.is_json:
            files = stream.schema(SCHEMAS[self.work.kind]).option("maxFilesPerTrigger", CORES)
            return files.option("latestFirst", "false").json(str(self.folder / "in"))
        partitions = 1 if rows < _SMALL else self.partitions
        numbers = stream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", partitions)
        return numbers.load().selectExpr("value")

    def _put(self, rows: int) -> None:
        """One micro-batch of JSON lines, as one file a core; a file appears whole or not at all."""
        for part in range(CORES):
            start, end = (self.written + rows * (part + n) // CORES for n in (0, 1))
            name = f"{start:015d}"
            hidden = self.folder / "in" / f".{name}"
            hidden.write_text("\n".join(lines(self.work, start, end).to_pylist()) + "\n")
            hidden.rename(self.folder / "in" / f"{name}.json")
        self.written += rows

    def _last_batch(self, query: StreamingQuery) -> int:
        """The last micro-batch that had rows. A query that waits reports the number that its next one will have."""
        progress = query.lastProgress
        if progress is None:
            return -1
        return progress.batchId if _has_run(progress) else progress.batchId - 1

    def _wait_for(self, batches: list[int]) -> None:
        for query, batch in zip(self.queries, batches, strict=True):
            while self._last_batch(query) < batch:
                error = query.exception()
                if error is not None:
                    raise error
                time.sleep(_POLL)


def _has_run(progress: StreamingQueryProgress) -> bool:
    """Whether it is of a micro-batch, and not of a look that found nothing. It may say that it read no rows: those that
    a predicate leaves out are left out by the reader of JSON."""
    return "addBatch" in progress.durationMs


def _ticks(query: StreamingQuery, first: int, count: int, rows: int) -> list[Tick]:
    found = {progress.batchId: progress for progress in query.recentProgress if _has_run(progress)}
    return [
        Tick(p.durationMs["triggerExecution"], rows, {k: float(v) for k, v in p.durationMs.items()})
        for p in (found[first + number] for number in range(count))
    ]


SCHEMAS = {"purchases": "customer STRING, amount DECIMAL(10,2), level BIGINT", "words": "text STRING"}


def results_of(work: Work, rows: DataFrame) -> list[DataFrame]:
    """The work as plain DataFrames: what a user of Spark would write, streaming or not. One query each."""
    if work.kind == "purchases":
        totals = ("count(*) AS n", "sum(amount) AS total", "max(level) AS highest")
        return [_grouped(rows, "customer", *totals)]
    if work.kind == "words":
        words = rows.selectExpr("explode(split(lower(text), ' ')) AS word")
        return [_grouped(words, "word", "count(*) AS n")]
    keyed = rows.selectExpr(f"{work.key_sql} AS k", "value")
    if work.kind == "sketches":
        sketches = ("approx_count_distinct(value % 1000) AS visitors", "percentile_approx(value % 977, 0.5) AS middle")
        return [_grouped(keyed, "k", *sketches)]
    if work.kind == "six":
        others = [keyed.selectExpr(f"(k + {place}) % {work.keys - place} AS k") for place in range(6)]
        return [_grouped(other, "k", "count(*) AS n") for other in others]
    return [_grouped(keyed, "k", "count(*) AS n")]


def _grouped(rows: DataFrame, key: str, *totals: str) -> DataFrame:
    return rows.groupBy(key).agg(*(expr(text) for text in totals))
