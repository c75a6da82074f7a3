"""How a sink is doing, as values: what couriers say, and the deliverer, the progress of a run and `status` show."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class SinkState:
    """How a sink is doing. `behind` counts commits since the cursor, with or without rows for this sink."""

    cursor: int
    behind: int
    failing: str | None = None  # the error that delivery waits for to pass
    retry_in: float | None = None  # seconds until it tries again
    stopped: str | None = None  # the error that stopped this sink for good
    lost: int = 0  # commits given up since the start; only in at-most-once
    rejected: int = 0  # rows that became dead letters since the start
    seconds: float = field(default=0.0, compare=False)  # how long the last delivery took
    note: str | None = None  # where it began, when that is not where it ended before

    @property
    def error(self) -> str | None:
        """What keeps the sink, for now or for good."""
        return self.stopped or self.failing


@dataclass(frozen=True)
class Delivered:
    """One delivery that has ended, and the commits in it. Times are those of time.monotonic."""

    commits: tuple[int, ...]
    began: float
    ended: float
