"""What a peer is: something that does one work, tick after tick, and says how long each took.

A peer lives in a process of its own (`host.py`), so that each has the Spark settings that are best for it, and so
that memory is its own. Between bursts it must not use the processor: others are being measured.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

CORES = 2


@dataclass(frozen=True)
class Tick:
    """One tick or micro-batch or job. `parts` says where its time went, when the peer knows."""

    ms: float
    rows: int
    parts: Mapping[str, float] = field(default_factory=dict)


class Peer(Protocol):
    def prepare(self) -> Mapping[str, float]:
        """Start, and fill the state with all keys. Returns what is worth knowing about it, as figures."""

    def burst(self, ticks: int) -> list[Tick]:
        """So many ticks, one after another, the first after a pause left out by the peer itself."""

    def figures(self) -> Mapping[str, float]:
        """Memory and sizes, now."""

    def close(self) -> None: ...


def scratch_folder(name: str) -> Path:
    """A fresh folder for a peer's files; `BENCH_SCRATCH` says where, else the system's folder for such files."""
    return Path(tempfile.mkdtemp(prefix=f"bench-{name}-", dir=os.environ.get("BENCH_SCRATCH")))


def spark_settings() -> dict[str, str]:
    """What every Spark session here has, so that only what is said differs."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "4g",
        "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.session.timeZone": "UTC",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # A peer is halted between its bursts; that is no reason to declare its executor dead.
        "spark.network.timeout": "100000s",
        "spark.executor.heartbeatInterval": "1000s",
    }
