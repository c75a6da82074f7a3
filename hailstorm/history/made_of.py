"""What a row of a stateful step was made of: which rows of its inputs to ask for, given the row that it gave.

Rules, and nothing is run here. A row that was kept by a key was made of the rows with this key: of a window, of those
inside it. A row that passed a step (distinct, ordered, the stream of a look-up) was made of itself; a pair, of its two
halves. No row was made of what came in a later tick. Values are texts (engine/stages/marks.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeGuard

from hailstorm.columns import WINDOW_END, WINDOW_START
from hailstorm.engine.stages.marks import Texts
from hailstorm.history.one_record import Record
from hailstorm.topology.stateful import Newest, WindowedFold
from hailstorm.topology.stateless import Output
from hailstorm.topology.step import Step
from hailstorm.topology.topology import Topology
from hailstorm.topology.two_sided import Join, Lookup, TableJoin, TwoSided

NULL = repr(None)
EVER = 1 << 62  # a tick after all ticks
_Items = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Ask:
    """Rows that have these values, a time within [first, last] (µs), and came in one of these ticks. `record`: those
    that came from it."""

    values: _Items
    until: int = EVER
    since: int = 0
    first: int | None = None
    last: int | None = None
    record: Record | None = None

    @staticmethod
    def of(values: Mapping[str, str], until: int = EVER, since: int = 0, record: Record | None = None) -> Ask:
        return Ask(tuple(sorted(values.items())), until, since, record=record)

    def around(self, time: int | None, before: int = 0, after: int = 0) -> Ask:
        """Those of them with a time from so much before this one to so much after it."""
        return self if time is None else replace(self, first=time - before, last=time + after)

    def takes(self, time: int | None, tick: int, record: Record | None) -> bool:
        """Whether a row with these values is asked for."""
        if not self.since <= tick <= self.until or (self.record is not None and record not in (None, self.record)):
            return False
        if time is None:
            return True
        return (self.first is None or time >= self.first) and (self.last is None or time <= self.last)


@dataclass(frozen=True)
class Given:
    """A row that a step gave, in some tick. `record` is where it says that it came from."""

    row: _Items
    time: int | None
    tick: int
    record: Record | None

    @staticmethod
    def of(row: Texts, time: int | None, tick: int, record: Record | None) -> Given:
        return Given(tuple(sorted(row.items())), time, tick, record)


def keeper_of(topology: Topology, step: Step) -> Step:
    """The step whose keys a table's rows have: a top, and what is left of a table, have those of their table."""
    while step.is_table and step.has_keys_of_input:
        step = topology.step(step.inputs[0])
    return step


def ask_of_keeper(topology: Topology, step: Step, ask: Ask) -> tuple[str, int, Ask]:
    """Ask the keeper of a step's rows for a key: of a row's columns only those count that its key has."""
    keeper = keeper_of(topology, step)
    key = key_of(keeper)
    return keeper.name, -1, replace(ask, values=tuple(item for item in ask.values if item[0] in key))


def key_of(step: Step) -> tuple[str, ...]:
    """What rows are asked for by."""
    return step.state_key


def of_given(topology: Topology, name: str, given: Given) -> Iterator[tuple[str, int, Ask]]:
    """The step, the place among its inputs, and what to ask for there, for a row of this step or of an output of it.

    A step whose rows are found by key is asked as a whole: its place is -1.
    """
    step, row = topology.step(name), dict(given.row)
    late = isinstance(step, Output)
    if late:
        step = topology.step(step.inputs[0])
    if step.found_by_key and not (late and step.is_table):
        yield ask_of_keeper(topology, step, Ask.of(row, given.tick))
    elif isinstance(step, Join):
        yield from ((step.name, place, ask) for place, ask in _of_pair(topology, step, given, late))
    else:
        columns = topology.step(step.inputs[0]).schema.names
        same = Ask.of({column: row[column] for column in columns}, given.tick, record=given.record)
        yield step.name, 0, same.around(given.time)
        if isinstance(step, Lookup) and not late:
            yield from _of_looked_up(topology, step, given)


def _of_pair(topology: Topology, step: Join, given: Given, late: bool) -> Iterator[tuple[int, Ask]]:
    """Both halves. The pair has the later time of the two, and comes from where the left one came from."""
    row, time = dict(given.row), given.time
    left = {column: row[column] for column in topology.step(step.inputs[0]).schema.names}
    after, before = max(step.after_us, 0), max(step.before_us, 0)
    yield 0, Ask.of(left, given.tick, record=given.record).around(time, before=after)
    if step.how == "anti" and not late:
        return
    right = right_values(step, row)
    ahead = after if step.how == "semi" else 0
    yield 1, Ask.of(right, given.tick).around(time, before, ahead)


def right_values(step: TwoSided, row: Mapping[str, str]) -> Texts:
    """What a row of the right was, as far as a row of the result shows it."""
    return right_key(step, row) | {theirs: row[shown] for theirs, shown in step.names.items() if shown in row}


def right_key(step: TwoSided, row: Mapping[str, str]) -> Texts:
    """By what a row of the result found that of its right."""
    return {theirs: row[mine] for mine, theirs in step.on}


def _of_looked_up(topology: Topology, step: Lookup, given: Given) -> Iterator[tuple[str, int, Ask]]:
    table = topology.step(step.inputs[1])
    found = right_values(step, dict(given.row))
    key = {column: found[column] for column in table.key}
    if NULL not in key.values():
        last = given.time if step.by_time else None
        yield ask_of_keeper(topology, table, replace(Ask.of(key, given.tick), last=last))


def of_key(topology: Topology, step: Step, ask: Ask) -> Iterator[tuple[int, Ask]]:
    """The places among the inputs, and what to ask for there, of a key of a step: maybe only a part of its key."""
    values = dict(ask.values)
    if isinstance(step, WindowedFold):
        start, end = (values.pop(name, None) for name in (WINDOW_START, WINDOW_END))
        inside = Ask.of(values, ask.until, since=ask.since)
        if not topology.step(step.inputs[0]).is_table:  # the time of a row that goes is not known
            inside = replace(inside, first=_number(start), last=None if end is None else int(end) - 1)
        yield 0, inside
    elif isinstance(step, TableJoin):
        yield 0, replace(ask, last=None)
        names = dict(step.on)
        if not step.foreign:
            yield 1, replace(ask, values=Ask.of({names[name]: text for name, text in values.items()}).values, last=None)
    else:
        by_time = isinstance(step, Newest) and step.time is None
        yield from ((place, ask if by_time else replace(ask, last=None)) for place in range(len(step.inputs)))


def joins_foreign(step: Step) -> TypeGuard[TableJoin]:
    """Whether only the rows that it gave say by what it found those of its right."""
    return isinstance(step, TableJoin) and step.foreign


def is_witnessed(topology: Topology, step: Step, place: int) -> bool:
    """Whether the rows of an input must be seen: those of tables that joins, tops and look-ups read have a key."""
    return not (step.asks_tables and topology.step(step.inputs[place]).is_table)


def reaches_back(topology: Topology, name: str) -> bool:
    """Whether a row that a step gave may be made of records that were read in earlier ticks, and shows no change of a
    key in its own: it has waited, or met what was there before."""
    steps = [step for step in topology.only([name]).steps if step.keeps_state]
    return any(step.holds or len(step.inputs) > 1 or not step.is_table for step in steps)


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)
