"""The ways to run a case. A later way is added here, as the arguments of the Driver and a line before it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    arguments: str
    before: str = ""  # code, for what the Driver has no argument for
    effort: float = 1.0  # what a tick takes, where a resident one takes 1


WAYS = {
    "resident": Way("tasks=(0,)"),
    "one task": Way("tasks=(1,)", effort=1.3),
    "two tasks": Way("tasks=(2,)", effort=3.0),
    "in turns": Way("tasks=(0, 1, 2)", "turns = cycle((0, 1, 2))\nPace.way = lambda *asked: next(turns)", effort=2.0),
}
