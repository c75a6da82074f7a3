"""What a run tells those who watch it: values that the negotiator gives out and the command line shows.

The negotiator calls `on_progress` from its own thread, once for every change of phase and once per tick. A watcher
may be slow, must not raise, and cannot change the run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from hailstorm.engine.delivery.deliverer import Undelivered
    from hailstorm.engine.delivery.sink_state import SinkState

Phase = Literal["standing by", "starting", "running", "paused", "delivering", "stopped"]

# Where the time of a tick goes, in the order in which it is spent. Keys of `Progress.timings`, in milliseconds.
TIMINGS = ("choose", "plan", "read", "compute", "look up", "merge", "write", "commit", "deliver")

# The way of a record from its arrival to its delivery, part by part (ticks/journeys.py). Keys of `Progress.journeys`.
JOURNEY = ("waiting", "reading", "tick", "hand-over", "sink")


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
    late: int = 0  # of all commits so far
    skipped: int = 0  # of this run, on overload
    sinks: Mapping[str, SinkState] = field(default_factory=dict)
    way: str = ""  # in which the last tick was run: resident, prepared or planned
    notes: tuple[str, ...] = ()  # what is different from the run before, a sentence per step
    timings: Mapping[str, float] = field(default_factory=dict)
    journeys: tuple[Mapping[str, float], ...] = ()  # that have ended since the last word, in milliseconds by part


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
    undelivered: tuple[Undelivered, ...] = ()  # sinks that have not got everything


@dataclass(frozen=True)
class Retried:
    """What a retry of dead letters has done."""

    letters: int = 0  # that there were
    failed: int = 0  # of those, again: they stay
    outdated: int = 0  # rejected rows whose key has changed since: they were dropped
    late: int = 0  # rows of theirs that came too late for their window or join
    left: tuple[str, ...] = ()  # who was not tried, and why: one sentence per step

    def __add__(self, other: Retried) -> Retried:
        return Retried(
            self.letters + other.letters,
            self.failed + other.failed,
            self.outdated + other.outdated,
            self.late + other.late,
            (*self.left, *other.left),
        )


OnProgress = Callable[[Progress], None]


def ignore_progress(progress: Progress) -> None:
    """For callers that do not watch."""
