"""Processes: what a user writes for a keyed step in Python, and the values that its methods are given.

    class Silence(hs.Process):
        state = Seen                                   # a dataclass: the columns of the state
        returns = "card STRING, since TIMESTAMP"

        def on_event(self, key, event, state, timers):
            state.last = event.at
            timers.set("silence", event.at + timedelta(hours=1))

        def on_timer(self, key, timer, state, timers):
            yield {"card": key, "since": state.last}

`stream.process(...)` checks such a class (`checked_process`) and adds the step; `engine/stages/process.py` runs it.
Nothing here runs anything.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Literal, get_args

from hailstorm.errors import Location
from hailstorm.topology import mistakes
from hailstorm.topology.row import Row
from hailstorm.topology.schema import Schema

Clock = Literal["event", "system"]

# What a method gives: a row, an output's name and a row, several of these (or yields them), or None for nothing.
Given = Mapping[str, Any] | tuple[str, Mapping[str, Any]] | Iterable[Any] | None

_CLOCKS = get_args(Clock)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Event(Row):
    """A row, as a process sees it: one attribute per column, `_time` (its event time), and `is_late`.

    It is late when the watermark had passed its time before it came.
    """

    __slots__ = ()
    is_late: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Timer:
    """A timer that fires: its name, the time that it was set for, and by which clock."""

    name: str
    time: datetime
    clock: Clock


@dataclass(slots=True)
class Timers:
    """The timers of one key. There is one per name: to set it again moves it.

    `now` is the system time of the tick, and `watermark` the event time by which timers are due in it (None: there is
    none yet). Both come from commits, so a run that is repeated sees the same; the machine's clock would not be.
    """

    now: datetime
    watermark: datetime | None
    _asked: list[tuple[str, int, Clock] | tuple[str, None, None]] = field(default_factory=list)
    _can_fire: bool = True

    def set(self, name: str, when: datetime, clock: Clock = "event") -> None:
        """Fire once at `when`: when the watermark has reached it, or, with `clock="system"`, the time of day has.

        A time that has passed already fires in the next tick.
        """
        if not self._can_fire:
            raise TypeError("the process sets a timer, and has no on_timer")
        if not isinstance(name, str):
            raise TypeError(f"the name of a timer is text, and this is {name!r:.80}")
        if not isinstance(when, datetime) or when.utcoffset() is None:
            raise TypeError(f"a timer is set for a datetime with a zone, and this is {when!r:.80}")
        if clock not in _CLOCKS:
            raise ValueError(f"a timer goes by clock='event' or clock='system', and not by {clock!r:.80}")
        self._asked.append((name, (when - _EPOCH) // _MICROSECOND, clock))

    def cancel(self, name: str) -> None:
        """Let a timer not fire. One that is not set stays so."""
        self._asked.append((name, None, None))


class Process:
    """A keyed step in Python: typed state, timers, several outputs. Subclass it; `stream.process(...)` takes the class.

    Both methods change `state` in place and return or yield rows: a dict for `returns`, or a pair of an output's name
    and a dict. They must be pure: they run again after a crash. What raises is a dead letter, and leaves the key as it
    was before.
    """

    state: ClassVar[type[Any]]
    returns: ClassVar[str]
    outputs: ClassVar[Mapping[str, str]] = {}

    def on_event(self, key: Any, event: Any, state: Any, timers: Timers) -> Given:
        """For each row: those of a key in the order (event time, spout, partition, offset) within a tick.

        `key` is the value of the `by` column, or a row of them where there are several.
        """
        raise NotImplementedError

    def on_timer(self, key: Any, timer: Timer, state: Any, timers: Timers) -> Given:
        """For each timer that is due, in the order (time, key, name). Those of a tick come before its events."""
        return None


def has_timers(process: type[Process]) -> bool:
    return process.on_timer is not Process.on_timer


def moment(microseconds: int) -> datetime:
    return _EPOCH + timedelta(microseconds=microseconds)


def checked_process(step: str, using: object, at: Location) -> type[Process]:
    """The class, once everything is there that can be seen without running it. Its state is read in state_fields.py."""
    if not (isinstance(using, type) and issubclass(using, Process)) or using is Process:
        is_instance = isinstance(using, Process)
        advice = "Pass the class itself, and not one that was made of it." if is_instance else ""
        raise mistakes.bad_process(
            step, f"got {mistakes.shown(using)}, which is not a subclass of hs.Process", at, advice
        )
    name = using.__name__
    if not isinstance(getattr(using, "returns", None), str):
        raise mistakes.bad_process(step, f"uses {name}, which does not say what it returns", at)
    if using.on_event is Process.on_event:
        raise mistakes.bad_process(step, f"uses {name}, which has no on_event", at)
    _check_arguments(step, using, "on_event", "key, event, state, timers", at)
    _check_arguments(step, using, "on_timer", "key, timer, state, timers", at)
    try:
        using()
    except TypeError as error:
        why = f"uses {name}, which cannot be made without arguments: {error}"
        raise mistakes.bad_process(
            step, why, at, "What differs from one use to another is a class attribute."
        ) from None
    return using


def checked_outputs(step: str, using: type[Process], at: Location) -> dict[str, Schema]:
    """The columns of each named output."""
    outputs = using.outputs
    if not isinstance(outputs, Mapping) or not all(isinstance(name, str) for name in outputs):
        why = f"uses {using.__name__}, whose outputs are {mistakes.shown(outputs)}"
        raise mistakes.bad_process(step, why, at, 'They are a dict: outputs = {"alerts": "card STRING, at TIMESTAMP"}.')
    return {name: Schema.parse(columns, at) for name, columns in outputs.items()}


def _check_arguments(step: str, using: type[Process], method: str, arguments: str, at: Location) -> None:
    found = inspect.signature(getattr(using, method))
    try:
        found.bind(None, *arguments.split(", "))
    except TypeError:
        why = f"uses {using.__name__}, whose {method} has the arguments {found}"
        raise mistakes.bad_process(step, why, at, f"It is called as {method}(self, {arguments}).") from None
