"""An app for `hailstorm run`: a running count of rows that come at a steady rate, all keys by turns.

`BENCH_RATE` is in rows per second, `BENCH_KEYS` how many keys there are, `BENCH_START` the moment of the first row: so
that a run that goes on finds the same rows. `bench/cluster.py` starts it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import hailstorm as hs

KEYS = int(os.environ["BENCH_KEYS"])
SCRAMBLE = 2_654_435_761


def rows(offsets: Any, partition: int) -> Mapping[str, Any]:
    return {"k": offsets * SCRAMBLE % KEYS}


storm = hs.Topology("steady")
rate = hs.Rate(float(os.environ["BENCH_RATE"]), rows=rows, columns="k BIGINT", start=os.environ["BENCH_START"])
storm.spout("rows", rate).fold("counts", by="k", n=hs.count())
