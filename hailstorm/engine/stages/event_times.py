"""Which event times a spout takes. Whatever it refuses is a dead letter, so that no record can stop a run for good.

A time that lateness would push out of the years 1 to 9999 could not be written down as a watermark; one far ahead of
the wall clock would push the watermark away for good. The wall clock is the tick's, from its order: a replay is exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.watermark import FIRST_MOMENT, LAST_MOMENT

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class EventTimes:
    """Where a spout's event times come from, and how far they may go. Durations are milliseconds."""

    column: str | None  # None: the record's own time
    own: bool  # whether records have a time of their own
    lateness_ms: int
    max_ahead_ms: int

    @property
    def known(self) -> bool:
        return self.column is not None or self.own

    def refused(self, times: pa.Array, now: int) -> dict[int, str]:
        """The indexes of times that are not taken, and why."""
        if not self.known or not len(times):
            return {}
        first, last = FIRST_MOMENT + self.lateness_ms * 1000, min(LAST_MOMENT, now + self.max_ahead_ms * 1000)
        bounds = pc.min_max(times)
        low, high = bounds["min"].value, bounds["max"].value
        if not times.null_count and first <= low and high <= last:
            return {}
        micros = np.asarray(pc.fill_null(times.cast(pa.int64()), first))
        missing = np.asarray(times.is_null())
        bad = np.flatnonzero(missing | (micros < first) | (micros > last))
        return {int(index): self._reason(None if missing[index] else int(micros[index]), now) for index in bad}

    def _reason(self, micros: int | None, now: int) -> str:
        who = "its time" if self.column is None else f"its event time '{self.column}'"
        if micros is None:
            return f"{who} is null"
        if not FIRST_MOMENT <= micros <= LAST_MOMENT:
            return f"{who} is not within the years 1 to 9999"
        at = _EPOCH + timedelta(microseconds=micros)
        if micros < FIRST_MOMENT + self.lateness_ms * 1000:
            return f"{who}, {at.isoformat()}, less the lateness is before the year 1"
        ahead = timedelta(milliseconds=self.max_ahead_ms)
        return f"{who}, {at.isoformat()}, is more than {ahead} ahead of {(_EPOCH + timedelta(microseconds=now)):%F %T}"


def times_out_of_range(times: pa.Array, column: str) -> dict[int, str]:
    """The indexes of times that a row cannot have, and why. They move no watermark, so they may be far ahead."""
    return EventTimes(column, own=True, lateness_ms=0, max_ahead_ms=LAST_MOMENT // 1000 + 1).refused(times, 0)
