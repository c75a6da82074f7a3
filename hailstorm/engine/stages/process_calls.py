"""The calls of a process's methods in one tick: timers that are due, then events, on the states of their keys.

Pure Python over lists: `stages/process.py` makes the lists of columns and columns of what comes out. Keys are numbers
here, the places of their rows among those of the tick. A call that raises leaves no trace but its error.
"""

from __future__ import annotations

import copy
import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from types import GeneratorType
from typing import Any

import pyarrow as pa

from hailstorm.clock.watermark import END
from hailstorm.engine.stages.given_rows import check_row, is_one
from hailstorm.topology.exact_values import Misfit, exact_value
from hailstorm.topology.process import Clock, Process, Timer, Timers, has_timers, moment
from hailstorm.topology.state_fields import StateField

OWN = ""  # the name of a process's own rows among its outputs

Values = tuple[Any, ...]


class StateClass:
    """A state class: how one is made of a row of state, and how it becomes one."""

    def __init__(self, made: type[Any], columns: Sequence[StateField]) -> None:
        self.columns = columns
        self._made = made
        self._names = [one.name for one in columns]
        self._copiers = [(place, one.copied) for place, one in enumerate(columns) if one.copied is not None]
        self._keywords = any(one.kw_only for one in fields(made))
        # Made once, because it is called for every event.
        self.values: Callable[[Any], Values] = _getter(self._names)

    def of(self, values: Values | None) -> Any:
        """The state of a row of state; of a key that has none, what it begins with."""
        if values is None:
            return self._made()
        values = self.copied(values)
        return self._made(**dict(zip(self._names, values, strict=True))) if self._keywords else self._made(*values)

    def copied(self, values: Values) -> Values:
        """The values, such that what is done to a state does not change them."""
        if not self._copiers:
            return values
        own = list(values)
        for place, copier in self._copiers:
            own[place] = copier(own[place])
        return tuple(own)

    def restore(self, state: Any, values: Values) -> None:
        for name, value in zip(self._names, values, strict=True):
            setattr(state, name, value)

    def check(self, state: Any) -> None:
        """Raises Misfit for a value that its column does not hold."""
        for column, value in zip(self.columns, self.values(state), strict=True):
            if value is None and not column.optional:
                raise Misfit(f"the state's '{column.name}' is None, and is not declared `| None`")
            exact_value(value, column.column.type, f"the state's {column.name}")


def _getter(names: Sequence[str]) -> Callable[[Any], Values]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda state: tuple(getattr(state, name) for name in names)


@dataclass(frozen=True, order=True)
class Firing:
    """A timer that is due. Timers fire in this order: (time, key, name)."""

    at: int
    rank: int  # of the key, in the order of keys
    name: str
    clock: Clock
    key: int = field(compare=False)


@dataclass(frozen=True)
class Asked:
    """A timer that was set, and the agenda that it is due in; none for one that is set after the end of time."""

    at: int
    clock: Clock
    agenda: str | None  # event, system or tick


