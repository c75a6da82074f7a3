"""How many bytes a tick reads: an interval of records is cut until it holds no more than a tick may.

A log says roughly how many bytes a range has, where it can. Of one that cannot (Kafka) the engine knows what its
records weighed in the ticks before. Until it has read some it takes them for large ones: the first tick is a small one.
"""

from __future__ import annotations

from collections.abc import Mapping

from hailstorm.clock.clock import Clock, Interval, Range
from hailstorm.engine.stages.order import Seen
from hailstorm.spouts.source import LivingSource

_UNKNOWN = 1_000_000  # bytes of a record of which nothing is known: as large as Kafka takes them unless told otherwise
_CUTS = 20  # records are not of one size, so a cut may have to be made again


class Weights:
    """What the records of each spout weigh."""

    def __init__(self) -> None:
        self._known: dict[str, float] = {}

    def learn(self, seen: Mapping[str, Mapping[int, Seen]]) -> None:
        """What a tick has read. Heavier records count at once, lighter ones by and by."""
        for spout, partitions in seen.items():
            records = sum(partition.rows for partition in partitions.values())
            if records:
                weight = sum(partition.bytes for partition in partitions.values()) / records
                self._known[spout] = max(weight, (self._known.get(spout, weight) + weight) / 2)

    def bounded(self, interval: Interval, sources: Mapping[str, LivingSource], most: int) -> Interval:
        """The beginning of the interval that has at most so many bytes, and at least one record of each partition."""
        for _ in range(_CUTS):
            ranges = interval.ranges()
            total = sum(self._bytes(range_, sources[range_.spout]) for range_ in ranges)
            if total <= most or all(len(range_) <= 1 for range_ in ranges):
                break
            ends: dict[str, dict[int, int]] = {spout: dict(row) for spout, row in interval.end.offsets.items()}
            for range_ in ranges:
                ends[range_.spout][range_.partition] = range_.start + max(1, int(len(range_) * most / total))
            interval = Interval(interval.start, Clock(ends))
        return interval

    def _bytes(self, range_: Range, source: LivingSource) -> float:
        said = source.size(range_.partition, range_.start, range_.end)
        return said if said is not None else len(range_) * self._known.get(range_.spout, _UNKNOWN)
