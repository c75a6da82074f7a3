"""Our hash of a key is Spark's, bit for bit: ticks that group in Arrow and ticks that group in the JVM share state."""

from __future__ import annotations

import random
import time
from datetime import UTC, date, datetime

import pyarrow as pa
from pyspark.sql import SparkSession

from hailstorm.ledger.hashing import can_hash, hash_columns


def test_hashes_are_those_of_spark_for_every_type(spark: SparkSession) -> None:
    chance = random.Random(3)
    count = 300
    lengths = [*range(200), 255, 256, 1_000, 4_095, 4_096, 4_097, 9_999, 100_003]

    def column(make: object, kind: pa.DataType) -> pa.Array:
        return pa.array([None if i % 11 == 5 else make(i) for i in range(count)], kind)  # type: ignore[operator]

    columns = {
        "text": column(
            lambda i: "".join(chance.choice("aé€😀 ") for _ in range(lengths[i % len(lengths)])), pa.string()
        ),
        "bytes": column(lambda i: chance.randbytes(lengths[-1 - i % len(lengths)]), pa.binary()),
        "long": column(lambda i: chance.randint(-(2**63), 2**63 - 1), pa.int64()),
        "int": column(lambda i: chance.randint(-(2**31), 2**31 - 1), pa.int32()),
        "short": column(lambda i: chance.randint(-(2**15), 2**15 - 1), pa.int16()),
        "byte": column(lambda i: chance.randint(-128, 127), pa.int8()),
        "flag": column(lambda i: chance.random() < 0.5, pa.bool_()),
        "day": column(lambda i: date.fromordinal(chance.randint(1_000, 900_000)), pa.date32()),
        "moment": column(
            lambda i: datetime.fromtimestamp(chance.randint(-(10**9), 10**10), UTC), pa.timestamp("us", "UTC")
        ),
    }
    assert all(can_hash(values.type) for values in columns.values())
    rows = spark.createDataFrame(pa.table(columns).append_column("n", pa.array(range(count))))
    keys = [[name] for name in columns] + [["text", "long"], ["flag", "bytes", "moment", "text"], list(columns)]
    asked = [f"xxhash64({', '.join(f'`{name}`' for name in key)}) AS h{i}" for i, key in enumerate(keys)]
    theirs = rows.selectExpr("n", *asked).toArrow().sort_by("n")
    for i, key in enumerate(keys):
        ours = hash_columns([columns[name] for name in key], len(columns[key[0]])).tolist()
        assert ours == theirs.column(f"h{i}").to_pylist(), key
        sliced = hash_columns([columns[name].slice(7, 90) for name in key], 90).tolist()
        assert sliced == ours[7:97], f"a slice of {key}"


def test_keys_of_many_lengths_and_very_long_ones_do_not_take_for_ever() -> None:
    began = time.process_time()
    hash_columns([pa.array(["x" * length for length in range(3_000)])], 3_000)
    hash_columns([pa.array(["x" * 5_000_000])], 1)
    assert time.process_time() - began < 8
