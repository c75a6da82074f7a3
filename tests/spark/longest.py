"""A monoid of one's own, for tests: it cannot take a row back, and has nothing to say of rows that are not there."""

from __future__ import annotations

import hailstorm as hs


class Longest(hs.Monoid):
    """One's own: the longest text so far."""

    state = "STRING"

    def zero(self) -> str:
        return ""

    def lift(self, value: int) -> str:
        return "x" * value

    def merge(self, a: str, b: str) -> str:
        return max(a, b, key=len)
