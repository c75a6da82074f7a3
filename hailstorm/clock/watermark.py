"""Watermarks: the event time up to which input is believed complete.

Of a spout it is the least, over its partitions, of the highest event time seen there, less the lateness. A partition
counts from its first record on, and is left out while it is idle. When all are, time goes on from the highest one seen
as fast as the wall clock. A spout that never had a record has no watermark. It never moves back: what comes below it is
late.

Of a step, the input watermark is the least of the output watermarks above it, and there is none as long as one of those
has none. Its output watermark is the same, unless it holds rows back.

All times are microseconds since 1970; `now` is the commit's, so that a replay gives the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

Time = int | None
BEGINNING = -(1 << 63)  # before every time
FIRST_MOMENT, LAST_MOMENT = -62_135_596_800_000_000, 253_402_300_799_999_999  # of the years 1 to 9999
END = LAST_MOMENT  # the watermark once all input is said to be there
OfSteps = dict[str, tuple[Time, Time]]  # step -> input and output watermark


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
    """Of all spouts. `time` is for people: the least of them all, which never moves back either."""

    time: Time = None
    spouts: Mapping[str, int] = field(default_factory=dict)
    partitions: Mapping[str, Mapping[int, Progress]] = field(default_factory=dict)

    def advance(self, seen: Mapping[str, Mapping[int, int]], now: int, patience: Mapping[str, Patience]) -> Watermark:
        """After a tick at `now` in which the partitions in `seen` had these highest event times."""
        partitions = {spout: dict(row) for spout, row in self.partitions.items()}
        for spout, row in seen.items():
            for partition, highest in row.items():
                before = partitions.setdefault(spout, {}).get(partition)
                best = highest if before is None else max(highest, before.highest)
                partitions[spout][partition] = Progress(best, now)
        spouts = {}
        for spout, how in patience.items():  # a spout that was removed from the topology holds nothing back
            times = [_of_spout(list(partitions[spout].values()), now, how)] if partitions.get(spout) else []
            known = [*times, *([self.spouts[spout]] if spout in self.spouts else [])]
            if known:
                spouts[spout] = max(known)
        least = min(spouts.values(), default=self.time)
        time = least if self.time is None or least is None else max(self.time, least)
        return Watermark(time, spouts, partitions)

    def ended(self, spouts: Iterable[str]) -> Watermark:
        """At the end of input: whatever comes after it is late."""
        return Watermark(END, dict.fromkeys(spouts, END), self.partitions)

    def to_json(self) -> dict[str, dict[str, list[int]]]:
        """The partitions; the times have their own places in a commit."""
        return {
            spout: {str(partition): [progress.highest, progress.seen_at] for partition, progress in sorted(row.items())}
            for spout, row in sorted(self.partitions.items())
        }

    @staticmethod
    def from_json(time: Time, spouts: Mapping[str, int], data: Mapping[str, Mapping[str, Iterable[int]]]) -> Watermark:
        return Watermark(
            time,
            dict(spouts),
            {spout: {int(p): Progress(*progress) for p, progress in row.items()} for spout, row in data.items()},
        )


def _of_spout(partitions: list[Progress], now: int, patience: Patience) -> int:
    idle = patience.idle
    awake = [one.highest for one in partitions if idle is None or now - one.seen_at <= idle]
    if awake:
        return min(awake) - patience.lateness
    assert idle is not None
    silent_since = max(one.seen_at for one in partitions) + idle
    return max(one.highest for one in partitions) + (now - silent_since) - patience.lateness


def due_until(clock: str, watermark: Time, now: int, commit: int) -> Time:
    """Up to when the entries of an agenda with this clock are due (ledger/keyed_state.py); None: nothing is.

    `commit` is the one before the tick that asks.
    """
    if clock == "system":
        return now
    if clock == "tick":
        return commit
    return None if clock in ("expiry", "kept") and watermark == END else watermark


def of_steps(
    steps: Iterable[tuple[str, tuple[str, ...]]],
    spouts: Mapping[str, int],
    released: Callable[[str, Time], Time] = lambda step, time: time,
) -> OfSteps:
    """The watermarks of steps, each given after those that it reads. `released` says what a step that holds rows back
    makes of its input watermark."""
    found: OfSteps = {}
    for name, inputs in steps:
        above = [found[one][1] for one in inputs]
        known = [time for time in above if time is not None]
        least = min(known) if inputs and len(known) == len(above) else spouts.get(name)
        found[name] = (least, released(name, least))
    return found
