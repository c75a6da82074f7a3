"""Sliding windows that are shown when they end, over panes that they share (clock/panes.py).

A row goes to one pane, however many windows it is in. When a window ends, its panes of all keys are read and merged.
From there on it is a row of the fold like any other: shown, corrected, kept for a while. So open windows are nowhere as
rows; who reads them merges panes, too (ledger/open_windows.py).

A pane is over when the last of its windows has ended. Nobody says so: who reads panes leaves out those that are over,
and compaction drops them (`Live.past`).

A row that is late for some of its windows goes to those directly, as to the windows of any fold: they have ended, and
need their panes no more.

The agenda has an entry for each time at which a window ends: of no key, because it is about all of them. A new pane
writes the next such time down, and what is due writes the one after that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.panes import Panes
from hailstorm.clock.watermark import BEGINNING
from hailstorm.clock.windows import Closing, Times
from hailstorm.columns import EVENT_TIME, HASH, KEY_HASH, MEMBERS, PANE, STATE, TIME, UPDATED, WINDOW_END, WINDOW_START
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.exchange import range_from
from hailstorm.engine.stages.fold import Cell, without_null_keys
from hailstorm.engine.stages.reduce import ReduceStates
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.engine.stages.waiting import DUE, Waiting
from hailstorm.engine.stages.windows import refuse_late, within_years
from hailstorm.ledger.arrays import distinct
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.keyed_state import ALL_HASHES, KeyedState, Layout
from hailstorm.ledger.lookup import Between
from hailstorm.ledger.runs import Hashes, hashes_of, sort_by_hash


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
    by_types: tuple[tuple[str, pa.DataType], ...]  # the columns of the key but the window's bounds
    tasks: int
    hashed: bool  # the rows that come are sorted by the hash of these columns; else their `_hash` is another

    phase = "merge"

    @property
    def key(self) -> tuple[str, ...]:
        return self.waiting.key

    @property
    def by(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.by_types)

    @property
    def layout(self) -> Layout:
        return Layout(f"{self.waiting.step}.panes", (*self.by, PANE))

    def __call__(self, batches: Batches, task: Task) -> Batches:
        new, late, due, owned = self._parted(batches, task)
        is_due = task.due(self.waiting.agenda) is not None
        ended = self._ended(owned, task) if is_due else []
        self._write(new, task)
        self._remember(new, owned if is_due else None, task)
        rows = [part for part in (*ended, late, due) if part is not None and part.num_rows]
        if rows:
            yield from self._windows(rows).to_batches()

    def _parted(
        self, batches: Batches, task: Task
    ) -> tuple[pa.Table | None, pa.Table | None, pa.Table | None, Between]:
        """The panes of this tick, the windows that late rows are for, and what is due to leave; and the hashes of the
        keys that are this task's."""
        kept = [batch for batch in batches if batch.num_rows]
        if self.tasks == 1:
            due, owned = self.waiting.due(task, (self.waiting.expiry,)), ALL_HASHES
            due = None if due is None else due.select(list(self.key))
            if not kept:
                return None, None, due, owned
            rows = pa.Table.from_batches(kept)
        else:  # then what is due has come with the others, and so has where this task's range begins (due.py)
            rows = pa.Table.from_batches(kept)
            is_due, is_range = pc.is_null(rows.column(EVENT_TIME)), pc.is_null(rows.column(WINDOW_END))
            owned = range_from(hashes_of(rows.filter(is_range)), self.tasks)
            due = rows.filter(pc.and_(is_due, pc.invert(is_range))).select(list(self.key))
            rows = rows.filter(pc.invert(is_due))
        rows = self._with_states(without_null_keys(self.waiting.step, self.by, rows, task))
        is_pane = pc.equal(rows.column(WINDOW_START), rows.column(WINDOW_END))
        if pc.all(is_pane).as_py():
            return rows, None, due, owned
        return rows.filter(is_pane), rows.filter(pc.invert(is_pane)).drop_columns([HASH]), due, owned

    def _with_states(self, rows: pa.Table) -> pa.Table:
        """Spark may know that an item of a list is never null; the state does not."""
        for cell in self.cells:
            place = rows.column_names.index(STATE + cell.name)
            rows = rows.set_column(place, STATE + cell.name, rows.column(place).cast(cell.state_type))
        return rows

    def _ended(self, owned: Between, task: Task) -> list[pa.Table]:
        """The windows that have ended since the last tick, each as its panes merged."""
        watermark, state = task.watermark(self.waiting.step), task.state(self.layout)
        assert watermark is not None, "something is due"
        panes = state.numbers(PANE, owned)
        _, starts, ends = self.panes.windows_of(panes)
        chosen = (ends > task.order.reached.get(self.waiting.agenda.table, BEGINNING)) & (ends <= watermark)
        windows = sorted(set(zip(ends[chosen].tolist(), starts[chosen].tolist(), strict=True)))
        return [rows for end, start in windows for rows in self._window(start, end, owned, state)]

    def _window(self, start: int, end: int, owned: Between, state: KeyedState) -> Iterator[pa.Table]:
        """One window of each key that has panes in it. First each run's panes are merged, then those of all runs."""

        def is_in_it(panes: Times) -> npt.NDArray[np.bool_]:
            index, starts, ends = self.panes.windows_of(panes)
            return np.isin(np.arange(len(panes)), index[(starts == start) & (ends == end)])

        states = pa.schema([(STATE + cell.name, cell.state_type) for cell in self.cells])
        merge = ReduceStates(self.by, self.cells)
        parts = [merge.reduced(rows) for rows in state.numbered(PANE, is_in_it, states, owned)]
        if parts:
            rows = parts[0] if len(parts) == 1 else merge.reduced(pa.concat_tables(parts).combine_chunks())
            begin, close = (pa.repeat(pa.scalar(time, TIME), rows.num_rows) for time in (start, end))
            # A window's row gets its time from the window.
            bounds = {WINDOW_START: begin, WINDOW_END: close, EVENT_TIME: close}
            yield pa.table({**{name: rows.column(name) for name in (HASH, *self.by, *states.names)}, **bounds})

    def _write(self, new: pa.Table | None, task: Task) -> None:
        """Write the panes of this tick, merged with those of before."""
        if new is None or not new.num_rows:
            return
        state = task.state(self.layout)
        columns: dict[str, Any] = {name: new.column(name) for name in (*self.by, *self._states, EVENT_TIME)}
        columns[HASH] = new.column(HASH) if self.hashed else pa.array(self._hashes(new, self.by))
        rows = pa.table({**columns, PANE: new.column(WINDOW_START).cast(pa.int64())})
        rows = (rows if self.hashed else sort_by_hash(rows)).combine_chunks()
        prior = state.prior(rows)
        columns = {name: rows.column(name) for name in (HASH, *self.by, PANE)}
        for cell in self.cells:
            name = STATE + cell.name
            columns[name] = cell.combine(prior.column(name, cell.state_type), rows.column(name).combine_chunks())
        times = rows.column(EVENT_TIME).combine_chunks().cast(pa.int64())
        earlier = prior.column(UPDATED, TIME).cast(pa.int64())
        state.write(columns, pc.max_element_wise(times, earlier).cast(TIME))

    def _remember(self, new: pa.Table | None, due: Between | None, task: Task) -> None:
        """Write down when the next windows end: of the panes of this tick; where something was due, of all."""
        panes = np.zeros(0, dtype=np.int64) if due is None else task.state(self.layout).numbers(PANE, due)
        if new is not None and new.num_rows:
            panes = np.concatenate([panes, _numbered(np.asarray(new.column(WINDOW_START).cast(pa.int64())))[0]])
        watermark = task.watermark(self.waiting.step)
        index, _, end = self.panes.windows_of(panes)
        still = end > (BEGINNING if watermark is None else watermark)
        ends = np.full(len(panes), _NEVER)
        np.minimum.at(ends, index[still], end[still])
        ends = distinct(ends[ends != _NEVER])
        if not len(ends):
            return
        agenda = task.state(self.waiting.agenda)
        known = agenda.due(int(ends[0]) - 1, int(ends[-1]))
        if known is not None:  # an older Hailstorm wrote entries of single keys, which may be erased
            ends = np.setdiff1d(ends, hashes_of(known.filter(pc.is_null(known.column(KEY_HASH)))))
        if not len(ends):
            return
        windows = pa.array(ends).cast(TIME)
        columns = {HASH: pa.array(ends), **{name: pa.nulls(len(ends), type_) for name, type_ in self.by_types}}
        columns |= {WINDOW_START: pa.array(self._starts(ends)).cast(TIME), WINDOW_END: windows}
        agenda.write({**columns, KEY_HASH: pa.nulls(len(ends), pa.int64())}, windows)

    def _starts(self, ends: Times) -> Times:
        """When the windows begin that end then."""
        windows = self.panes.windows
        return windows.moment(windows.shown(ends) - windows.size)

    def _windows(self, parts: list[pa.Table]) -> pa.Table:
        """The rows for the look-up, which has one per window after ReduceStates."""
        made = []
        for rows in parts:
            is_due = EVENT_TIME not in rows.column_names
            columns: dict[str, Any] = {name: rows.column(name) for name in self.key}
            columns[HASH] = pa.array(self._hashes_of_windows(rows))
            for cell in self.cells:
                name = STATE + cell.name
                columns[name] = pa.nulls(rows.num_rows, cell.state_type) if is_due else rows.column(name)
            columns[EVENT_TIME] = pa.nulls(rows.num_rows, TIME) if is_due else rows.column(EVENT_TIME)
            columns[DUE] = pa.repeat(is_due, rows.num_rows)
            columns[MEMBERS] = pa.nulls(rows.num_rows, pa.int64())
            made.append(pa.table(columns))
        return pa.concat_tables(made).combine_chunks()

    def _hashes_of_windows(self, rows: pa.Table) -> Hashes:
        """Where rows have a hash, it is that of the key but the window."""
        if not self.by or HASH not in rows.column_names:
            return self._hashes(rows, self.key)
        bounds = [rows.column(name).combine_chunks() for name in (WINDOW_START, WINDOW_END)]
        return hash_columns(bounds, rows.num_rows, hashes_of(rows))

    @property
    def _states(self) -> list[str]:
        return [STATE + cell.name for cell in self.cells]

    def _hashes(self, rows: pa.Table, columns: tuple[str, ...]) -> Hashes:
        return hash_columns([rows.column(name).combine_chunks() for name in columns], rows.num_rows)


_NEVER = np.iinfo(np.int64).max


def _numbered(panes: Times) -> tuple[Times, Times]:
    """The different ones, which are few, and which of them each is."""
    encoded = pa.array(panes).dictionary_encode()
    return np.asarray(encoded.dictionary), np.asarray(encoded.indices).astype(np.int64)
