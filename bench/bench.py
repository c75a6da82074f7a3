"""What a bench is: a name, what it is about, and `measure`, which gives series and checks.

A check is one required figure of docs/performance.md: a value with its spread, and the limit that it must keep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.contest import Ratio, Series

Say = Callable[[str], None]


@dataclass(frozen=True)
class Check:
    text: str
    measured: Ratio
    limit: float
    at_most: bool  # else at least

    @property
    def kept(self) -> bool:
        return self.measured.value <= self.limit if self.at_most else self.measured.value >= self.limit


@dataclass(frozen=True)
class Outcome:
    series: tuple[Series, ...]
    checks: tuple[Check, ...]
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """`measure(quick, say)`: quick means few ticks, to see that it works."""

    name: str
    title: str
    measure: Callable[[bool, Say], Outcome]


def at_most(text: str, measured: Ratio, limit: float) -> Check:
    return Check(text, measured, limit, at_most=True)


def at_least(text: str, measured: Ratio, limit: float) -> Check:
    return Check(text, measured, limit, at_most=False)


def inverse(ratio: Ratio) -> Ratio:
    """From "so much of its time" to "so many times its rate"."""
    return Ratio(1 / ratio.value, 1 / ratio.high, 1 / ratio.low)
