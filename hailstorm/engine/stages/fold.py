"""Folds: look up what was, merge what is new, write what is.

`LookUp` takes one row per key with the state of this tick's rows, finds the prior state of just those keys, and
merges in Arrow what Arrow can merge. Where only Spark can, it passes both states on, and the JVM merges between
two passes. `WriteFold` writes the new totals as a sorted run, and the changes for whoever wants them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, FOUND, HASH, MEMBERS, OLD_VALUE, PRIOR, STATE, TIME, UPDATED
from hailstorm.engine.stages.deposit import hand_on
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.engine.stages.waiting import CLOSED, DUE, Waiting
from hailstorm.ledger.keyed_state import Layout, changes, unless
from hailstorm.ledger.runs import is_sorted, sort_by_hash


@dataclass(frozen=True)
class Cell:
    """One monoid of a fold, as the workers need it."""

    name: str
    state_type: pa.DataType
    value_type: pa.DataType
    own_state: bool  # the state differs from the value, and is stored beside it
    merge: Any  # (prior, delta) -> state, over Arrow arrays; None when the JVM merges
    present: Any  # state -> value, over an Arrow array; None when the JVM presents or the value is the state
    combine: Any = None  # (state, state) -> state, over Arrow arrays; None when the JVM combines

    @property
    def stored(self) -> str:
        return STATE + self.name if self.own_state else self.name


@dataclass(frozen=True)
class FoldShape:
    """A fold as its stages see it."""

    step: str
    key: tuple[str, ...]
    cells: tuple[Cell, ...]
    replaces: bool  # the input is the whole new state of each key, not a part to merge
    counts_members: bool  # a key without members is deleted: folds of tables
    sinks: tuple[str, ...]
    feeds: bool  # other steps read the changes
    times: bool  # and the times of rows matter to them
    waiting: Waiting | None = None  # of a fold whose rows wait for a time, or leave at one

    @property
    def layout(self) -> Layout:
        return Layout(self.step, self.key)


@dataclass(frozen=True)
class LookUp:
    """In: key, `_hash`, `_state_*`, `_time` and maybe `_members`. Out: what WriteFold takes, sorted by hash.

    Of a fold that waits for time, rows whose time has come are among them, without a state of their own.
    """

    fold: FoldShape

    phase = "look up"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        table = None
        if rows:
            table = without_null_keys(self.fold.step, self.fold.key, pa.Table.from_batches(rows), task)
            table = table if is_sorted(table) else sort_by_hash(table)
        if self.fold.waiting is not None:
            table = self.fold.waiting.with_due(table, self.fold.cells, task)
        if table is not None and table.num_rows:
            yield from self._looked_up(table, task).to_batches()

    def _looked_up(self, table: pa.Table, task: Task) -> pa.Table:
        fold = self.fold
        matches = task.state(fold.layout).prior(table)
        if fold.waiting is not None and table.column(EVENT_TIME).null_count:
            # An entry of an agenda is a hint: what it names may be gone by now.
            real = pc.or_(matches.found(), pc.is_valid(table.column(EVENT_TIME).combine_chunks()))
            if not pc.all(real).as_py():
                table = table.filter(real)
                matches = task.state(fold.layout).prior(table)
        # What has expired by the watermark is not there for the rows of this tick, whether or not it has left already.
        expired = None if fold.waiting is None else fold.waiting.expired(table, matches, task)
        columns: dict[str, Any] = {name: table.column(name) for name in (*fold.key, HASH)}
        # What is only due keeps the state that it has, also where a state is replaced.
        alone = pc.is_null(table.column(EVENT_TIME).combine_chunks()) if fold.replaces and fold.waiting else None
        for cell in fold.cells:
            delta = table.column(STATE + cell.name).combine_chunks()
            prior = (
                pa.nulls(len(delta), cell.state_type) if fold.replaces else matches.column(cell.stored, cell.state_type)
            )
            prior = prior if expired is None else unless(expired, prior)
            columns[STATE + cell.name] = delta if cell.merge is None else cell.merge(prior, delta)
            if alone is not None:
                before = matches.column(cell.stored, cell.state_type)
                columns[STATE + cell.name] = _where(alone, before, columns[STATE + cell.name])
            if cell.merge is None and not fold.replaces:
                columns[PRIOR + cell.name] = prior
            if cell.present is not None:
                columns[cell.name] = cell.present(columns[STATE + cell.name])
            columns[OLD_VALUE + cell.name] = matches.column(cell.name, cell.value_type)
        if fold.counts_members:
            members, before = table.column(MEMBERS).combine_chunks(), matches.column(MEMBERS, pa.int64())
            if not fold.replaces:
                members = pc.add(pc.coalesce(before, 0), pc.coalesce(members, 0))
            columns[MEMBERS] = members if alone is None else _where(alone, before, members)
        columns[FOUND] = matches.found()
        columns[EVENT_TIME] = table.column(EVENT_TIME)
        if not fold.replaces and (fold.waiting is None or fold.waiting.closing is None):  # windows have their own times
            # As integers: Arrow has no maximum of times with a zone.
            updated, before = table.column(EVENT_TIME).combine_chunks(), matches.column(UPDATED, TIME)
            before = before if expired is None else unless(expired, before)
            columns[EVENT_TIME] = pc.max_element_wise(updated.cast(pa.int64()), before.cast(pa.int64())).cast(TIME)
        if fold.waiting is not None:
            columns[DUE] = table.column(DUE)
            none = pa.nulls(table.num_rows, pa.bool_())
            columns[CLOSED] = matches.column(CLOSED, pa.bool_()) if fold.waiting.final else none
        return pa.table(columns).combine_chunks()


@dataclass(frozen=True)
class WriteFold:
    """The end of a fold: its run, and its changes for sinks and for those who read it."""

    fold: FoldShape

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if not rows:
            return
        table = pa.Table.from_batches(rows).combine_chunks()
        deleted = pc.less_equal(table.column(MEMBERS), 0) if self.fold.counts_members else None
        if self.fold.waiting is not None:
            self._write_waiting(self.fold.waiting, table, deleted, task)
            return
        if deleted is not None:
            # A key that came and went within the tick was never there.
            real = pc.or_(table.column(FOUND), pc.invert(deleted))
            table, deleted = table.filter(real), deleted.filter(real)
        if not table.num_rows:
            return
        self._write_state(table, deleted, task)
        if self.fold.sinks or self.fold.feeds:
            changed = self._changes(table, deleted)
            hand_on(self.fold.step, changed, self.fold.sinks, self.fold.feeds, task, self.fold.times)
        yield from ()

    def _write_waiting(self, waiting: Waiting, table: pa.Table, deleted: Any, task: Task) -> None:
        """What waits for a time is written and not shown; what leaves at one goes, with or without a word."""
        table = waiting.timed(table)
        fate = waiting.fate(table, deleted, task)
        closed = table.set_column(table.column_names.index(CLOSED), CLOSED, fate.closed)
        if pc.any(fate.leaves).as_py():
            real = pc.or_(table.column(FOUND), pc.invert(fate.leaves))
            self._write_state(closed.filter(real), fate.leaves.filter(real), task)
            waiting.forget_members(table.filter(fate.leaves), task)
        else:
            self._write_state(closed, None, task)
        waiting.remember(table, fate, task)
        if self.fold.sinks or self.fold.feeds:
            shown, fate = table.filter(fate.shown), fate.filter(fate.shown)
            shown = shown.set_column(shown.column_names.index(FOUND), FOUND, fate.was_shown)
            changed = self._changes(shown, fate.deleted)
            hand_on(self.fold.step, changed, self.fold.sinks, self.fold.feeds, task, self.fold.times)

    def _write_state(self, table: pa.Table, deleted: Any, task: Task) -> None:
        columns: dict[str, Any] = {name: table.column(name) for name in (HASH, *self.fold.key)}
        if self.fold.waiting is not None and self.fold.waiting.final:
            columns[CLOSED] = table.column(CLOSED)
        for cell in self.fold.cells:
            if cell.own_state:
                columns[cell.name] = table.column(cell.name)
            columns[cell.stored] = table.column(STATE + cell.name)
        if self.fold.counts_members:
            columns[MEMBERS] = table.column(MEMBERS)
        task.state(self.fold.layout).write(columns, table.column(EVENT_TIME), deleted)

    def _changes(self, table: pa.Table, deleted: Any) -> pa.Table:
        values = {c.name: table.column(c.name if c.own_state else STATE + c.name) for c in self.fold.cells}
        old = {c.name: table.column(OLD_VALUE + c.name) for c in self.fold.cells}
        return changes(
            {name: table.column(name) for name in self.fold.key},
            values,
            old,
            table.column(FOUND),
            deleted,
            table.column(EVENT_TIME),
            table.column(HASH),
            pa.repeat(True, table.num_rows) if self.fold.times else None,
        )


def _where(mask: pa.Array, yes: pa.Array, no: pa.Array) -> pa.Array:
    """As `if_else`, for every type."""
    if not pc.any(mask).as_py():
        return no
    places = np.arange(len(mask)) + np.where(np.asarray(mask), 0, len(mask))
    return pa.concat_arrays([yes, no.cast(yes.type)]).take(pa.array(places))


def without_null_keys(step: str, key: tuple[str, ...], table: pa.Table, task: Task) -> pa.Table:
    """The rows that have a key. Those behind the others become dead letters: the driver runs a job for them."""
    if not any(table.column(name).null_count for name in key):
        return table
    task.report.null_keys.append(step)
    valid = pc.is_valid(table.column(key[0]))
    for name in key[1:]:
        valid = pc.and_(valid, pc.is_valid(table.column(name)))
    return table.filter(valid)
