"""The ticks of a case, in plain Python: which record came in which, and what the watermark was before it.

Oracles of steps whose result depends on how input was cut into ticks ask here. It is a model of its own, made of what
happens to the case and of the rules of the design: a spout's watermark is the least, over its partitions, of the
highest event time so far less the lateness; a tick goes by the watermark of the commit before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby

from tests.generated.batch import Row

LATENESS = timedelta(minutes=10)
BEGINNING = datetime.min.replace(tzinfo=UTC)

Record = tuple[str, int, int]  # spout, partition, offset


def place(row: Row) -> tuple[datetime, str, int, int]:
    """By which rows of one tick are in order."""
    return row["_time"], row["_spout"], row["_partition"], row["_offset"]


@dataclass
class Ticks:
    number: int = 0  # of the tick that comes next
    of_records: dict[Record, int] = field(default_factory=dict)
    highest: dict[str, dict[int, datetime]] = field(default_factory=lambda: defaultdict(dict))
    before: list[dict[str, datetime]] = field(default_factory=list)  # the watermarks of spouts, by tick
    now: dict[str, datetime] = field(default_factory=dict)

    def tick(self, rows: Iterable[Row], lateness: dict[str, timedelta]) -> None:
        """These rows were read in one tick."""
        self.before.append(dict(self.now))
        for row in rows:
            spout, partition, time = row["_spout"], row["_partition"], row["_time"]
            self.of_records[spout, partition, row["_offset"]] = self.number
            known = self.highest[spout]
            known[partition] = max(time, known.get(partition, time))
        for spout, partitions in self.highest.items():
            reached = min(partitions.values()) - lateness[spout]
            self.now[spout] = max(reached, self.now.get(spout, reached))
        self.number += 1

    def of(self, row: Row) -> int:
        return self.of_records[row["_spout"], row["_partition"], row["_offset"]]

    def watermark(self, spouts: Iterable[str], tick: int | None = None) -> datetime:
        """Of a step below these spouts, before a tick, or now. The beginning of time, while one of them has none."""
        known = self.now if tick is None else self.before[tick]
        return min((known.get(spout, BEGINNING) for spout in spouts), default=BEGINNING)

    def after(self, spouts: Iterable[str], tick: int) -> datetime:
        """The watermark of a step below these spouts, once a tick is committed."""
        return self.watermark(spouts, tick + 1 if tick + 1 < self.number else None)

    def until(self, tick: int) -> Ticks:
        """As they were at the end of a tick, before the watermark that it made has let anything happen."""
        return replace(self, now=self.before[tick], number=tick + 1)

    def cut(self, rows: Iterable[Row]) -> list[tuple[int, list[Row]]]:
        """The rows by tick, each tick's in the order of time."""
        ordered = sorted(rows, key=lambda row: (self.of(row), place(row)))
        return [(tick, list(group)) for tick, group in groupby(ordered, key=self.of)]
