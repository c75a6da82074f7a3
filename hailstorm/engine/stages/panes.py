"""Sliding windows that are shown when they end, over panes that they share (clock/panes.py).

A row goes to one pane, however many windows it is in. When a window ends, the panes of its key are looked up and
merged, and from there on it is a row of the fold like any other: shown, corrected, kept for a while. A pane leaves when
the last of its windows has ended. So open windows are nowhere as rows; who reads them merges panes, too
(ledger/open_windows.py).

A row that is late for some of its windows goes to those directly, as to the windows of any fold: they have ended, and
need their panes no more.

A key has an entry in the agenda for the next of its windows that ends. It writes the one after that when that is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.panes import Panes
from hailstorm.clock.watermark import BEGINNING
from hailstorm.clock.windows import Closing, Times
from hailstorm.columns import EVENT_TIME, HASH, KEY_HASH, MEMBERS, PANE, STATE, TIME, UPDATED, WINDOW_END, WINDOW_START
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.fold import Cell, without_null_keys
from hailstorm.engine.stages.group import groups_of
from hailstorm.engine.stages.reduce import merged_states
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.engine.stages.waiting import DUE, Waiting
from hailstorm.engine.stages.windows import refuse_late, within_years
from hailstorm.ledger.arrays import order_of
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.lookup import Members
from hailstorm.ledger.runs import hashes_of, sort_by_hash


@dataclass(frozen=True)
class AssignPanes:
    """Each row once with its pane, as a window without length that begins there, where one of its windows is open; and
    once for each window that has ended and still takes it."""

    step: str
    panes: Panes
    closing: Closing
    late: Outlet | None

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        refused: list[pa.RecordBatch] = []
        for batch in batches:
            batch = within_years(batch, self.step, self.panes.windows.reach, task)
            if batch.num_rows:
                yield from self._assigned(batch, task.watermark(self.step), refused)
        if refused:
            refuse_late(self.step, pa.Table.from_batches(refused), self.closing, self.late, task)

    def _assigned(self, batch: pa.RecordBatch, watermark: int | None, refused: list[pa.RecordBatch]) -> Batches:
        times = np.asarray(batch.column(EVENT_TIME).cast(pa.int64()))
        panes = self.panes.of(times)
        if watermark is None or times.min() >= watermark:  # a window ends after each of its moments
            yield _in_windows(batch, panes, panes)
            return
        known, number = _numbered(panes)
        index, _, end = self.panes.windows_of(known)
        first, last = np.full(len(known), np.iinfo(np.int64).max), np.full(len(known), BEGINNING)
        np.minimum.at(first, index, end)
        np.maximum.at(last, index, end)
        is_open = last[number] > watermark
        if is_open.any():
            yield _in_windows(batch.filter(pa.array(is_open)), panes[is_open], panes[is_open])
        late = np.flatnonzero(first[number] <= watermark)
        if not len(late):
            return
        index, start, end = self.panes.windows.of(times[late])
        taken = (end <= watermark) & (end + self.closing.accepts > watermark)
        missed = end + self.closing.accepts <= watermark
        if missed.any():
            refused.append(batch.take(pa.array(late[np.unique(index[missed])])))
        if taken.any():
            yield _in_windows(batch.take(pa.array(late[index[taken]])), start[taken], end[taken])


def _in_windows(rows: pa.RecordBatch, start: Times, end: Times) -> pa.RecordBatch:
    bounds = {WINDOW_START: pa.array(start).cast(TIME), WINDOW_END: pa.array(end).cast(TIME)}
    inner = {name: rows.column(name) for name in rows.schema.names if name not in bounds}
    return pa.RecordBatch.from_pydict({**inner, **bounds})


@dataclass(frozen=True)
class JoinPanes:
    """In: what AssignPanes gave, grouped, with states. Out: the windows that have ended, with what there is to merge
    into them; and those that are due to leave, without a state. Panes are written here."""

    waiting: Waiting
    panes: Panes
    cells: tuple[Cell, ...]
    one_task: bool

    phase = "merge"

    @property
    def key(self) -> tuple[str, ...]:
        return self.waiting.key

    @property
    def by(self) -> tuple[str, ...]:
        return self.key[:-2]

    @property
    def layout(self) -> Layout:
        return Layout(f"{self.waiting.step}.panes", (*self.by, PANE))

    def __call__(self, batches: Batches, task: Task) -> Batches:
        new, late, due = self._parted(batches, task)
        before = _Before.of(due, self, task)
        ended, due = self._ended(before, due, task)
        fresh = self._written(new, before, task)
        self._remember(fresh, before, task)
        rows = [part for part in (ended, late, due) if part is not None and part.num_rows]
        if rows:
            yield from self._windows(rows).to_batches()

    def _parted(self, batches: Batches, task: Task) -> tuple[pa.Table | None, pa.Table | None, pa.Table | None]:
        """The panes of this tick, the windows that late rows are for, and what is due."""
        kept = [batch for batch in batches if batch.num_rows]
        due = self.waiting.due(task) if self.one_task else None
        due = None if due is None else due.select(list(self.key))
        if not kept:
            return None, None, due
        rows = without_null_keys(self.waiting.step, self.by, pa.Table.from_batches(kept), task)
        if not self.one_task:  # then what is due has come with the others
            is_due = pc.is_null(rows.column(EVENT_TIME))
            due, rows = rows.filter(is_due), rows.filter(pc.invert(is_due))
            due = due.select(list(self.key))
        rows = self._with_states(rows)
        is_pane = pc.equal(rows.column(WINDOW_START), rows.column(WINDOW_END))
        return rows.filter(is_pane), rows.filter(pc.invert(is_pane)), due

    def _with_states(self, rows: pa.Table) -> pa.Table:
        """Spark may know that an item of a list is never null; the state does not."""
        for cell in self.cells:
            place = rows.column_names.index(STATE + cell.name)
            rows = rows.set_column(place, STATE + cell.name, rows.column(place).cast(cell.state_type))
        return rows

    def _ended(self, before: _Before, due: pa.Table | None, task: Task) -> tuple[pa.Table | None, pa.Table | None]:
        """The windows that have ended since the last tick, each as its panes merged; and what else is due."""
        watermark, reached = task.watermark(self.waiting.step), self._reached(task)
        if not len(before.panes) or watermark is None:
            return None, due
        index, start, end = self.panes.windows_of(before.panes.known)
        chosen = (end > reached) & (end <= watermark)
        index, start, end = index[chosen], start[chosen], end[chosen]
        # Each pane with each of its windows that end: the windows of one pane are neighbours in `index`.
        counts = np.bincount(index, minlength=len(before.panes.known))
        first = np.searchsorted(index, np.arange(len(counts)))
        if not counts.any():
            return None, due
        if counts.max() == 1:
            pane = np.flatnonzero((counts > 0)[before.panes.which])
            window = first[before.panes.which[pane]]
        else:
            times = counts[before.panes.which]
            pane = np.repeat(np.arange(len(before.panes)), times)
            within = np.arange(len(pane)) - np.repeat(np.cumsum(times) - times, times)
            window = first[before.panes.which[pane]] + within
        if not len(pane):
            return None, due
        # Two windows can end at once, where clocks skip an hour.
        which = np.unique(np.stack([start, end]), axis=1, return_inverse=True)[1].reshape(-1)
        group = before.panes.group[pane]
        if len(start) and which.max():
            group = group * (which.max() + 1) + which[window]
        if (group[1:] < group[:-1]).any():  # with one window per pane they are in order
            order = order_of(group)
            pane, window, group = pane[order], window[order], group[order]
        starts = _borders(group)
        firsts = pa.array(before.panes.group[pane[starts]])
        columns: dict[str, Any] = {name: before.keys.column(name).take(firsts) for name in self.by}
        columns[WINDOW_START] = pa.array(start[window[starts]]).cast(TIME)
        columns[WINDOW_END] = pa.array(end[window[starts]]).cast(TIME)
        for cell in self.cells:
            states = before.panes.column(STATE + cell.name, cell.state_type, pane)
            columns[STATE + cell.name] = merged_states(states, starts, cell)
        columns[EVENT_TIME] = columns[WINDOW_END]  # a window's row gets its time from the window
        return pa.table(columns), self._others(due, before, before.panes.group[pane[starts]], end[window[starts]])

    def _others(self, due: pa.Table | None, before: _Before, keys: Times, ends: Times) -> pa.Table:
        """What is due beside windows of these keys that end then: those are there already."""
        assert due is not None
        known, which = _numbered(np.concatenate([ends, np.asarray(due.column(WINDOW_END).cast(pa.int64()))]))
        there = keys * len(known) + which[: len(ends)]
        told = np.isin(before.of_due * len(known) + which[len(ends) :], there)
        return due.filter(pa.array(~told))

    def _written(self, new: pa.Table | None, before: _Before, task: Task) -> pa.Table | None:
        """Write the panes of this tick merged with those of before, and that those are gone that no open window holds
        any more. Gives those that were new."""
        state, parts, fresh = task.state(self.layout), [], None
        if new is not None and new.num_rows:
            wanted = {name: new.column(name) for name in (*self.by, *self._states, EVENT_TIME)}
            numbers, hashes = new.column(WINDOW_START).cast(pa.int64()), pa.array(self._hashes(new, self.by))
            rows = sort_by_hash(pa.table({**wanted, PANE: numbers, HASH: hashes})).combine_chunks()
            prior = state.prior(rows)
            columns: dict[str, Any] = {name: rows.column(name) for name in (HASH, *self.by, PANE)}
            for cell in self.cells:
                name = STATE + cell.name
                columns[name] = cell.combine(prior.column(name, cell.state_type), rows.column(name).combine_chunks())
            times = rows.column(EVENT_TIME).combine_chunks().cast(pa.int64())
            earlier = prior.column(UPDATED, TIME).cast(pa.int64())
            updated = pc.max_element_wise(times, earlier).cast(TIME)
            parts.append(pa.table({**columns, UPDATED: updated, _GONE: pa.repeat(False, rows.num_rows)}))
            fresh = rows.filter(pc.invert(prior.found()))
        gone = self._gone(before, task)
        if len(gone):
            keys = before.keys.take(pa.array(before.panes.group[gone]))
            columns = {name: keys.column(name) for name in (HASH, *self.by)}
            numbers = pa.array(before.panes.known[before.panes.which[gone]])
            columns |= {PANE: numbers, UPDATED: before.panes.column(UPDATED, TIME, gone)}
            parts.append(pa.table({**columns, _GONE: pa.repeat(True, len(gone))}))
        if parts:
            rows = sort_by_hash(pa.concat_tables(parts, promote_options="default")).combine_chunks()
            columns = {name: rows.column(name) for name in rows.column_names if name not in (UPDATED, _GONE)}
            state.write(columns, rows.column(UPDATED), rows.column(_GONE).combine_chunks())
        return fresh

    def _gone(self, before: _Before, task: Task) -> Times:
        watermark = task.watermark(self.waiting.step)
        if not len(before.panes) or watermark is None:
            return np.zeros(0, dtype=np.int64)
        index, _, end = self.panes.windows_of(before.panes.known)
        last = np.full(len(before.panes.known), BEGINNING)
        np.maximum.at(last, index, end)
        return np.flatnonzero((last <= watermark)[before.panes.which])

    def _remember(self, fresh: pa.Table | None, before: _Before, task: Task) -> None:
        """Write down, for new panes and for keys that were due, the next window that ends."""
        parts = []
        if fresh is not None and fresh.num_rows:
            known, which = _numbered(np.asarray(fresh.column(PANE)))
            parts.append((fresh.select([*self.by, HASH]), self._next_ends(known, task)[which]))
        if len(before.panes):
            ends = self._next_ends(before.panes.known, task)[before.panes.which]
            starts = _borders(before.panes.group)
            keys = before.keys.take(pa.array(before.panes.group[starts]))
            parts.append((keys.select([*self.by, HASH]), np.minimum.reduceat(ends, starts)))
        if not parts:
            return
        rows, ends = pa.concat_tables([rows for rows, _ in parts]), np.concatenate([ends for _, ends in parts])
        rows, ends = rows.filter(pa.array(ends != _NEVER)), ends[ends != _NEVER]
        if not rows.num_rows:
            return
        # Of each key the earliest one, in the order of time.
        by_time = order_of(ends)
        rows, ends = rows.take(pa.array(by_time)).combine_chunks(), ends[by_time]
        order, starts = groups_of(rows.select(list(self.by)), hashes_of(rows))
        chosen = np.sort(order[starts])
        rows, ends = rows.take(pa.array(chosen)), ends[chosen]
        windows = pa.array(ends).cast(TIME)
        start = self._starts(ends)
        columns = {HASH: pa.array(ends), **{name: rows.column(name) for name in self.by}}
        columns |= {WINDOW_START: pa.array(start).cast(TIME), WINDOW_END: windows, KEY_HASH: rows.column(HASH)}
        task.state(self.waiting.agenda).write(columns, windows)

    def _next_ends(self, panes: Times, task: Task) -> Times:
        """When the first of the open windows of each pane ends; never, where all have."""
        watermark = task.watermark(self.waiting.step)
        index, _, end = self.panes.windows_of(panes)
        still = end > (BEGINNING if watermark is None else watermark)
        found = np.full(len(panes), _NEVER)
        np.minimum.at(found, index[still], end[still])
        return found

    def _starts(self, ends: Times) -> Times:
        """When the windows begin that end then."""
        windows = self.panes.windows
        known, which = _numbered(ends)
        return windows.moment(windows.shown(known) - windows.size)[which]

    def _windows(self, parts: list[pa.Table]) -> pa.Table:
        """The rows for the look-up, which has one per window after ReduceStates."""
        made = []
        for rows in parts:
            is_due = EVENT_TIME not in rows.column_names
            columns: dict[str, Any] = {name: rows.column(name) for name in self.key}
            columns[HASH] = pa.array(self._hashes(rows, self.key))
            for cell in self.cells:
                name = STATE + cell.name
                columns[name] = pa.nulls(rows.num_rows, cell.state_type) if is_due else rows.column(name)
            columns[EVENT_TIME] = pa.nulls(rows.num_rows, TIME) if is_due else rows.column(EVENT_TIME)
            columns[DUE] = pa.repeat(is_due, rows.num_rows)
            columns[MEMBERS] = pa.nulls(rows.num_rows, pa.int64())
            made.append(pa.table(columns))
        return pa.concat_tables(made).combine_chunks()

    @property
    def _states(self) -> list[str]:
        return [STATE + cell.name for cell in self.cells]

    def _hashes(self, rows: pa.Table, columns: tuple[str, ...]) -> Any:
        return hash_columns([rows.column(name).combine_chunks() for name in columns], rows.num_rows)

    def _reached(self, task: Task) -> int:
        return task.order.reached.get(self.waiting.agenda.table, BEGINNING)


_GONE = "_is_gone"
_NEVER = np.iinfo(np.int64).max


def _borders(groups: Times) -> Times:
    """Where each of these groups of neighbours begins."""
    return np.concatenate(([0], np.flatnonzero(groups[1:] != groups[:-1]) + 1))


def _numbered(panes: Times) -> tuple[Times, Times]:
    """The different ones, which are few, and which of them each is."""
    encoded = pa.array(panes).dictionary_encode()
    return np.asarray(encoded.dictionary), np.asarray(encoded.indices).astype(np.int64)


@dataclass(frozen=True)
class _Before:
    """All panes of the keys that are due, as they were before this tick."""

    keys: pa.Table  # the keys, and their hash
    of_due: Times  # the key of each entry that is due
    panes: Members

    @staticmethod
    def of(due: pa.Table | None, stage: JoinPanes, task: Task) -> _Before:
        by = list(stage.by)
        if due is None or not due.num_rows:
            none = np.zeros(0, dtype=np.int64)
            return _Before(pa.table({}), none, Members(none, none, none))
        hashes = stage._hashes(due, stage.by)
        order, starts = groups_of(due.select(by), hashes)
        keys = due.select(by).append_column(HASH, pa.array(hashes)).take(pa.array(order[starts])).combine_chunks()
        begins = np.zeros(len(order), dtype=np.int64)
        begins[starts[1:]] = 1
        of_due = np.empty(len(order), dtype=np.int64)
        of_due[order] = np.cumsum(begins)
        return _Before(keys, of_due, task.state(stage.layout).numbered(keys, by, PANE))
