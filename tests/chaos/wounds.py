"""Stages that hurt the worker they run in, at a place that a file names, once.

A test writes `place how` into the file. The stage at that place removes the file before it acts: so the tick that is
run again, by Spark or by another worker, goes through.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from hailstorm.engine.plan.plan import Branch, Plan
from hailstorm.engine.stages.chain import Line, Pass, Stage
from hailstorm.engine.stages.task import Batches, Task

kept: list[bytes] = []  # what a worker that grows holds on to


def _raise() -> None:
    raise ValueError("hurt")


def _hang_with_the_lock() -> None:
    ctypes.PyDLL(None).sleep(4)  # unlike CDLL, it keeps Python's lock: no other thread runs


def _grow() -> None:
    kept.append(os.urandom(1) * 300_000_000)


def _tell(file: Path) -> None:
    """Beside the file: whether garbage may be looked for in this moment, and how many objects never are."""
    file.with_suffix(".told").write_text(f"{gc.isenabled()} {gc.get_freeze_count()}")


HOW: dict[str, Callable[[], object]] = {
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stopped": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exits": lambda: os._exit(0),
    "leaves": lambda: sys.exit(3),
    "fails": _raise,
    "hangs": _hang_with_the_lock,
    "is slow": lambda: time.sleep(2.5),
    "loops": lambda: time.sleep(600),
    "grows": _grow,
}


@dataclass(frozen=True)
class Wounded:
    stage: Stage
    place: str
    file: Path

    @property
    def phase(self) -> str:
        return self.stage.phase

    @property
    def calls_users(self) -> bool:
        return bool(getattr(self.stage, "calls_users", False))

    def __call__(self, batches: Batches, task: Task) -> Batches:
        self._act("before")
        yield from self.stage(batches, task)
        self._act("after")

    def _act(self, moment: str) -> None:
        try:
            place, _, how = self.file.read_text().partition(" ")
        except FileNotFoundError:
            return
        if place == f"{self.place}:{moment}":
            self.file.unlink()
            if how == "tells":
                _tell(self.file)
            else:
                HOW[how]()


def wounding(file: Path, one_pass: Callable[[Plan, list[Branch]], Pass]) -> Callable[[Plan, list[Branch]], Pass]:
    """In the place of `Plan.one_pass`: the same passes, with stages that can be hurt."""

    def wounded(plan: Plan, branches: list[Branch]) -> Pass:
        made = one_pass(plan, branches)
        return replace(made, lines=tuple(_wounded(line) for line in made.lines))

    def _wounded(line: Line) -> Line:
        names = [f"{line.name}/{type(stage).__name__}" for stage in line.stages]
        return replace(
            line,
            stages=tuple(Wounded(stage, name, file) for stage, name in zip(line.stages, names, strict=True)),
        )

    return wounded
