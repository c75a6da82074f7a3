"""Clocks: positions in all logs at once.

A clock maps spout -> partition -> next offset to read. `join` takes the later of each partition. A partition that a
clock does not name has not been read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Clock:
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def offset(self, spout: str, partition: int) -> int | None:
        return self.offsets.get(spout, {}).get(partition)

    def join(self, other: Clock) -> Clock:
        """The later of each partition."""
        merged: dict[str, dict[int, int]] = {}
        for spout in {**self.offsets, **other.offsets}:
            mine, theirs = self.offsets.get(spout, {}), other.offsets.get(spout, {})
            merged[spout] = {p: max(mine.get(p, 0), theirs.get(p, 0)) for p in sorted({**mine, **theirs})}
        return Clock(merged)

    def covers(self, other: Clock) -> bool:
        """Whether everything before `other` is before this clock, too."""
        return all((self.offset(spout, partition) or 0) >= offset for spout, partition, offset in other)

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        for spout, partitions in self.offsets.items():
            for partition, offset in partitions.items():
                yield spout, partition, offset

    def to_json(self) -> dict[str, dict[str, int]]:
        rows = sorted(self.offsets.items())
        return {spout: {str(p): offset for p, offset in sorted(row.items())} for spout, row in rows}

    @staticmethod
    def from_json(data: Mapping[str, Mapping[str, int]]) -> Clock:
        return Clock({spout: {int(p): int(offset) for p, offset in row.items()} for spout, row in data.items()})


@dataclass(frozen=True)
class Range:
    """Records start <= offset < end of one partition of one spout's log."""

    spout: str
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def common(self, other: Range) -> Range | None:
        """The records that are in both."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        same = (self.spout, self.partition) == (other.spout, other.partition)
        return Range(self.spout, self.partition, start, end) if same and start < end else None


@dataclass(frozen=True)
class Interval:
    """[start, end): what one advance reads. A partition that `start` does not name begins at offset 0."""

    start: Clock
    end: Clock

    def ranges(self) -> tuple[Range, ...]:
        """The non-empty ranges, in order of spout and partition."""
        found = (Range(s, p, self.start.offset(s, p) or 0, end) for s, p, end in self.end)
        return tuple(sorted((r for r in found if r.end > r.start), key=lambda r: (r.spout, r.partition)))

    def __len__(self) -> int:
        return sum(len(r) for r in self.ranges())
