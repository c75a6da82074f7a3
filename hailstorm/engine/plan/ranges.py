"""Who owns which hashes: of several tasks, each has one range of them.

So a run that a task writes has hashes of its range alone, and a task opens runs of its range and no others
(ledger/keyed_state.py): a machine has copies of its share of the state.

On a cluster a range has to stay where its runs are. Spark sends a task to the executor that has a part of a persisted
DataFrame in memory, if the task reads that part. So there is one with a part for each range and next to nothing in it,
the anchor, and every flow that is owned reads its parts beside its own rows. When executors come or go, the anchor is
cast again, and Spark spreads its parts over those that are there.
"""

from __future__ import annotations

from functools import cache

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from hailstorm.columns import HASH, OWNER, quoted
from hailstorm.engine.spark.session import is_on_this_machine
from hailstorm.engine.stages.exchange import FINE

PACKED = pa.schema([("rows", pa.binary()), (OWNER, pa.int32())])
_SEED = 42  # of Spark's own hash, by which it partitions


def owned(frame: DataFrame, tasks: int, by: tuple[str, ...] = ()) -> DataFrame:
    """The rows at the tasks that own the hash of these columns; of none, and of rows without a key, their `_hash`."""
    hashed = (
        F.when(F.col(quoted(by[0])).isNull(), F.col(HASH)).otherwise(F.xxhash64(*map(quoted, by)))
        if by
        else F.col(HASH)
    )
    return at_owners(frame.withColumn(OWNER, _part(hashed, tasks)), tasks)


def at_owners(parted: DataFrame, tasks: int) -> DataFrame:
    """Rows whose last column is the number of their owner, at that task."""
    sent = parted.repartition(tasks, OWNER)
    if is_on_this_machine(parted.sparkSession):
        return sent.drop(OWNER)
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in parted.schema.fields[:-1]]
    # Spark reads two frames that are partitioned alike part by part, and not one after the other. It has to see by what
    # they are: so the column stays, until the rows are in Python (flow.py).
    return sent.unionAll(_anchor(parted.sparkSession, tasks).where(f"{OWNER} < 0").select(*nothing, OWNER))


def settle(spark: SparkSession, tasks: int) -> None:
    """Before a tick of so many tasks: let ranges stay where they were, or spread them if executors came or went."""
    if tasks == 1 or is_on_this_machine(spark):
        return
    there, anchor = _executors(spark), _anchor(spark, tasks)
    for old in [one for one, among in _settled.items() if among != there]:  # also those of other numbers of tasks
        old.unpersist(blocking=True)
        del _settled[old]
    if anchor not in _settled:
        anchor.persist().count()
        _settled[anchor] = there


def _part(hashed: Column, tasks: int) -> Column:
    """The number by which Spark gives a row to the task that owns its hash."""
    high = F.shiftright(hashed, 64 - FINE) + (1 << (FINE - 1))
    return _number(F.floor(high * tasks / (1 << FINE)), tasks)


def _number(task: Column, tasks: int) -> Column:
    return F.array(*map(F.lit, numbers(tasks)))[task.cast("int")]


@cache
def _anchor(spark: SparkSession, tasks: int) -> DataFrame:
    return spark.range(tasks).select(_number(F.col("id"), tasks).alias(OWNER)).repartition(tasks, OWNER).persist()


def _executors(spark: SparkSession) -> frozenset[str]:
    """Those that run tasks, and those that have died since are others."""
    found = spark.sparkContext._jsc.sc().statusStore().executorList(True)
    return frozenset(str(found.apply(index).id()) for index in range(found.size()))


_settled: dict[DataFrame, frozenset[str]] = {}  # the executors that each anchor was cast among


@cache
def numbers(tasks: int) -> tuple[int, ...]:
    """For each task a number that Spark partitions to it: it takes no other word for where a row goes."""
    found: dict[int, int] = {}
    number = 0
    while len(found) < tasks:
        found.setdefault(_hash(number) % tasks, number)
        number += 1
    return tuple(found[task] for task in range(tasks))


def _hash(number: int) -> int:
    """Spark's hash of an INT, which is Murmur3 with 32 bits."""
    word = 0xFFFFFFFF
    mixed = number * 0xCC9E2D51 & word
    mixed = (mixed << 15 | mixed >> 17) * 0x1B873593 & word
    hashed = _SEED ^ mixed
    hashed = ((hashed << 13 | hashed >> 19) & word) * 5 + 0xE6546B64 & word
    hashed ^= 4
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & word
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & word
    hashed ^= hashed >> 16
    return hashed - (1 << 32) if hashed >> 31 else hashed
