"""Sessions: a key's rows that follow each other within a gap, as one window that grows.

A session is [first event, last event + gap). `AssignSessions` makes sessions of a tick's rows alone; a fold's grouping
aggregates each; `JoinSessions` finds the key's sessions of before, and says which of all these are one. What was
another session and is now part of a larger one is gone: its key, of which `window_end` is a part, is another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.windows import Closing
from hailstorm.columns import EVENT_TIME, HASH, MEMBERS, SIGN, STATE, TIME, WINDOW_END, WINDOW_START
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.fold import Cell, without_null_keys
from hailstorm.engine.stages.group import groups_of
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.engine.stages.waiting import DUE, Waiting
from hailstorm.engine.stages.windows import refuse_late, within_years
from hailstorm.ledger.arrays import order_by, order_of
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.keyed_state import Layout, is_among
from hailstorm.ledger.runs import hashes_of, sort_by_hash

Places = npt.NDArray[np.int64]


@dataclass(frozen=True)
class AssignSessions:
    """Each row with the session that it is in, as far as its batch tells; `together`: else every row is its own."""

    step: str
    by: tuple[str, ...]
    gap: int
    closing: Closing
    late: Outlet | None
    together: bool

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        refused = []
        watermark = task.watermark(self.step)
        for batch in batches:
            batch = within_years(batch, self.step, self.gap, task)
            if watermark is not None:
                ends = np.asarray(batch.column(EVENT_TIME).cast(pa.int64())) + self.gap
                late = ends + self.closing.accepts <= watermark
                if SIGN in batch.schema.names:  # a row that goes leaves a session that has not ended, however old it is
                    late &= np.asarray(batch.column(SIGN)) > 0
                if late.any():
                    refused.append(batch.filter(pa.array(late)))
                    batch = batch.filter(pa.array(~late))
            if batch.num_rows:
                yield self._assigned(batch)
        if refused:
            refuse_late(self.step, pa.Table.from_batches(refused), self.closing, self.late, task)

    def _assigned(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        times = np.asarray(batch.column(EVENT_TIME).cast(pa.int64()))
        start, end = times, times + self.gap
        if self.together:
            keys = pa.table({name: batch.column(name) for name in self.by}) if self.by else _no_columns
            hashes = hash_columns([batch.column(name) for name in self.by], batch.num_rows)
            order, firsts = groups_of(keys, hashes)
            groups = np.zeros(batch.num_rows, dtype=np.int64)
            groups[firsts[1:]] = 1
            start, end, _ = _united(np.cumsum(groups), order, times, times + self.gap)
        bounds = {WINDOW_START: pa.array(start).cast(TIME), WINDOW_END: pa.array(end).cast(TIME)}
        inner = {name: batch.column(name) for name in batch.schema.names if name not in bounds}
        return pa.RecordBatch.from_pydict({**inner, **bounds})


@dataclass(frozen=True)
class HashBy:
    """`_hash` of some columns instead of the whole key: so that all sessions of a key are neighbours."""

    by: tuple[str, ...]

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            hashes = pa.array(hash_columns([batch.column(name) for name in self.by], batch.num_rows))
            yield batch.set_column(batch.schema.get_field_index(HASH), HASH, hashes)


@dataclass(frozen=True)
class JoinSessions:
    """In: sessions of this tick's rows, with states. Out: for every session that has changed or is due, the states that
    it is made of; and those that are part of another one now, with `_members` 0.
    """

    layout: Layout
    by: tuple[str, ...]
    waiting: Waiting
    cells: tuple[Cell, ...]
    one_task: bool

    phase = "look up"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        new = self._of_this_tick(batches, task)
        due = self._due(new, task)
        parts = []
        if new is not None:
            new = new.filter(pc.is_valid(new.column(EVENT_TIME)))
            parts.append(self._part(new, new.column(EVENT_TIME), [STATE + cell.name for cell in self.cells]))
        parts += self._before(new, due, task)
        rows = pa.concat_tables(parts).combine_chunks() if parts else None
        if rows is not None and rows.num_rows:
            yield from self._judged(rows, task).to_batches()

    def _of_this_tick(self, batches: Batches, task: Task) -> pa.Table | None:
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return None
        rows = without_null_keys(self.layout.table, self.by, pa.Table.from_batches(kept), task)
        for cell in self.cells:
            place = rows.column_names.index(STATE + cell.name)
            if rows.schema.field(place).type != cell.state_type:
                states = rows.column(place).combine_chunks()
                if cell.merge is None:  # Spark may know that an item of a list is never null; the state does not
                    lifted = states.cast(cell.state_type)
                else:  # one's own: still the inputs of this tick
                    lifted = cell.merge(pa.nulls(len(states), cell.state_type), states)
                rows = rows.set_column(place, STATE + cell.name, lifted)
        return rows

    def _due(self, new: pa.Table | None, task: Task) -> pa.Table | None:
        if self.one_task:
            return self.waiting.due(task)
        if new is None:
            return None
        entries = new.filter(pc.is_null(new.column(EVENT_TIME)))
        return self.waiting.each_once([entries.select([*self.layout.key, HASH])])

    def _before(self, new: pa.Table | None, due: pa.Table | None, task: Task) -> Iterator[pa.Table]:
        """The sessions of before that rows of this tick may be in, and those that are due.

        Nothing of this tick touches a session that ended before its first row. So what is read is what was lately
        written, however many sessions a key has had.
        """
        state, key, stored = task.state(self.layout), self.layout.key, [cell.stored for cell in self.cells]
        near = None
        if new is not None and new.num_rows:
            first = pc.min(new.column(WINDOW_START)).cast(pa.int64()).as_py()
            near = state.members(sort_by_hash(new.select([*self.by, HASH])), self.by, after=(WINDOW_END, first))
        if near is not None and near.num_rows:
            is_due = pa.repeat(False, near.num_rows) if due is None else is_among(near, due, key)
            yield self._part(near, pa.nulls(near.num_rows, TIME), stored, is_due)
            if due is not None:
                due = due.filter(pc.invert(is_among(due, near, key)))
        if due is not None and due.num_rows:
            matches = state.prior(due)
            columns = {cell.stored: matches.column(cell.stored, cell.state_type) for cell in self.cells}
            ended = pa.table({**{name: due.column(name) for name in (*key, HASH)}, **columns}).filter(matches.found())
            yield self._part(ended, pa.nulls(ended.num_rows, TIME), stored, pa.repeat(True, ended.num_rows))

    def _part(self, rows: pa.Table, times: Any, states: list[str], is_due: Any = None) -> pa.Table:
        columns: dict[str, Any] = {name: rows.column(name) for name in (*self.layout.key, HASH)}
        columns |= {STATE + c.name: rows.column(name) for c, name in zip(self.cells, states, strict=True)}
        members = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
        is_due = pa.repeat(False, rows.num_rows) if is_due is None else is_due
        return pa.table({**columns, EVENT_TIME: times, DUE: is_due, MEMBERS: members})

    def _judged(self, rows: pa.Table, task: Task) -> pa.Table:
        starts = np.asarray(rows.column(WINDOW_START).cast(pa.int64()))
        ends = np.asarray(rows.column(WINDOW_END).cast(pa.int64()))
        is_new = np.asarray(pc.is_valid(rows.column(EVENT_TIME)))
        order, firsts = groups_of(rows.select(list(self.by)), hashes_of(rows))
        groups = np.zeros(len(order), dtype=np.int64)
        groups[firsts[1:]] = 1
        groups = np.cumsum(groups)
        # What is closed for good stays by itself: as if each were the only session of a key of its own.
        alone = ~is_new & (ends + self.waiting.accepts <= _or_before(task.watermark(self.waiting.step)))
        of_row = np.empty(len(order), dtype=np.int64)
        of_row[order] = groups
        of_row = np.where(alone, len(order) + np.arange(len(order)), of_row)
        by_group = order_of(of_row)
        united_start, united_end, number = _united(of_row[by_group], by_group, starts, ends)
        # Of each session that comes out: whether a row of this tick is in it, or something of it is due.
        touched = is_new | np.asarray(rows.column(DUE))
        wanted = np.zeros(number.max() + 1, dtype=np.bool_)
        wanted[number[touched]] = True
        wanted_rows = wanted[number]
        changed = wanted_rows & ~is_new & ((starts != united_start) | (ends != united_end))
        gone = rows.filter(pa.array(changed))
        gone = gone.set_column(gone.column_names.index(MEMBERS), MEMBERS, pa.array(np.zeros(gone.num_rows, np.int64)))
        for name, moments in ((WINDOW_START, united_start), (WINDOW_END, united_end)):
            rows = rows.set_column(rows.column_names.index(name), name, pa.array(moments).cast(TIME))
        judged = pa.concat_tables([rows.filter(pa.array(wanted_rows)), gone]).combine_chunks()
        # From here on a row without a time would be one that is only due. A window's row gets its time from the window.
        times = pc.coalesce(judged.column(EVENT_TIME), judged.column(WINDOW_END))
        return judged.set_column(judged.column_names.index(EVENT_TIME), EVENT_TIME, times)


_no_columns = pa.table({})


def _or_before(watermark: int | None) -> int:
    return -(1 << 62) if watermark is None else watermark


def _united(groups: Places, order: Places, starts: Places, ends: Places) -> tuple[Places, Places, Places]:
    """The bounds of the session that each row is in, and a number for each session. `groups` are the keys of the rows
    in `order`, ascending."""
    rows, start = order, starts[order]
    again = groups[1:] == groups[:-1]
    if (again & (start[1:] < start[:-1])).any():  # mostly rows come in the order of time
        by_time = order_by(groups, start)
        rows, start = order[by_time], start[by_time]
    end = ends[rows]
    begins = np.ones(len(end), dtype=np.bool_)
    begins[1:] = ~again | (start[1:] >= _highest_so_far(end, again)[:-1])
    places = np.flatnonzero(begins)
    sizes = np.diff(np.append(places, len(end)))
    found_start, found_end, number = (np.empty(len(rows), dtype=np.int64) for _ in range(3))
    found_start[rows] = np.repeat(start[places], sizes)
    found_end[rows] = np.repeat(np.maximum.reduceat(end, places), sizes)
    number[rows] = np.repeat(np.arange(len(places)), sizes)
    return found_start, found_end, number


def _highest_so_far(end: Places, again: npt.NDArray[np.bool_]) -> Places:
    """Of each row the highest end in its group up to there. `again`: a row is in the group of the one before it."""
    if not (again & (end[1:] < end[:-1])).any():
        return end
    # A number that also tells the group: of ranks, so that it cannot overflow.
    rank = np.empty(len(end), dtype=np.int64)
    rank[order_of(end)] = np.arange(len(end))
    group = np.concatenate(([0], np.cumsum(~again))) * len(end)
    highest: Places = np.sort(end)[np.maximum.accumulate(group + rank) - group]
    return highest
