"""Makes the archive of Spark's classes that Java maps at a start, in the place of reading and checking them one by one.

Run by `conftest.py`, beside the first tests of a whole run, where there is none yet; the argument is the file. It runs
a topology in every way, so that Java knows what is needed, and Java writes the archive when it ends.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.spark.session import start_session
from hailstorm.testing import Driver


def storm() -> hs.Topology:
    made = hs.Topology("classes")
    rows = made.spout("rows", hs.Log("rows"), schema="k STRING, n INT, at TIMESTAMP", event_time="at")
    users = made.table("users", hs.Log("users"), schema="k STRING, name STRING", key="k")
    few = rows.where("few", "n < 100").sql("twice", "SELECT k, n * 2 AS n, at FROM few")
    few.bolt(lambda row: {"k": row.k}, name="bolt", returns="k STRING").fold("words", by="k", times=hs.count())
    counts = few.fold("counts", by="k", n=hs.sum("n"), most=hs.max("n"), kinds=hs.count_distinct("n"))
    counts.join("named", users, on="k").sink("board", hs.Console())
    counts.top("top", 3, by="n")
    rows.window("1 minute").fold("minutes", by="k", n=hs.count())
    return made


def run(spark: SparkSession, way: int) -> None:
    with Driver(storm(), spark, tasks=(way,)) as driver:
        for minute in range(2):
            driver.feed("users", [{"k": "a", "name": "Ada"}])
            driver.feed("rows", [{"k": "a", "n": 1, "at": f"2026-01-01T00:0{minute}:00Z"}, "bad"])
            driver.advance()


if __name__ == "__main__":
    file = Path(sys.argv[1])
    unfinished = file.with_suffix(f".{os.getpid()}")
    file.parent.mkdir(parents=True, exist_ok=True)
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={unfinished} -Xlog:cds*=off"
    session = start_session("classes", master="local[2]", conf={"spark.sql.shuffle.partitions": "2"})
    gateway = SparkContext._gateway
    assert gateway is not None
    for way in (0, 1, 2):
        run(session, way)
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    unfinished.replace(file)  # half of one would end Java
