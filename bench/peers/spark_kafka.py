"""Spark with its own Kafka connector: the batch reader, and Structured Streaming from topic to topic.

A plain script, run by the interpreter of `bench/outside.py`: it may import nothing but pyspark. Its one argument are
options as JSON; orders come a line each on the standard input, and answers go to the standard output (`bench/host.py`).

Structured Streaming is set up as a good user would: RocksDB with changelog checkpointing, no count of the rows in its
state, no empty micro-batches, update mode, the default trigger. Its Kafka sink is at-least-once. Between bursts the JVM
is halted with SIGSTOP, because an idle query asks its source a hundred times a second.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

CORES = 2
_POLL = 0.01
# Where the time of a micro-batch goes. `latestOffset` is left out: it has the time in it in which the JVM was halted.
_PARTS = ("addBatch", "queryPlanning", "walCommit", "commitOffsets")
_LONGEST = 180.0  # seconds of a burst
_STATE = "spark.sql.streaming.stateStore"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "4g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    # The JVM is halted between its bursts; that is no reason to declare its executor dead.
    "spark.network.timeout": "100000s",
    "spark.executor.heartbeatInterval": "1000s",
    f"{_STATE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    f"{_STATE}.rocksdb.changelogCheckpointing.enabled": "true",
    f"{_STATE}.rocksdb.trackTotalNumberOfRows": "false",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
}
LOOKS = ("count(*) AS rows", "sum(length(value)) AS bytes", "sum(offset) AS offsets", "count(key) AS keys")


class Reader:
    """A burst reads all records of a topic, so many times; one time more, which does not count, comes first."""

    def __init__(self, options: dict[str, Any], folder: Path) -> None:
        self.options = options
        self.seen: dict[str, float] = {}

    def prepare(self) -> dict[str, float]:
        self.spark = session(self.options)
        return {}

    def burst(self, ticks: int) -> list[dict[str, Any]]:
        return [self._job() for _ in range(ticks + 1)][1:]

    def figures(self) -> dict[str, float]:
        return self.seen

    def close(self) -> None:
        self.spark.stop()

    def _job(self) -> dict[str, Any]:
        began = time.perf_counter()
        reader = self.spark.read.format("kafka").option("kafka.bootstrap.servers", self.options["servers"])
        reader = reader.option("kafka.isolation.level", "read_committed").option("subscribe", self.options["topic"])
        for name, value in self.options.get("tuned", {}).items():
            reader = reader.option(name, value)
        rows = reader.option("startingOffsets", "earliest").option("endingOffsets", "latest").load()
        self.seen = rows.selectExpr(*LOOKS, "max(timestamp) AS newest").drop("newest").collect()[0].asDict()
        return tick((time.perf_counter() - began) * 1000, self.seen["rows"])


class Counter:
    """A running count from topic to topic. A burst is all that waits; `rows` of an order says how much that is."""

    def __init__(self, options: dict[str, Any], folder: Path) -> None:
        self.options, self.folder = options, folder
        self.most_rows = options.get("most_rows")
        self.query: Any = None
        self.done = 0  # records, up to the end of the last burst. A halted JVM cannot be asked.

    def prepare(self) -> dict[str, float]:
        self.spark = session(self.options)
        self.jvm_pid = int(self.spark._jvm.ProcessHandle.current().pid())
        self._start()
        self._halt()
        return {}

    def burst(self, ticks: int, end: int) -> list[dict[str, Any]]:
        """`end` is where the topic ends now: the sum over its partitions."""
        assert ticks == 1
        before = self.done
        began = time.perf_counter()
        self._go_on()
        while self._position() < end:
            self._raise_what_stopped_it()
            assert time.perf_counter() - began < _LONGEST, f"{self._position():,} of {end:,} records are done"
            time.sleep(_POLL)
        ms = (time.perf_counter() - began) * 1000
        parts: dict[str, float] = {}
        for progress in self.query.recentProgress:
            if progress.numInputRows and position_of(progress) > before:
                for name in _PARTS:
                    parts[name] = parts.get(name, 0.0) + progress.durationMs.get(name, 0)
        self._halt()
        self.done = end
        return [tick(ms, end - before, parts)]

    def size(self, most_rows: int) -> dict[str, float]:
        """Go on with micro-batches of another size."""
        self._go_on()
        self.query.stop()
        self.most_rows = most_rows
        self._start()
        self._halt()
        return {}

    def figures(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        self._go_on()
        self.query.stop()
        self.spark.stop()

    def _start(self) -> None:
        stream = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.options["servers"])
        stream = stream.option("subscribe", self.options["source"]).option("startingOffsets", "earliest")
        if self.most_rows is not None:
            stream = stream.option("maxOffsetsPerTrigger", self.most_rows)
        counts = self._counts(stream.load().selectExpr("CAST(value AS STRING) AS value"))
        writer = counts.writeStream.format("kafka").option("kafka.bootstrap.servers", self.options["servers"])
        writer = writer.option("topic", self.options["target"]).outputMode("update")
        self.query = writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()

    def _counts(self, lines: DataFrame) -> DataFrame:
        keys = lines.selectExpr("from_json(value, 'k BIGINT').k AS k")
        return (
            keys.groupBy("k")
            .count()
            .selectExpr("CAST(k AS STRING) AS key", f"to_json({_struct('count AS n')}) AS value")
        )

    def _position(self) -> int:
        """How far the query has come: all that is before has been delivered and committed."""
        progress = self.query.lastProgress
        return self.done if progress is None else max(self.done, position_of(progress))

    def _go_on(self) -> None:
        os.kill(self.jvm_pid, signal.SIGCONT)

    def _halt(self) -> None:
        os.kill(self.jvm_pid, signal.SIGSTOP)

    def _raise_what_stopped_it(self) -> None:
        error = self.query.exception()
        if error is not None:
            raise error


class Live(Counter):
    """A burst is so many seconds of a query that keeps up with its topic. Who measures stands at the other end."""

    def burst(self, ticks: int, end: int = 0) -> list[dict[str, Any]]:
        self._go_on()
        until = time.monotonic() + ticks
        while time.monotonic() < until:
            self._raise_what_stopped_it()
            time.sleep(0.2)
        self._halt()
        return []

    def _counts(self, lines: DataFrame) -> DataFrame:
        rows = lines.selectExpr("from_json(value, 'k BIGINT, at BIGINT') AS row").selectExpr("row.k", "row.at")
        counts = rows.groupBy("k").agg({"*": "count", "at": "max"})
        values = _struct("`count(1)` AS n", "`max(at)` AS at")
        return counts.selectExpr("CAST(k AS STRING) AS key", f"to_json({values}) AS value")


class Pipeline(Live):
    """As `Live`; and a burst of 0 seconds is all that waits, as `Counter` does it."""

    def burst(self, ticks: int, end: int = 0) -> list[dict[str, Any]]:
        return super().burst(ticks) if ticks else Counter.burst(self, 1, end)


def _struct(*columns: str) -> str:
    return f"struct(k, {', '.join(columns)})"


def position_of(progress: Any) -> int:
    """The sum of the offsets at the end of a micro-batch: `{"topic": {"0": 12, "1": 13}}`."""
    found = progress.sources[0].endOffset
    offsets = json.loads(found) if isinstance(found, str) else found
    return sum(offset for partitions in (offsets or {}).values() for offset in partitions.values())


def tick(ms: float, rows: float, parts: dict[str, float] | None = None) -> dict[str, Any]:
    return {"ms": ms, "rows": int(rows), "parts": parts or {}}


def session(options: dict[str, Any]) -> SparkSession:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.appName("bench").master(f"local[{CORES}]").config("spark.jars", options["jars"])
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    found = builder.config("spark.sql.shuffle.partitions", options.get("partitions", CORES)).getOrCreate()
    found.sparkContext.setLogLevel("ERROR")
    return found


ROLES: dict[str, Any] = {"reader": Reader, "counter": Counter, "live": Live, "pipeline": Pipeline}


def main() -> None:
    options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    folder = Path(tempfile.mkdtemp(prefix="bench-spark-kafka-", dir=os.environ.get("BENCH_SCRATCH")))
    peer = ROLES[options["role"]](options, folder)
    try:
        for line in sys.stdin:
            order = json.loads(line)
            try:
                answer = getattr(peer, order.pop("do"))(**order)
            except Exception:
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")
    finally:
        peer.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
