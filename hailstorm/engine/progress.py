"""What a run tells those who watch it: values that the negotiator gives out and the command line shows.

The negotiator calls `on_progress` from its own thread, once for every change of phase and once per tick. A watcher
may be slow or raise nothing: it may not change the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hailstorm.engine.delivery import SinkState

Phase = Literal["starting", "running", "paused", "delivering", "stopped"]

# Where the time of a tick goes, in the order in which it is spent. Keys of `Progress.timings`, in milliseconds.
TIMINGS = ("choose", "plan", "read", "compute", "look up", "merge", "write", "commit", "deliver")


@dataclass(frozen=True)
class Progress:
    phase: Phase
    message: str = ""
    commit: int = 0
    rows: int = 0  # of this tick
    total_rows: int = 0  # of this run
    tick_ms: float = 0.0
    rows_per_second: float = 0.0
    lag: int = 0  # records that wait in the logs
    watermark: datetime | None = None
    errors: int = 0  # of this run
    late: int = 0  # of this run
    skipped: int = 0  # of this run, on overload
    sinks: Mapping[str, SinkState] = field(default_factory=dict)
    timings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Summary:
    """What a run has done, when it has stopped."""

    ledger: str
    commit: int  # the ledger's last one
    ticks: int
    rows: int
    errors: int
    late: int
    skipped: int
    rejected: int  # rows that sinks did not take
    seconds: float


@dataclass(frozen=True)
class Retried:
    """What a retry of dead letters has done."""

    letters: int = 0  # that got their second chance
    failed: int = 0  # of those, again: they stay
    outdated: int = 0  # rejected rows whose key has changed since: they were dropped


OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """For callers that do not watch."""
