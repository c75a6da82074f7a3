"""Folds whose rows wait for a time: windows that close, and what leaves the state when its time is over.

A row of state has at most one entry in an agenda. When that is due, the row is looked up like one that has changed,
and its state decides: a window closes, an old one leaves, a key that was updated meanwhile is written down again for
later. So a tick costs what is due, and never what is pending.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.watermark import END
from hailstorm.clock.windows import Closing
from hailstorm.columns import EVENT_TIME, FOUND, HASH, KEY_HASH, MEMBERS, STATE, TIME, UPDATED, WINDOW_END
from hailstorm.engine.stages.task import Task
from hailstorm.ledger.keyed_state import Layout, is_among
from hailstorm.ledger.lookup import Matches
from hailstorm.ledger.runs import first_of_each_key, hashes_of, sort_by_hash

DUE = "_due"  # an entry of an agenda has made it so
CLOSED = "_closed"  # of a final window: true once it was shown, else null


class StateCell(Protocol):
    """What is needed of a fold's cell (fold.py)."""

    @property
    def state_type(self) -> pa.DataType: ...

    @property
    def name(self) -> str: ...


class Behind(Protocol):
    """The rows behind those of a fold of a table (members.py, table_sessions.py)."""

    def forget(self, left: pa.Table, task: Task) -> None: ...


@dataclass(frozen=True)
class Fate:
    """What becomes of each row of a tick."""

    shown: pa.Array  # its change goes on to sinks and readers
    was_shown: pa.Array  # they have its row of before
    deleted: pa.Array  # they are told that it is gone
    leaves: pa.Array  # it leaves the state
    closed: pa.Array  # its window has been shown: true, or null

    def filter(self, mask: Any) -> Fate:
        return Fate(**{field.name: getattr(self, field.name).filter(mask) for field in fields(self)})


