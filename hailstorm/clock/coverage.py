"""Coverage: which intervals of the logs a fold's state contains, as disjoint sets.

A state that contains an offset twice is wrong for good, and nothing in it shows that. So every merge of states
(live with backfill, batch with live, a retry of dead letters) first unites their coverages, and `union` refuses
to unite what overlaps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hailstorm.clock.clock import Interval, Range

Spans = tuple[tuple[int, int], ...]  # [start, end), sorted, with a gap between one and the next


class Overlap(Exception):
    """Two coverages hold the same records. The caller knows the step and turns it into an error of its own."""

    def __init__(self, range_: Range) -> None:
        self.range = range_
        where = f"{range_.spout}/{range_.partition}@{range_.start}"
        super().__init__(f"{len(range_)} records from {where} on are in both")


@dataclass(frozen=True)
class Coverage:
    spans: Mapping[str, Mapping[int, Spans]] = field(default_factory=dict)

    @staticmethod
    def of_interval(interval: Interval) -> Coverage:
        return Coverage.of_ranges(interval.ranges())

    @staticmethod
    def of_ranges(ranges: Iterable[Range]) -> Coverage:
        """Raises Overlap when two of the ranges hold the same record."""
        found: dict[str, dict[int, list[tuple[int, int]]]] = {}
        for range_ in ranges:
            if range_.start < range_.end:
                found.setdefault(range_.spout, {}).setdefault(range_.partition, []).append((range_.start, range_.end))
        return Coverage(
            {
                spout: {partition: _joined(spout, partition, row) for partition, row in sorted(rows.items())}
                for spout, rows in sorted(found.items())
            }
        )

    def __iter__(self) -> Iterator[Range]:
        """The ranges, in order of spout, partition and offset."""
        for spout, partitions in self.spans.items():
            for partition, spans in partitions.items():
                for start, end in spans:
                    yield Range(spout, partition, start, end)

    def __len__(self) -> int:
        return sum(len(range_) for range_ in self)

    def union(self, other: Coverage) -> Coverage:
        """Both together. Raises Overlap when a record is in both."""
        return Coverage.of_ranges([*self, *other])

    def to_json(self) -> dict[str, dict[str, list[list[int]]]]:
        return {
            spout: {str(partition): [list(span) for span in spans] for partition, spans in row.items()}
            for spout, row in self.spans.items()
        }

    @staticmethod
    def from_json(data: Mapping[str, Mapping[str, Iterable[Iterable[int]]]]) -> Coverage:
        return Coverage.of_ranges(
            Range(spout, int(partition), *span)
            for spout, row in data.items()
            for partition, spans in row.items()
            for span in spans
        )


def _joined(spout: str, partition: int, spans: list[tuple[int, int]]) -> Spans:
    """Sorted, and what touches made one: the list stays short however many ticks there were."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            raise Overlap(Range(spout, partition, start, min(end, joined[-1][1])))
        if joined and start == joined[-1][1]:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return tuple(joined)


def spans_without(spans: Spans, gaps: Spans) -> Spans:
    """The offsets that are in the spans and not in the gaps."""
    left = list(spans)
    for start, end in gaps:
        left = [part for a, b in left for part in ((a, min(b, start)), (max(a, end), b)) if part[0] < part[1]]
    return tuple(left)
