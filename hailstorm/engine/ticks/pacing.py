"""Pacing: how many records a tick takes, and in which of the three ways it runs.

The size follows the latency target: a full tick that was quicker lets the next one be larger, a slower one makes it
smaller. Once a full tick asks for no larger one, the size is settled: then it is what can be read within the target,
and what waits can be compared with it.

The way is chosen by measurement: for each way a line `seconds = fixed + per_row * rows` is fitted to its recent
ticks, and the lower prediction wins. A way that was never tried is tried when the other one is slow enough
that a try can pay. No size is built in: the machine and the topology decide.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# A way to run is the number of tasks that Spark schedules for it.
RESIDENT, PREPARED = 0, 1  # more: planned


def way_name(way: int) -> str:
    """As people call it."""
    return {RESIDENT: "resident", PREPARED: "prepared"}.get(way, "planned")


def ways_called(names: str, cores: int) -> tuple[int, ...]:
    """The ways that the setting `ways` names."""
    counts = {"resident": RESIDENT, "prepared": PREPARED, "planned": cores}
    return tuple(dict.fromkeys(counts[name] for name in names.split(", ")))


_FORGET = 0.95
_FIRST_ROWS = 10_000
_FEWEST_ROWS = 1_000
_GROW, _SHRINK = 64.0, 0.5  # at most, from one tick to the next; part of its time is fixed, so growing cannot miss
_FIRST_GAP, _LONGEST_GAP = 40, 640  # ticks between two looks at a way that is not chosen
_IDLE_SECONDS, _LONGEST_IDLE_SECONDS = 0.02, 0.2
_EAGER_SECONDS = 0.001
_PATIENT_AFTER = 50  # looks at logs that have nothing new, before the waits grow
_FAR = 4  # times smaller than any tick of a way: then its line says nothing
_WORTH_A_TRY = 0.5  # seconds: below this, planning alone would eat the gain


@dataclass
class Line:
    """A weighted least-squares line through (rows, seconds). The first tick of a way warms up and is not counted."""

    seen: int = 0
    fewest: float = float("inf")  # rows of a tick
    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def observe(self, rows: int, seconds: float) -> None:
        self.seen += 1
        self.fewest = min(self.fewest, rows)
        if self.seen == 1:
            return
        new = (1.0, float(rows), seconds, float(rows) * rows, rows * seconds)
        old = (self.weight, self.x, self.y, self.xx, self.xy)
        self.weight, self.x, self.y, self.xx, self.xy = (o * _FORGET + n for o, n in zip(old, new, strict=True))

    def forget(self) -> None:
        """A newer look contradicts what was known."""
        self.weight = self.x = self.y = self.xx = self.xy = 0.0

    def parts(self) -> tuple[float, float]:
        """The fixed seconds and those per row. The latter are 0 while all ticks were of about one size."""
        if not self.weight:
            return 0.0, 0.0
        spread = self.weight * self.xx - self.x * self.x
        slope = 0.0
        if spread > 1e-6 * self.xx * self.weight:
            slope = max((self.weight * self.xy - self.x * self.y) / spread, 0.0)
        return max((self.y - slope * self.x) / self.weight, 0.0), slope

    def predict(self, rows: int) -> float:
        """Seconds for so many rows; nothing is known before the second tick."""
        fixed, per_row = self.parts()
        return fixed + per_row * rows


@dataclass
class Pace:
    """`ways` are those that may be chosen: RESIDENT, PREPARED, or a number of tasks, which is planned."""

    latency: float  # seconds
    most_rows: int
    ways: tuple[int, ...]
    lines: dict[int, Line] = field(init=False)
    _gap: int = field(init=False, default=_FIRST_GAP)
    _until_look: int = field(init=False, default=_FIRST_GAP)
    _looking: int | None = field(init=False, default=None)
    rows: int = field(init=False)  # how many records the next tick may take
    settled: bool = field(init=False, default=False)  # whether that is measured, and not still growing

    def __post_init__(self) -> None:
        # What cannot be run as resident at the moment is run as prepared, asked or not.
        self.lines = {way: Line() for way in (*self.ways, PREPARED)}
        self.rows = min(_FIRST_ROWS, self.most_rows)

    def observe(self, way: int, rows: int, seconds: float, cut: bool = False) -> None:
        """A tick of so many records took so long in this way. `cut`: by their bytes, so it was as full as can be."""
        line = self.lines[way]
        if way == self._looking:
            rivals = (other for known, other in self.lines.items() if known != way and other.weight)
            if seconds < min((rival.predict(rows) for rival in rivals), default=0.0):
                line.forget()
                self._gap = _FIRST_GAP
            self._looking = None
        line.observe(rows, seconds)
        warms_up = line.seen == 1
        fixed, per_row = line.parts()
        # Smaller ticks do not help where the fixed part alone misses the target: then half of a tick may be that.
        target = max(self.latency, 2 * fixed) if per_row else self.latency
        change = min(max(target / seconds, 1.0 if warms_up else _SHRINK), _GROW)
        before, full = self.rows, cut or rows >= 0.9 * self.rows
        if change < 1 or (full and change > 1.25):
            self.rows = int(min(max(min(rows, self.rows) * change, _FEWEST_ROWS), self.most_rows))
        if full and not warms_up:
            self.settled = self.rows <= before

    def replan(self, tasks: int) -> None:
        """The planned way has so many tasks from now on: other cores, of which nothing was measured yet."""
        self.ways = tuple(tasks if way > PREPARED else way for way in self.ways)
        self.lines = {way: self.lines.get(way, Line()) for way in (*self.ways, PREPARED)}
        if self._looking not in self.lines:
            self._looking = None

    def way(self, rows: int, resident: bool = True) -> int:
        """In which way to run a tick of so many records. `resident`: whether there is a worker for that just now."""
        ways = [way for way in self.ways if way != RESIDENT or resident] or [PREPARED]
        best = ways[0]
        for way in ways[1:]:
            if self.lines[way].seen < 2:  # not known yet
                if self.lines[best].predict(rows) > _WORTH_A_TRY:
                    return way
            elif self.lines[way].predict(rows) < self.lines[best].predict(rows):
                best = way
        if RESIDENT in ways and best != RESIDENT and rows < self.lines[RESIDENT].fewest / _FAR:
            # After a backlog: of ticks as small as this nothing is known, and for these it is made.
            self._looking = RESIDENT
            return RESIDENT
        # Of small ticks a look at resident costs hardly anything, and one at planned ten of them.
        is_small = self.lines[best].predict(rows) <= _WORTH_A_TRY / 2
        others = [way for way in ways if way != best and (way == RESIDENT or not is_small)]
        self._until_look -= 1
        if others and self._until_look <= 0:
            # What was measured on a busy machine, or at other sizes, may be wrong by now. A look costs one tick.
            self._gap = self._until_look = min(2 * self._gap, _LONGEST_GAP)
            self._looking = min(others, key=lambda way: self.lines[way].seen)
            return self._looking
        return best


def idle_wait(looks: int, eager: bool = False) -> float:
    """Seconds until the next look at logs that had nothing new so often: short for a second, then longer and longer,
    because a look costs up to a millisecond of CPU. Who is `eager` pays that."""
    if eager:
        return _EAGER_SECONDS
    growing = min(max(0, looks - _PATIENT_AFTER), 50)
    return min(_IDLE_SECONDS * 1.1**growing, _LONGEST_IDLE_SECONDS)
