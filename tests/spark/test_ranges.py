"""With several tasks each owns a range of hashes: what it writes is of that range, and it opens nothing else."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import hailstorm as hs
from hailstorm.engine.plan import fold, ranges
from hailstorm.engine.plan.ranges import numbers, owned
from hailstorm.engine.stages.exchange import borders
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
    for border, before, after in zip(borders(tasks), bounds[:-1], bounds[1:], strict=True):
        assert before[2] < border <= after[1], "what is cut at the borders has one owner"


@pytest.mark.parametrize("tasks", [2, 5])
def test_on_a_cluster_rows_are_read_part_by_part_beside_what_holds_each_part_in_its_place(
    spark: SparkSession, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark did not see that both are partitioned alike, once the column by which they are was dropped: twice as many
    tasks, and none of them where its range was."""
    monkeypatch.setattr(ranges, "is_on_this_machine", lambda spark: False)
    rows = spark.range(1_000).withColumn("_hash", F.xxhash64("id"))
    frame = owned(rows, tasks).mapInArrow(lambda batches: batches, "id BIGINT, _hash BIGINT, _part INT")
    assert frame._jdf.rdd().getNumPartitions() == tasks
    assert frame.count() == 1_000


def test_numbers_are_those_that_spark_partitions_so(spark: SparkSession) -> None:
    for tasks in (1, 2, 5, 200):
        frame = spark.createDataFrame([(n,) for n in numbers(tasks)], "n INT")
        assert [row[0] for row in frame.selectExpr(f"pmod(hash(n), {tasks})").collect()] == list(range(tasks))


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


def test_on_a_cluster_parts_of_keys_are_packed_for_the_shuffle(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (fold, ranges):
        monkeypatch.setattr(module, "is_on_this_machine", lambda spark: False)
    storm = hs.Topology("packed")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, v BIGINT")
    rows.fold("sums", by="k", n=hs.count(), total=hs.sum("v"), latest=hs.latest("v"))
    rows.fold("all", n=hs.count())
    with Driver(storm, spark, tasks=(3,)) as driver:
        assert "PackParts" in driver._negotiator.plan(3).text()
        total: dict[str, int] = {}
        for tick in range(3):
            batch = [{"k": f"k{n % 700}", "v": n + tick} for n in range(2_000)]
            for row in batch:
                total[str(row["k"])] = total.get(str(row["k"]), 0) + int(str(row["v"]))
            driver.feed("rows", batch)
            driver.advance()
        assert {row["k"]: row["total"] for row in driver.table("sums")} == total
        assert [row["n"] for row in driver.table("all")] == [6_000]
        for seq in {run.seq for run in driver.ledger.head.runs["sums"]}:
            ends = sorted((run.first, run.last) for run in driver.ledger.head.runs["sums"] if run.seq == seq)
            assert all(before < after for (_, before), (after, _) in pairwise(ends))


def test_the_number_of_tasks_changes_between_ticks_as_executors_do_and_no_row_is_wrong(spark: SparkSession) -> None:
    storm = hs.Topology("rescaled")
    rows = storm.spout("rows", hs.Log("x"), schema="k BIGINT, v BIGINT")
    rows.table("newest", key="k")
    counts = rows.fold("counts", by="k", n=hs.count(), total=hs.sum("v"))
    counts.fold("how_often", by="n", keys=hs.count())
    with Driver(storm, spark, tasks=(2,)) as driver:
        newest: dict[int, int] = {}
        count, total = Counter[int](), Counter[int]()
        for tick, tasks in enumerate((2, 5, 3, 5)):
            driver._negotiator._pace.replan(tasks)
            keys = range(tick % 2, 1_000, 2)
            driver.feed("rows", [{"k": k, "v": tick} for k in keys])
            driver.advance()
            newest |= dict.fromkeys(keys, tick)
            count.update(keys)
            total.update(dict.fromkeys(keys, tick))
            for step in ("newest", "counts"):
                live = driver.ledger.head.runs[step]
                last = sorted((run.first, run.last) for run in live if run.seq == max(run.seq for run in live))
                assert len(last) == tasks
                assert all(before < after for (_, before), (after, _) in pairwise(last))
        assert {row["k"]: row["v"] for row in driver.table("newest")} == newest
        assert {row["k"]: (row["n"], row["total"]) for row in driver.table("counts")} == {
            k: (count[k], total[k]) for k in count
        }
        assert {row["n"]: row["keys"] for row in driver.table("how_often")} == Counter(count.values())
