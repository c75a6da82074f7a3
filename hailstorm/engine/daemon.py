"""The process that Spark forks its Python workers from, with what they need already loaded.

Spark's own daemon loads nothing, so that every worker spends most of a second on imports when it starts. This one
imports first and forks then: workers start at once, and share the memory of these modules.
"""

from __future__ import annotations

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
    manager()