@dataclass
class Calls:
    """Everything that one task does in one tick.

    `events` are in order, those of a key side by side, and `keys_of` says whose they are. `until` says up to when
    timers are due, by clock.
    """

    using: type[Process]
    shape: StateClass
    outputs: Mapping[str, pa.Schema]  # the process's own rows among them
    step: str
    now: int
    until: Mapping[str, int | None]
    keys: Sequence[Any]
    prior: Sequence[Values | None]
    events: Sequence[Any]
    keys_of: Sequence[int]
    due: Sequence[Firing]
    careful: bool = False  # look at everything that each call gives, to find the one that gives what does not fit

    states: dict[int, Any] = field(init=False, default_factory=dict)
    before: dict[int, Values] = field(init=False, default_factory=dict)  # of keys that were touched
    asked: dict[int, dict[str, Asked | None]] = field(
        init=False, default_factory=dict
    )  # None: cancelled, or it has fired
    rows: dict[str, list[Mapping[str, Any]]] = field(init=False, default_factory=dict)
    origins: dict[str, list[int]] = field(
        init=False, default_factory=dict
    )  # of rows: an event, or behind those a firing
    fired: list[Firing] = field(init=False, default_factory=list)
    refused: dict[int, Exception] = field(init=False, default_factory=dict)  # events
    failed: list[tuple[Firing, Exception]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self.rows = {name: [] for name in self.outputs}
        self.origins = {name: [] for name in self.outputs}
        watermark = self.until["event"]
        seen = None if watermark is None else moment(watermark)
        self._process = self.using()
        self._timers = Timers(moment(self.now), seen, [], has_timers(self.using))
        self._nested = any(pa.types.is_nested(one.type) for schema in self.outputs.values() for one in schema)

    def again_with_care(self) -> Calls:
        """The same from the beginning: what a call gives that does not fit is its own error then."""
        return replace(self, careful=True)

    def run(self) -> None:
        self._fire()
        on_event, call = self._process.on_event, self._call
        for place, (event, key) in enumerate(zip(self.events, self.keys_of, strict=True)):
            error = call(on_event, key, event, place)
            if error is not None:
                self.refused[place] = error
            elif self._timers._asked:
                self._remember(key, None)

    def _fire(self) -> None:
        """Timers in order, also those that timers set for a time that has come."""
        waiting = list(self.due)
        heapq.heapify(waiting)
        while waiting:
            firing = heapq.heappop(waiting)
            asked = self.asked.setdefault(firing.key, {})
            if firing.name in asked:
                latest = asked[firing.name]
                if latest is None or (latest.at, latest.clock) != (firing.at, firing.clock):
                    continue  # it was moved or cancelled by one that fired before it
            asked[firing.name] = None
            timer = Timer(firing.name, moment(firing.at), firing.clock)
            self.fired.append(firing)
            error = self._call(self._process.on_timer, firing.key, timer, len(self.events) + len(self.fired) - 1)
            if error is not None:
                self.failed.append((firing, error))
            for again in self._remember(firing.key, firing):
                heapq.heappush(waiting, again)

    def _call(self, method: Callable[..., Any], key: int, given: Any, origin: int) -> Exception | None:
        state = self.states.get(key)
        if state is None:
            state = self.states[key] = self.shape.of(self.prior[key])
            self.before[key] = self.shape.copied(self.shape.values(state))
        before = self.shape.copied(self.shape.values(state))
        try:
            made = method(self.keys[key], given, state, self._timers)
            rows = [] if made is None else self._rows(made)
            if self.careful:
                self.shape.check(state)
        except Exception as error:
            self.shape.restore(state, before)
            self._timers._asked.clear()
            return error
        for name, row in rows:
            self.rows[name].append(row)
            self.origins[name].append(origin)
        return None

    def _rows(self, made: Any) -> list[tuple[str, Mapping[str, Any]]]:
        """What a method gave, each row with the output that it is for."""
        if type(made) is not GeneratorType and (is_one(made) or _is_named(made)):
            made = [made]
        rows = []
        for item in made:
            name, row = item if _is_named(item) else (OWN, item)
            if name not in self.outputs:
                known = ", ".join(one for one in self.outputs if one != OWN) or "none"
                raise Misfit(f"'{self.step}' gave a row for '{name}', which is no output of it; it has: {known}")
            if self.careful or type(row) is not dict:
                check_row(self.step, row, self.outputs[name])
            # A list in a row may be the state's own, and change with it.
            rows.append((name, copy.deepcopy(row) if self._nested else row))
        return rows

    def _remember(self, key: int, firing: Firing | None) -> list[Firing]:
        """Take over what a call asked for. The timers that a firing has set, and that are due in this tick as well."""
        asked, again = self.asked.setdefault(key, {}), []
        for name, at, clock in self._timers._asked:
            if at is None or clock is None:
                asked[name] = None
                continue
            until = self.until[clock]
            agenda: str | None = clock if until is None or at > until else "tick"
            if agenda == "tick" and firing is not None:
                if clock == "event" and until == END:
                    agenda = None  # timers that set themselves again would go on for ever
                elif clock == firing.clock and at > firing.at:
                    again.append(Firing(at, firing.rank, name, clock, key))
            asked[name] = Asked(at, clock, agenda)
        self._timers._asked.clear()
        return again


def _is_named(item: Any) -> bool:
    """Whether it is a row for a named output."""
    return type(item) is tuple and len(item) == 2 and isinstance(item[0], str)
