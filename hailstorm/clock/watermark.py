"""Watermarks: the event time up to which input is believed complete.

It is the least, over all partitions, of the highest event time seen there less the spout's lateness. A partition
counts from its first record on, and is left out while it is idle. The watermark never moves back: what comes
below it is late. All times are microseconds since 1970; `now` is the commit's, so that a replay gives the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Patience:
    """How long a spout waits: for rows out of order, and for a silent partition (None: for ever)."""

    lateness: int = 0
    idle: int | None = None


@dataclass(frozen=True)
class Progress:
    """How far one partition is: its highest event time, and when its last record came."""

    highest: int
    seen_at: int


@dataclass(frozen=True)
class Watermark:
    time: int | None = None
    partitions: Mapping[str, Mapping[int, Progress]] = field(default_factory=dict)

    def advance(self, seen: Mapping[str, Mapping[int, int]], now: int, patience: Mapping[str, Patience]) -> Watermark:
        """After a tick at `now` in which the partitions in `seen` had these highest event times."""
        partitions = {spout: dict(row) for spout, row in self.partitions.items()}
        for spout, row in seen.items():
            for partition, highest in row.items():
                before = partitions.setdefault(spout, {}).get(partition)
                best = highest if before is None else max(highest, before.highest)
                partitions[spout][partition] = Progress(best, now)
        heights = [
            progress.highest - patience[spout].lateness
            for spout, row in partitions.items()
            if spout in patience  # a spout that was removed from the topology holds nothing back
            for progress in row.values()
            if not _idle(progress, now, patience[spout])
        ]
        if self.time is not None and heights:
            return Watermark(max(self.time, min(heights)), partitions)
        return Watermark(min(heights) if heights else self.time, partitions)

    def to_json(self) -> dict[str, dict[str, list[int]]]:
        """The partitions; the time itself has its own place in a commit."""
        return {
            spout: {str(partition): [progress.highest, progress.seen_at] for partition, progress in sorted(row.items())}
            for spout, row in sorted(self.partitions.items())
        }

    @staticmethod
    def from_json(time: int | None, data: Mapping[str, Mapping[str, list[int]]]) -> Watermark:
        return Watermark(
            time,
            {spout: {int(p): Progress(*progress) for p, progress in row.items()} for spout, row in data.items()},
        )


def _idle(progress: Progress, now: int, patience: Patience) -> bool:
    return patience.idle is not None and now - progress.seen_at > patience.idle
