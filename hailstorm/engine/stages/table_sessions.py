"""Sessions of a table: its rows come, move and go, and so a session grows, is cut in two, or is no longer there.

The state of a part cannot be had from the state of the whole. So the rows behind the sessions of each key are kept, as
members are (members.py), and the sessions of a key are made again from them whenever one of its rows has changed. That
costs what the key has members. A session that has ended for good stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, MEMBERS, SIGN, TIME, UPDATED, WINDOW_END, WINDOW_START
from hailstorm.engine.stages.fold import without_null_keys
from hailstorm.engine.stages.group import groups_of
from hailstorm.engine.stages.members import LIVE, forget, newest_of_each
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.arrays import order_by
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import hashes_of, sort_by_hash

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class SessionMembers:
    """The rows behind the sessions of a step, by the key of the sessions, by the table's own key, and by time.

    By time, too: a row that moves leaves one session, and that may be forgotten in the same tick.
    """

    step: str
    by: tuple[str, ...]
    identity: tuple[str, ...]  # the upstream table's key
    gap: int

    @property
    def layout(self) -> Layout:
        return Layout(f"{self.step}.members", tuple(dict.fromkeys((*self.by, *self.identity, WINDOW_START))))

    def forget(self, left: pa.Table, task: Task) -> None:
        """Sessions that leave the state take their rows along. The rows of those that are others now stay."""
        left = left.filter(pc.greater(left.column(MEMBERS), 0))
        if not left.num_rows:
            return
        state = task.state(self.layout)
        rows = state.members(left.select([*self.by, HASH]), self.by)
        if rows is not None and rows.num_rows:
            forget(rows.filter(pa.array(self.in_sessions(rows, left))), state)

    def in_sessions(self, rows: pa.Table, oldest: pa.Table) -> npt.NDArray[np.bool_]:
        """Which members are in one of these sessions, the oldest of each key: sessions follow each other."""
        groups, of_sessions = self.numbered(rows, oldest)
        last = np.full(rows.num_rows + oldest.num_rows, np.iinfo(np.int64).min)
        np.maximum.at(last, of_sessions, _times(oldest.column(WINDOW_END)) - self.gap)
        return np.asarray(_times(rows.column(WINDOW_START)) <= last[groups])

    def numbered(self, *tables: pa.Table) -> list[Numbers]:
        """A number for the key of each row of each table, the same for equal keys."""
        rows = pa.concat_tables([table.select([*self.by, HASH]) for table in tables])
        order, firsts = groups_of(rows.select(list(self.by)), hashes_of(rows))
        begins = np.zeros(rows.num_rows, dtype=np.int64)
        begins[firsts[1:]] = 1
        numbers = np.empty(rows.num_rows, dtype=np.int64)
        numbers[order] = np.cumsum(begins)
        return np.split(numbers, np.cumsum([table.num_rows for table in tables])[:-1])


@dataclass(frozen=True)
class ReplaceSessions:
    """In: signed rows of the upstream table with the `_hash` of their key, all rows of a key in one task; each has its
    own time as `window_start`.

    Out: every member of each session that changed, with the bounds of the session and `_live` true; a session that is
    no longer there gives one row with `_live` false, so that the fold learns of it.
    """

    members: SessionMembers
    columns: tuple[str, ...]  # all columns of the upstream table
    accepts: int  # how long after its end a session can still change

    phase = "merge"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return
        members, step = self.members, self.members.step
        signed = sort_by_hash(without_null_keys(step, members.by, pa.Table.from_batches(kept), task))
        if not signed.num_rows:
            return
        state = task.state(members.layout)
        rows = newest_of_each(signed, members.layout.key)
        columns = {name: rows.column(name) for name in (HASH, *self.columns, WINDOW_START)}
        written = state.write(columns, rows.column(EVENT_TIME), pc.less(rows.column(SIGN), 0))
        live = state.members(written, members.by, also=[written])
        assert live is not None  # what was written, at least
        sessions = task.state(Layout(step, (*members.by, WINDOW_START, WINDOW_END)))
        before = sessions.members(written, members.by)
        if before is None:
            before = pa.table({**{name: live.column(name)[:0] for name in (*members.by, HASH)}, **_bounds([], [])})
        watermark = task.watermark(step)
        if watermark is not None and before.num_rows:
            over = _times(before.column(WINDOW_END)) + self.accepts <= watermark
            live = live.filter(pa.array(~members.in_sessions(live, before.filter(pa.array(over)))))
            before = before.filter(pa.array(~over))
        yield from self._changed(live, before, signed).to_batches()

    def _changed(self, live: pa.Table, before: pa.Table, signed: pa.Table) -> pa.Table:
        """The members of the sessions that are not as they were, and the sessions that are no longer there."""
        of_live, of_before, of_signed = self.members.numbered(live, before, signed)
        times = _times(live.column(WINDOW_START))
        order = order_by(of_live, times)
        key, time = of_live[order], times[order]
        begins = np.ones(len(order), dtype=np.bool_)
        begins[1:] = (key[1:] != key[:-1]) | (time[1:] - time[:-1] >= self.members.gap)
        places = np.flatnonzero(begins)
        session = np.cumsum(begins) - 1
        lasts = np.append(places[1:], len(order)) - 1 if len(order) else places
        starts, ends = time[places], time[lasts] + self.members.gap
        old_starts, old_ends = (_times(before.column(name)) for name in (WINDOW_START, WINDOW_END))
        was, remains = _in_both((key[places], starts, ends), (of_before, old_starts, old_ends))
        changed = ~was | _holding(key[places], starts, ends, of_signed, _times(signed.column(WINDOW_START)))
        wanted = changed[session]
        came = live.take(pa.array(order[wanted]))
        came = self._out(came, _bounds(starts[session[wanted]], ends[session[wanted]]), came.column(UPDATED), True)
        gone = before.filter(pa.array(~remains))
        bounds = {name: gone.column(name) for name in (WINDOW_START, WINDOW_END)}
        return pa.concat_tables([came, self._out(gone, bounds, gone.column(WINDOW_END), False, came.schema)])

    def _out(
        self, rows: pa.Table, bounds: dict[str, Any], times: Any, live: bool, like: pa.Schema | None = None
    ) -> pa.Table:
        columns = {
            name: rows.column(name) if like is None or name in self.members.by else _none(rows, like.field(name).type)
            for name in self.columns
        }
        hashes = {HASH: rows.column(HASH), EVENT_TIME: times, LIVE: pa.repeat(live, rows.num_rows)}
        return pa.table({**columns, **bounds, **hashes}).combine_chunks()


def _in_both(
    ones: tuple[Numbers, ...], others: tuple[Numbers, ...]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which of the ones are among the others, and which of the others among the ones."""
    both = np.stack([np.concatenate(pair) for pair in zip(ones, others, strict=True)])
    _, numbers = np.unique(both, axis=1, return_inverse=True)
    one, other = np.split(numbers.reshape(-1), [len(ones[0])])
    return np.isin(one, other), np.isin(other, one)


def _holding(keys: Numbers, starts: Numbers, ends: Numbers, of_times: Numbers, times: Numbers) -> Any:
    """Which sessions, sorted by key and start, one of these times is in."""
    held = np.zeros(len(keys), dtype=np.bool_)
    if not len(keys):
        return held
    is_time = np.repeat([0, 1], [len(keys), len(times)])
    order = order_by(np.concatenate([keys, of_times]), np.concatenate([starts, times]), is_time)
    last = np.empty(len(order), dtype=np.int64)
    last[order] = np.cumsum(is_time[order] == 0) - 1  # the last session that begins at or before
    last = last[len(keys) :]
    inside = (last >= 0) & (keys[last] == of_times) & (times < ends[last])
    held[last[inside]] = True
    return held


def _times(column: Any) -> Numbers:
    return np.asarray(column.cast(pa.int64()))


def _bounds(starts: Any, ends: Any) -> dict[str, pa.Array]:
    return {
        name: pa.array(moments, pa.int64()).cast(TIME) for name, moments in ((WINDOW_START, starts), (WINDOW_END, ends))
    }


def _none(rows: pa.Table, type_: pa.DataType) -> pa.Array:
    return pa.nulls(rows.num_rows, type_)
