"""Durations as people write them: "10 minutes", "1s", "500 ms" -> milliseconds."""

from __future__ import annotations

import re

from hailstorm.errors import Location
from hailstorm.topology import mistakes

_UNITS = {
    1: ("ms", "millisecond", "milliseconds"),
    1_000: ("s", "sec", "secs", "second", "seconds"),
    60_000: ("m", "min", "mins", "minute", "minutes"),
    3_600_000: ("h", "hour", "hours"),
    86_400_000: ("d", "day", "days"),
    604_800_000: ("w", "week", "weeks"),
}
_ALL_OF_TIME = 10_000 * 366 * 86_400_000  # the years 1 to 9999 are shorter
_MILLISECONDS = {word: size for size, words in _UNITS.items() for word in words}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)


def read_duration(text: object) -> int | None:
    """The whole milliseconds, or None for what is not a duration.

    What is longer than all of time is as long as that: no two moments are further apart, and sums with it fit 64 bits.
    """
    found = _DURATION.fullmatch(text) if isinstance(text, str) else None
    size = _MILLISECONDS.get(found[2].lower()) if found else None
    return round(min(float(found[1]) * size, _ALL_OF_TIME)) if found and size else None


def read_signed_duration(text: object) -> int | None:
    """The same for a duration that may go back: "-8 hours"."""
    if not isinstance(text, str) or not text.lstrip().startswith("-"):
        return read_duration(text)
    read = read_duration(text.lstrip()[1:])
    return None if read is None else -read


def milliseconds(text: object, what: str, at: Location, signed: bool = False) -> int:
    """The whole milliseconds of a duration; `what` names it in the error."""
    read = read_signed_duration(text) if signed else read_duration(text)
    if read is None:
        raise mistakes.bad_duration(what, text, at)
    return read


def duration_text(milliseconds: int) -> str:
    """How people say it: 90000 -> `90 seconds`, 3600000 -> `1 hour`."""
    for size in (86_400_000, 3_600_000, 60_000, 1_000):
        count, rest = divmod(milliseconds, size)
        if count and not rest:
            return f"{count} {_UNITS[size][-1 if count > 1 else -2]}"
    return f"{milliseconds} ms"
