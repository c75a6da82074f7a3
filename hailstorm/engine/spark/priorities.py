"""A tick comes first: threads that only work beside ticks get less of the processor.

The JVM compiles for minutes, and Spark tells listeners of every job and cleans up behind it. A tick is a relay of
threads, and on few cores each of them may have to wait for one of those. Measured: decision 0002.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from pyspark.sql import SparkSession

_NICE = 10
# As the kernel shows them, at most 15 characters. Collecting garbage is not among them: everybody waits for that.
_BESIDE = ("C1 Comp", "C2 Comp", "spark-listener", "element-trackin", "Spark Context C")


def yield_to_ticks() -> None:
    """The calling thread works beside ticks."""
    with contextlib.suppress(OSError):  # a system that has no priorities of threads
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def let_the_jvm_yield(spark: SparkSession) -> None:
    """So do these threads of Spark's. Nothing happens on a system that does not show them."""
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    for task in Path(f"/proc/{jvm.ProcessHandle.current().pid()}/task").glob("*"):
        with contextlib.suppress(OSError):  # it has ended
            if (task / "comm").read_text().startswith(_BESIDE):
                os.setpriority(os.PRIO_PROCESS, int(task.name), _NICE)
