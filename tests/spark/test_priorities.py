"""Threads of the JVM that work beside ticks yield to them."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hailstorm.engine.spark.priorities import let_the_jvm_yield

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other system shows the threads of a process")


def test_compilers_and_listeners_yield_and_tasks_do_not(spark: SparkSession) -> None:
    let_the_jvm_yield(spark)
    assert spark.sparkContext._jvm is not None
    pid = spark.sparkContext._jvm.ProcessHandle.current().pid()
    priorities: dict[str, set[int]] = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended while we looked
            name = (task / "comm").read_text().strip()
            priorities.setdefault(name[:7], set()).add(os.getpriority(os.PRIO_PROCESS, int(task.name)))
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    assert priorities["C1 Comp"] == priorities["spark-l"] == {10}
    assert priorities["dag-sch"] == priorities["GC Thre"] == {usual}
