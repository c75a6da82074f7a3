"""Retention: which commits a ledger keeps as they grow old. A value; `ledger/vacuum.py` acts on it.

As text: `10 minutes, 1 hour: 1 second, 1 day: 1 minute, rest: 1 day` keeps every commit for ten minutes, then one per
second until it is an hour old, one per minute until it is a day old, and one per day for ever. `rest: none` keeps
nothing older; `all` keeps everything. Snapshots and what somebody reads or waits for is kept in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hailstorm.topology.durations import duration_text, read_duration

_EVERY_COMMIT, _NONE = 0, -1


@dataclass(frozen=True)
class Tier:
    """Commits up to an age (None: of any age), of which one per `every_ms` is kept; 0 is all of them, -1 none."""

    age_ms: int | None
    every_ms: int


@dataclass(frozen=True)
class Retention:
    """Tiers, the youngest first. The last one has no age."""

    tiers: tuple[Tier, ...]

    @property
    def keeps_all(self) -> bool:
        return self.tiers == (Tier(None, _EVERY_COMMIT),)

    def kept(self, commits: Sequence[tuple[int, int]], now: int) -> set[int]:
        """Which of these commits, given in order as (number, wall time in µs), are kept at a time (µs).

        Of all commits in a second (minute, hour) of the wall clock it is the last one: so what a coarser tier keeps
        is among what the finer one has kept.
        """
        found = set()
        for place, (number, at) in enumerate(commits):
            every = self._every(now - at)
            if every == _NONE:
                continue
            following = commits[place + 1][1] if place + 1 < len(commits) else None
            if every == _EVERY_COMMIT or following is None or following // every != at // every:
                found.add(number)
        return found

    def coarser(self, times: int) -> Retention:
        """Fewer commits from as long a time: all of them for a part of the time, and intervals so many times as long.

        What it keeps is among what this keeps, because its intervals are made of whole ones.
        """
        if times == 1 or self.keeps_all:
            return self
        first, *others = self.tiers
        assert first.age_ms is not None
        longer = (Tier(one.age_ms, one.every_ms * times if one.every_ms > 0 else one.every_ms) for one in others)
        return Retention((Tier(first.age_ms // times, first.every_ms), *longer))

    def _every(self, age: int) -> int:
        tier = next(tier for tier in self.tiers if tier.age_ms is None or age <= tier.age_ms * 1000)
        return tier.every_ms * 1000 if tier.every_ms > 0 else tier.every_ms

    def __str__(self) -> str:
        return "all" if self.keeps_all else ", ".join(_texts(self.tiers))


def read_retention(value: object) -> Retention:
    """From its text. Raises ValueError."""
    if isinstance(value, Retention):
        return value
    if not isinstance(value, str):
        raise ValueError(value)
    if value.strip() == "all":
        return Retention((Tier(None, _EVERY_COMMIT),))
    first, *others = value.split(",")
    tiers = [Tier(_duration(first), _EVERY_COMMIT)]
    for text in others:
        age, _, every = (part.strip() for part in text.partition(":"))
        tiers.append(
            Tier(None if age == "rest" else _duration(age), _NONE if (age, every) == ("rest", "none") else _step(every))
        )
    ages = [tier.age_ms for tier in tiers]
    if ages[-1] is not None or None in ages[:-1]:
        raise ValueError("the last tier, and no other, is the rest")
    known = [age for age in ages if age is not None]
    if known != sorted(set(known)):
        raise ValueError("every tier is older than the one before")
    return Retention(tuple(tiers))


def _duration(text: str) -> int:
    duration = read_duration(text)
    if duration is None:
        raise ValueError(text)
    return duration


def _step(text: str) -> int:
    step = _duration(text)
    if step < 1:
        raise ValueError(text)
    return step


def _texts(tiers: Sequence[Tier]) -> Iterable[str]:
    for tier in tiers:
        age = "rest" if tier.age_ms is None else duration_text(tier.age_ms)
        if tier.every_ms == _EVERY_COMMIT:
            yield age
        else:
            yield f"{age}: {'none' if tier.every_ms == _NONE else duration_text(tier.every_ms)}"


DEFAULT = read_retention("10 minutes, 1 hour: 1 second, 1 day: 1 minute, 30 days: 1 hour, rest: 1 day")
