"""With several tasks each owns a range of hashes: what it writes is of that range, and it opens nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import hailstorm as hs
from hailstorm.engine.plan.ranges import _numbers, owned
from hailstorm.testing import Driver


@pytest.mark.parametrize("tasks", [2, 3, 7, 64])
def test_rows_go_to_the_task_that_owns_their_hash_and_the_ranges_follow_each_other(
    spark: SparkSession, tasks: int
) -> None:
    rows = spark.range(20_000).withColumn("_hash", F.xxhash64("id")).withColumn("a.b", F.lit("x"))
    found = owned(rows, tasks).withColumn("task", F.spark_partition_id())
    bounds = found.groupBy("task").agg(F.min("_hash"), F.max("_hash"), F.count("*")).orderBy("task").collect()
    assert [row[0] for row in bounds] == list(range(tasks))
    assert all(before[2] < after[1] for before, after in pairwise(bounds))
    assert all(row[3] > 20_000 / tasks / 2 for row in bounds)
    assert found.columns == [*rows.columns, "task"]


def test_numbers_are_those_that_spark_partitions_so(spark: SparkSession) -> None:
    for tasks in (1, 2, 5, 200):
        numbers = spark.createDataFrame([(n,) for n in _numbers(tasks)], "n INT")
        assert [row[0] for row in numbers.selectExpr(f"pmod(hash(n), {tasks})").collect()] == list(range(tasks))


def test_the_runs_of_a_step_by_key_do_not_overlap_within_a_tick(spark: SparkSession) -> None:
    storm = hs.Topology("ranged")
    rows = storm.spout("rows", hs.Log("x"), schema="k BIGINT, v BIGINT")
    rows.table("newest", key="k")
    with Driver(storm, spark, tasks=(2,)) as driver:
        wanted: dict[int, int] = {}
        for tick in range(3):
            wanted |= dict.fromkeys(range(tick, 2_000, 2), tick)
            driver.feed("rows", [{"k": k, "v": tick} for k in range(tick, 2_000, 2)])
            driver.advance()
        for seq in {run.seq for run in driver.ledger.head.runs["newest"]}:
            runs = sorted((run.first, run.last) for run in driver.ledger.head.runs["newest"] if run.seq == seq)
            assert len(runs) == 2
            assert runs[0][1] < 0 <= runs[1][0]
        assert {row["k"]: row["v"] for row in driver.table("newest")} == wanted