@dataclass(frozen=True)
class Waiting:
    """Of windows: `closing`. Of a fold with a time to live: `ttl`, in microseconds."""

    step: str
    key: tuple[str, ...]
    one_task: bool
    closing: Closing | None = None
    ttl: int | None = None
    members: Behind | None = None  # the rows behind each row of state, which leave with it

    @property
    def final(self) -> bool:
        return self.closing is not None and self.closing.emit == "final"

    @property
    def accepts(self) -> int:
        """How long after its end a window can still change."""
        return self.closing.accepts if self.closing is not None else 0

    @property
    def agenda(self) -> Layout:
        """When windows close."""
        return Layout(f"{self.step}.agenda", self.key, "event")

    @property
    def expiry(self) -> Layout:
        """When rows leave the state."""
        return Layout(f"{self.step}.expiry", self.key, "expiry")

    @property
    def agendas(self) -> tuple[Layout, ...]:
        return (self.agenda, self.expiry) if self.final else (self.expiry,)

    def due(self, task: Task, agendas: Sequence[Layout] | None = None) -> pa.Table | None:
        """The keys that are due, each once, sorted by hash; of all agendas, or of these. None where Spark brings them
        with the rows of a tick."""
        if not self.one_task:
            return None
        return self.each_once(
            [
                rows.select([*self.key, KEY_HASH]).rename_columns([*self.key, HASH])
                for agenda in (self.agendas if agendas is None else agendas)
                if (rows := task.due(agenda)) is not None and rows.num_rows
            ]
        )

    def each_once(self, entries: list[pa.Table]) -> pa.Table | None:
        """A window may close and leave at once, and then it has an entry in each agenda."""
        if not entries:
            return None
        rows = sort_by_hash(pa.concat_tables(entries))
        first = first_of_each_key(hashes_of(rows), rows.select(list(self.key)), np.arange(rows.num_rows))
        return rows.filter(pa.array(first))

    def with_due(self, rows: pa.Table | None, cells: Sequence[StateCell], task: Task) -> pa.Table | None:
        """The tick's rows, one per key and sorted by hash, and those that are due. The latter have no time."""
        if rows is not None and DUE in rows.column_names:  # sessions, which know it already
            return rows
        due = self.due(task)
        if rows is not None and not self.one_task:  # then they have come with the others (plan/fold.py)
            is_due = pc.is_null(rows.column(EVENT_TIME))
            due = self.each_once([rows.filter(is_due).select([*self.key, HASH])])
            rows = rows.filter(pc.invert(is_due))
        if due is None or not due.num_rows:
            return None if rows is None else rows.append_column(DUE, pa.repeat(False, rows.num_rows))
        if rows is None:
            states = {STATE + cell.name: pa.nulls(due.num_rows, cell.state_type) for cell in cells}
            nothing = {**states, MEMBERS: pa.nulls(due.num_rows, pa.int64())}
            nothing |= {EVENT_TIME: pa.nulls(due.num_rows, TIME), DUE: pa.repeat(True, due.num_rows)}
            return pa.table({**{name: due.column(name) for name in due.column_names}, **nothing})
        both = rows.append_column(DUE, is_among(rows, due, self.key))
        alone = due.filter(pc.invert(is_among(due, rows, self.key)))
        alone = alone.append_column(DUE, pa.repeat(True, alone.num_rows))
        return sort_by_hash(pa.concat_tables([both, alone], promote_options="default"))

    def timed(self, table: pa.Table) -> pa.Table:
        """The time of a window's row is the last moment of the window."""
        if self.closing is None:
            return table
        last = pc.subtract(table.column(WINDOW_END).cast(pa.int64()), 1).cast(TIME)
        return table.set_column(table.column_names.index(EVENT_TIME), EVENT_TIME, last)

    def fate(self, table: pa.Table, deleted: Any, task: Task) -> Fate:
        count = table.num_rows
        none = np.zeros(count, dtype=np.bool_)
        gone = none if deleted is None else np.asarray(deleted)
        found = np.asarray(table.column(FOUND))
        watermark = task.watermark(self.step)
        ended, over = none, none
        if watermark is not None:
            times = self._times(table)
            ended = times <= watermark
            over = times + self._kept <= watermark if watermark != END else none
        if self.closing is None:
            leaves = gone | over
            # A key whose rows came too late for it to live was never there. They are rows that nobody sees: late ones.
            never = int((over & ~found & ~gone).sum())
            if never:
                task.report.late[self.step] = task.report.late.get(self.step, 0) + never
            return _fate(found | ~leaves, found, leaves, leaves, none)
        was_closed = np.asarray(pc.fill_null(table.column(CLOSED), False)) if self.final else found
        # What only leaves after its time says nothing; what ends and leaves at once is shown once.
        shown = (ended & ~was_closed & ~gone) | (was_closed & ~over) if self.final else ~(over & found)
        return _fate(shown, was_closed, gone, gone | over, ended)

    def expired(self, table: pa.Table, prior: Matches, task: Task) -> pa.Array | None:
        """Which rows of a tick meet a state whose time to live is over; None when none can."""
        watermark = task.watermark(self.step)
        if self.ttl is None or watermark is None or watermark == END:
            return None
        over = pc.less_equal(prior.column(UPDATED, TIME).cast(pa.int64()), watermark - self.ttl)
        return pc.and_(pc.fill_null(over, False), pc.is_valid(table.column(EVENT_TIME).combine_chunks()))

    def remember(self, table: pa.Table, fate: Fate, task: Task) -> None:
        """Write down when the rows that stay are due next."""
        stays = ~np.asarray(fate.leaves)
        found, due = np.asarray(table.column(FOUND)), np.asarray(table.column(DUE))
        times = self._times(table)
        if self.final:
            ended, was_shown = np.asarray(pc.fill_null(fate.closed, False)), np.asarray(fate.was_shown)
            self._write(self.agenda, table, stays & ~found & ~ended, times, task)
            self._write(self.expiry, table, stays & ended & ~was_shown, times + self._kept, task)
        elif self.closing is not None:
            self._write(self.expiry, table, stays & ~found, times + self._kept, task)
        else:
            self._write(self.expiry, table, stays & (~found | due), times + self._kept, task)

    def forget_members(self, left: pa.Table, task: Task) -> None:
        """What leaves the state takes the rows behind it along."""
        if self.members is not None and left.num_rows:
            self.members.forget(left, task)

    @property
    def _kept(self) -> int:
        return self.closing.keep if self.closing is not None else self.ttl or 0

    def _times(self, table: pa.Table) -> Any:
        """From which a row's time is counted: the end of its window, or its last update."""
        return np.asarray(table.column(EVENT_TIME if self.closing is None else WINDOW_END).cast(pa.int64()))

    def _write(self, agenda: Layout, table: pa.Table, rows: Any, times: Any, task: Task) -> None:
        if not rows.any():
            return
        watermark = task.watermark(self.step)
        # What is due at once, by a time that has passed, is due at the next one.
        due = times[rows] if watermark is None or watermark == END else np.maximum(times[rows], watermark + 1)
        chosen = table.select([*self.key, HASH, EVENT_TIME]).filter(pa.array(rows))
        columns = {HASH: pa.array(due), **{name: chosen.column(name) for name in self.key}}
        task.state(agenda).write({**columns, KEY_HASH: chosen.column(HASH)}, chosen.column(EVENT_TIME))


def _fate(shown: Any, was_shown: Any, deleted: Any, leaves: Any, closed: Any) -> Fate:
    closed_or_null = pa.array(closed, mask=~closed)
    return Fate(pa.array(shown), pa.array(was_shown), pa.array(deleted), pa.array(leaves), closed_or_null)
