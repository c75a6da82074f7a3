"""The ways to run a case. A later way is added here, as the arguments of the Driver and a line before it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Way:
    arguments: str
    before: str = ""  # code, for what the Driver has no argument for


WAYS = {
    "resident": Way("tasks=(0,)"),
    "one task": Way("tasks=(1,)"),
    "two tasks": Way("tasks=(2,)"),
    "in turns": Way("tasks=(0, 1, 2)", "turns = cycle((0, 1, 2))\nPace.way = lambda *asked: next(turns)"),
}
