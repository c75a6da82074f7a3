"""Windows and sessions of a stream, as a user declares them: `stream.window("1 hour").fold(...)`.

`Windowed` and `Sessions` are what stands between the two calls; `.fold` adds the step. What a window is, is in
clock/windows.py; when it closes and what is late, in engine/stages/windows.py.
"""

from __future__ import annotations

import warnings
import zoneinfo
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from hailstorm.algebra.monoid import AnyMonoid, SqlMonoid
from hailstorm.clock.panes import can_share
from hailstorm.clock.windows import MOST, Closing, Late, Windows
from hailstorm.columns import WINDOW_END, WINDOW_START
from hailstorm.errors import Location, suggestion
from hailstorm.topology import checks, mistakes
from hailstorm.topology.durations import milliseconds
from hailstorm.topology.folding import fold_key, folded_columns
from hailstorm.topology.other_words import OF_A_WINDOW, unknown_name
from hailstorm.topology.stateful import WindowedFold
from hailstorm.topology.step import Step

if TYPE_CHECKING:
    from hailstorm.topology.stream import Stream
    from hailstorm.topology.table import Table
    from hailstorm.topology.topology import Topology


@dataclass(frozen=True)
class Windowed:
    """A stream cut into windows, or sessions. `.fold(...)` says what to keep of each."""

    stream: Stream
    windows: Windows | None  # None: sessions
    gap: int  # of sessions, in microseconds
    closing: Closing

    if not TYPE_CHECKING:  # for type checkers a wrong name is a mistake

        def __getattr__(self, name):
            raise unknown_name("a window", name, {name: OF_A_WINDOW}, (), ".")

    def fold(
        self,
        name: str,
        /,
        *,
        by: str | Sequence[str] | None = None,
        columns: Mapping[str, AnyMonoid] | None = None,
        renamed_from: str | None = None,
        **monoids: AnyMonoid,
    ) -> Table:
        """State by key and window: the `by` columns, `window_start`, `window_end`, and one column per monoid."""
        at = Location.of_caller()
        source = self.stream.step
        check_has_time(self.stream.topology, name, source, at)
        given = fold_key(name, by, source, at)
        for taken in (WINDOW_START, WINDOW_END):
            if taken in given:
                raise mistakes.bad_key(name, taken, "the windows of this step have a column of that name", at)
        key = (*given, WINDOW_START, WINDOW_END)
        made = checks.all_columns(name, columns, monoids, at)
        self._check_number(made.values(), at)
        folded = folded_columns(name, given, made, source, at, (WINDOW_START, WINDOW_END))
        step = WindowedFold(
            name,
            at,
            (self.stream.name,),
            folded.schema,
            key,
            True,
            renamed_from,
            monoids=folded.monoids,
            windows=self.windows,
            gap=self.gap,
            closing=self.closing,
            source_schema=source.schema,
        )
        return self.stream.topology.add_table(step)

    def _check_number(self, monoids: Iterable[object], at: Location) -> None:
        """A row costs each of its windows, unless they share panes: then it costs a pane, and each window its panes."""
        windows = self.windows
        if windows is None or windows.at_most <= MOST:
            return
        native = all(isinstance(monoid, SqlMonoid) for monoid in monoids)
        final = self.closing.emit == "final" and not self.stream.step.is_table
        if not (final and native and can_share(windows)):
            raise mistakes.too_many_windows(self.stream.name, windows.at_most, MOST, at)
        text = (
            f"every row of '{self.stream.name}' is in {windows.at_most:,} windows. Each key has one that ends every "
            f"{timedelta(microseconds=windows.every)}, and it is made of up to as many panes"
        )
        warnings.warn_explicit(text, UserWarning, at.file, at.line)


def windowed(
    stream: Stream,
    size: object,
    every: object,
    emit: object,
    late: object,
    keep: object,
    offset: object,
    zone: object,
    at: Location,
) -> Windowed:
    what = f"of a window of '{stream.name}'"
    length = _positive(size, f"the size {what}", at)
    step = length if every is None else _positive(every, f"`every` {what}", at)
    moved = milliseconds(offset, f"the offset {what}", at, signed=True) * 1000
    # Eight hours back, every day, is sixteen hours on.
    windows = Windows(length, step, moved % step if moved < 0 else moved, _zone(zone, what, at))
    if not windows.fits_its_zone():
        why = f"windows of '{stream.name}' neither divide an hour nor are they whole hours"
        advice = "In a zone with summer time they would come apart when its clocks change. Take UTC, or another size."
        raise mistakes.bad_window(why, advice, at)
    return Windowed(stream, windows, 0, _closing(stream.name, emit, late, keep, what, at))


def sessions(stream: Stream, gap: object, emit: object, late: object, keep: object, at: Location) -> Windowed:
    what = f"of a session of '{stream.name}'"
    return Windowed(
        stream, None, _positive(gap, f"the gap {what}", at), _closing(stream.name, emit, late, keep, what, at)
    )


def check_has_time(topology: Topology, name: str, step: Step, at: Location) -> None:
    """Refuse a step without event time: whatever waits for time would wait for ever."""
    for spout in topology.unclocked(step.name):
        raise mistakes.no_event_time(name, spout, at)


def _closing(name: str, emit: object, late: object, keep: object, what: str, at: Location) -> Closing:
    if emit not in ("updates", "final"):
        raise mistakes.bad_option(name, "emit", emit, ("updates", "final"), at)
    if late not in ("correct", "side", "drop"):
        raise mistakes.bad_option(name, "late", late, ("correct", "side", "drop"), at)
    kept = milliseconds(keep, f"`keep` {what}", at) * 1000
    return Closing("final" if emit == "final" else "updates", _late(late), kept)


def _late(late: object) -> Late:
    return "correct" if late == "correct" else "side" if late == "side" else "drop"


def _positive(text: object, what: str, at: Location) -> int:
    found = milliseconds(text, what, at) * 1000
    if found <= 0:
        raise mistakes.bad_window(f"{what} is {text!r}", "It must be longer than nothing: '1 hour'.", at)
    return found


def _zone(zone: object, what: str, at: Location) -> str:
    try:
        zoneinfo.ZoneInfo(str(zone))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        near = suggestion(str(zone), zoneinfo.available_timezones())
        raise mistakes.bad_window(f"the zone {what} is {zone!r}, which does not exist", near, at) from None
    return "UTC" if zone in ("UTC", "Etc/UTC", "Z") else str(zone)
