"""Top: the n first rows of a table, kept exactly under updates and deletes.

The state is a buffer of somewhat more than n rows, such that every row outside of it comes after all rows in it.
A row that falls below the buffer's last leaves it; when fewer than n are left, the buffer is filled again from the
table's whole state, which the driver arranges. Counts only grow, so for them that never happens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, KIND, TIME, UPDATED
from hailstorm.engine.stages.chain import Task
from hailstorm.engine.stages.deposit import hand_on
from hailstorm.engine.stages.ranking import BY, RANK, Ranking, changes_of_shown, ranking_of
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.equality import equal_values
from hailstorm.ledger.keyed_state import is_among
from hailstorm.ledger.lookup import Matches, look_up
from hailstorm.ledger.ordering import sortable
from hailstorm.ledger.runs import shaped, sort_by_hash

WHOLE = "_whole"  # whether the buffer holds every row that the table has


@dataclass(frozen=True)
class Buffer:
    """The rows near the top, in order. `whole`: the table has no others."""

    rows: pa.Table
    whole: bool


@dataclass(frozen=True, kw_only=True)
class KeepTop(Ranking):
    """In: changes of the table with their `_hash` and `_by`, all in one task."""

    by: str  # the column to order by

    def _arrived(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """The changes, with the columns of the buffer and `_kind`."""
        if not batches:
            return pa.schema([*self._columns, (KIND, pa.string())]).empty_table()
        rows = pa.Table.from_batches(batches)
        columns = {f.name: rows.column(self.by if f.name == BY else f.name) for f in self.schema}
        return pa.table({**columns, UPDATED: rows.column(EVENT_TIME), KIND: rows.column(KIND)}).combine_chunks()

    @property
    def _columns(self) -> pa.Schema:
        return pa.schema([*self.schema, (UPDATED, TIME)])

    def _update(self, arrived: pa.Table, task: Task) -> None:
        state = task.state(self.layout)
        known = pa.schema([*self._columns, (RANK, pa.int32()), (WHOLE, pa.bool_())])
        found = state.everything()
        before = known.empty_table() if found is None else shaped(found, known)
        empty = not before.num_rows
        if self.refilling:
            buffer = Buffer(before.slice(0, 0), True)
        elif empty:
            # Without a buffer the changes are all there is, if the table had no state before this tick.
            earlier = any(run.seq < task.order.seq for run in task.order.runs.get(self.table, ()))
            buffer = Buffer(before, not earlier)
        else:
            buffer = Buffer(before, bool(before.column(WHOLE)[0].as_py()))
        after = self._applied(buffer, arrived)
        # A top that is new to an old table has to see all of it, too.
        if not buffer.whole and (after.rows.num_rows < self.n or empty):
            task.report.refill.append(self.step)
            return
        limit = 2 * self.n + 50
        self._write(before, Buffer(after.rows.slice(0, limit), after.whole and after.rows.num_rows <= limit), task)

    def _applied(self, buffer: Buffer, arrived: pa.Table) -> Buffer:
        """The buffer after these changes, in order, and longer than it may be."""
        names = self._columns.names
        rows = sort_by_hash(buffer.rows.select(names))
        touching = sort_by_hash(arrived.filter(_has_hash_of(arrived, rows)))
        stayed = rows.filter(pc.invert(is_among(rows, touching, self.key)))
        coming = arrived.filter(pc.not_equal(arrived.column(KIND), "delete")).select(names)
        floor = None
        if not buffer.whole and rows.num_rows:
            floor = self._ordered(rows).slice(rows.num_rows - 1)
        near = self._nearest(coming, floor)
        pool = pa.concat_tables([stayed, near]).combine_chunks()
        if floor is None:
            # What was left out comes after all of these, so they are all there is only if nothing was.
            return Buffer(self._ordered(pool), buffer.whole and near.num_rows == coming.num_rows)
        rows = pa.concat_tables([pool, floor])
        mark = pa.array(np.arange(rows.num_rows) == pool.num_rows)
        ordered = self._ordered(rows.append_column("_mark", mark).combine_chunks())
        # The sort is stable: the floor itself, where it still is, comes before the mark. What comes after it leaves.
        return Buffer(ordered.slice(0, pc.index(ordered.column("_mark"), True).as_py()).select(names), False)

    def _nearest(self, coming: pa.Table, floor: pa.Table | None) -> pa.Table:
        """Those that can get into the buffer: a pass over all of them, before anything is sorted."""
        most = 2 * self.n + 51
        if coming.num_rows <= 4 * most:
            return coming
        if floor is not None:
            both = pa.concat_tables([coming.select([BY]), floor.select([BY])]).combine_chunks()
            first = sortable(both.column(BY).combine_chunks())[0]
            if first[len(first) - 1].is_valid:
                reaches = pc.fill_null(pc.greater_equal(first.slice(0, coming.num_rows), first[len(first) - 1]), False)
                coming = coming.filter(reaches)
        if coming.num_rows <= most:
            return coming
        keyed, order = ranking_of(coming, self.key)
        return coming.take(pc.select_k_unstable(keyed, k=most, sort_keys=order))

    def _ordered(self, rows: pa.Table) -> pa.Table:
        if rows.num_rows < 2:
            return rows
        keyed, order = ranking_of(rows, self.key)
        return rows.take(pc.sort_indices(keyed, sort_keys=order))

    def _write(self, before: pa.Table, after: Buffer, task: Task) -> None:
        count = after.rows.num_rows
        places = np.arange(1, count + 1, dtype=np.int32)
        new = sort_by_hash(after.rows.append_column(RANK, pa.array(places, mask=places > self.n)))
        prior = look_up(new, self.key, [OpenRun.of(before)])
        gone = before.filter(pc.invert(is_among(before, new, self.key)))
        flipped = bool(before.num_rows) and before.column(WHOLE)[0].as_py() != after.whole
        moved = new if flipped else new.filter(pc.invert(self._is_as_before(new, prior)))
        if not moved.num_rows and not gone.num_rows:
            return
        names = [*self._columns.names, RANK]
        rows = pa.concat_tables([moved.select(names), gone.select(names)]).combine_chunks()
        columns = {name: rows.column(name) for name in names if name != UPDATED}
        columns[WHOLE] = pa.repeat(after.whole, rows.num_rows)
        deleted = np.arange(rows.num_rows) >= moved.num_rows
        task.state(self.layout).write(columns, rows.column(UPDATED), pa.array(deleted))
        if self.sinks or self.feeds:
            hand_on(self.step, self._changes(before, new), self.sinks, self.feeds, task, self.times)

    def _is_as_before(self, new: pa.Table, prior: Matches) -> pa.Array:
        same = prior.found()
        for name in (*self.values, BY, RANK, UPDATED):
            column = new.column(name).combine_chunks()
            same = pc.and_(same, equal_values(column, prior.column(name, column.type)))
        return same

    def _changes(self, before: pa.Table, new: pa.Table) -> pa.Table:
        """What became of the n rows that are shown."""
        was, is_ = (rows.filter(pc.is_valid(rows.column(RANK))) for rows in (before, new))
        left = was.filter(pc.invert(is_among(was, is_, self.key)))
        columns = [HASH, *self.key, UPDATED, *self.values, RANK]
        all_ = sort_by_hash(pa.concat_tables([is_.select(columns), left.select(columns)]).combine_chunks())
        prior = look_up(all_, self.key, [OpenRun.of(was)])
        gone = pc.invert(is_among(all_, is_, self.key))
        return changes_of_shown(all_, prior, self.key, self.values, prior.found(), gone, self.times)


def _has_hash_of(rows: pa.Table, others: pa.Table) -> pa.Array:
    return pc.is_in(rows.column(HASH), value_set=others.column(HASH).combine_chunks())
