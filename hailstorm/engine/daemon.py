"""The process that Spark forks its Python workers from, with what they need already loaded.

Spark's own daemon loads nothing, so that every worker spends most of a second on imports when it starts. This one
imports first and forks then: workers start at once, and share the memory of these modules.

A worker looks for cycles of garbage after every task, among all objects that there are: tens of milliseconds, in which
the next tick waits for it. What is loaded here stays for ever, so it is frozen: nobody looks at it again.
"""

from __future__ import annotations

import gc

import pyarrow.compute
import pyarrow.parquet
from pyspark.daemon import manager

import hailstorm.algebra
import hailstorm.engine.stages.deposit
import hailstorm.engine.stages.fold
import hailstorm.engine.stages.members
import hailstorm.engine.stages.top
import hailstorm.spouts

LOADED = (pyarrow.compute, pyarrow.parquet, hailstorm.algebra, hailstorm.engine.stages, hailstorm.spouts)

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
