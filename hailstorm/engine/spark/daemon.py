"""The process that Spark forks its Python workers from, with what they need already loaded.

Spark's own daemon loads nothing, so that every worker spends most of a second on imports when it starts. This one
imports first and forks then: workers start at once, and share the memory of these modules.

A worker looks for cycles of garbage after every task, among all objects that there are: tens of milliseconds, in which
the next tick waits for it. What is loaded here stays for ever, so it is frozen: nobody looks at it again.

Spark lets go of workers that were idle for a minute, and pyspark prints a traceback for each. Nothing is wrong then, so
nothing is said.
"""

from __future__ import annotations

import gc
import sys
import traceback
from types import SimpleNamespace
from typing import Any

import pyarrow.compute
import pyarrow.parquet
import pyspark.daemon

import hailstorm.algebra
import hailstorm.engine.stages.compute
import hailstorm.engine.stages.deposit
import hailstorm.engine.stages.fold
import hailstorm.engine.stages.group
import hailstorm.engine.stages.members
import hailstorm.engine.stages.top
import hailstorm.spouts

LOADED = (pyarrow.compute, pyarrow.parquet, hailstorm.algebra, hailstorm.engine.stages, hailstorm.spouts)


def print_unless_spark_has_hung_up(*words: Any, **options: Any) -> None:
    if not isinstance(sys.exception(), ConnectionError):
        print(*words, **options)


def print_traceback_unless_spark_has_hung_up() -> None:
    if not isinstance(sys.exception(), ConnectionError):
        traceback.print_exc()


# The daemon speaks with `print` and with `traceback`, and finds ours before Python's own.
setattr(pyspark.daemon, "print", print_unless_spark_has_hung_up)  # noqa: B010 it has no such attribute yet
said = SimpleNamespace(print_exc=print_traceback_unless_spark_has_hung_up, format_exc=traceback.format_exc)
setattr(pyspark.daemon, "traceback", said)  # noqa: B010 not a module, which is what it should be

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    pyspark.daemon.manager()
