"""Top: the n first rows of a table, kept exactly under updates and deletes.

The state is a buffer of somewhat more than n rows, such that every row outside of it comes after all rows in it.
A row that falls below the buffer's last leaves it; when fewer than n are left, the buffer is filled again from the
table's whole state, which the driver arranges. Counts only grow, so for them that never happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, KIND, TIME, UPDATED
from hailstorm.engine.stages.deposit import hand_on
from hailstorm.engine.stages.ranking import BY, RANK, Ranking, changes_of_shown, ranking_of
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.arrays import flags, integers, numbers, order_of
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.equality import equal_values, one_chunk
from hailstorm.ledger.lookup import Matches, look_up
from hailstorm.ledger.ordering import sortable
from hailstorm.ledger.runs import Positions, hashes_of, shaped

WHOLE = "_whole"  # whether the buffer holds every row that the table has


@dataclass(frozen=True)
class Pool:
    """The rows that the next buffer is chosen from: some that `came`, and behind them those of the buffer `before`."""

    rows: pa.Table
    came: int
    prior: Positions  # of each that came, its place in the buffer; -1 where it has none
    before: pa.Table  # sorted by hash

    @cached_property
    def ranks(self) -> npt.NDArray[np.int64]:
        """Of the buffer: 0 for rows that are not shown."""
        return integers(one_chunk(self.before.column(RANK)).fill_null(0).cast(pa.int64()))

    def prior_of(self, places: Positions) -> Positions:
        """Where these rows are in the buffer; -1 for those that are new to it."""
        return np.append(self.prior, np.arange(self.before.num_rows))[places]

    def by_hash(self, places: Positions) -> Positions:
        return order_of(hashes_of(self.rows)[places])


@dataclass(frozen=True, kw_only=True)
class KeepTop(Ranking):
    """In: changes of the table with their `_hash` and `_by`, all in one task.

    A tick brings few rows to the top, so what counts is how often Arrow is called: rows are chosen by their places
    in one table, and looked up once.
    """

    by: str  # the column to order by

    def _arrived(self, batches: Batches) -> pa.Table:
        """The changes, with the columns of the buffer and `_kind`."""
        if not self.refilling:
            return self._in_columns(list(batches))
        # Of a whole table, the first rows so far are enough. They are more than a buffer takes as soon as one is left
        # out, so that the buffer does not hold every row is known as well.
        first = self._in_columns([])
        for batch in batches:
            rows = pa.concat_tables([first, self._in_columns([batch])]).combine_chunks()
            first = rows.take(numbers(self._nearest(rows, np.arange(rows.num_rows))))
        return first

    def _in_columns(self, batches: list[pa.RecordBatch]) -> pa.Table:
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
        before = known.empty_table() if found is None else shaped(found, known).combine_chunks()
        empty = not before.num_rows
        if self.refilling:
            whole = True
        elif empty:
            # Without a buffer the changes are all there is, if the table had no state before this tick.
            whole = not any(run.seq < task.order.seq for run in task.order.runs.get(self.table, ()))
        else:
            whole = bool(before.column(WHOLE)[0].as_py())
        pool, after, still_whole = self._applied(before, whole, arrived)
        # A top that is new to an old table has to see all of it, too.
        if not whole and (len(after) < self.n or empty):
            task.report.refill.append(self.step)
            return
        limit = 2 * self.n + 50
        self._write(pool, after[:limit], still_whole and len(after) <= limit, task)

    def _applied(self, before: pa.Table, whole: bool, arrived: pa.Table) -> tuple[Pool, Positions, bool]:
        """The buffer after these changes: rows of a pool in order, more than it may have; and whether these are all.

        `whole`: the table has no rows but those of the buffer. When it is filled again, the buffer does not count.
        """
        floored = not whole and bool(before.num_rows)
        prior = self._prior(arrived, before)
        comes = ~flags(one_chunk(pc.equal(arrived.column(KIND), "delete")))
        near = np.flatnonzero(comes & self._reaches(arrived, before) if floored else comes)
        chosen = self._nearest(arrived, near)
        names = self._columns.names
        rows = arrived.take(numbers(chosen)).select(names)
        pool = Pool(pa.concat_tables([rows, before.select(names)]).combine_chunks(), len(chosen), prior[chosen], before)
        order = self._order(pool.rows)
        if floored:
            # What comes after the last row of the buffer leaves. The sort is stable: a row that has come and is equal
            # to that one is before it.
            order = order[: np.flatnonzero(order >= pool.came)[-1] + 1]
        stays = np.ones(pool.rows.num_rows, dtype=np.bool_)
        if self.refilling:
            stays[pool.came :] = False
        stays[pool.came + prior[prior >= 0]] = False
        # What was left out comes after all of these, so they are all there is only if nothing was.
        return pool, order[stays[order]], whole and len(chosen) == len(near)

    def _prior(self, arrived: pa.Table, before: pa.Table) -> Positions:
        """Where the rows that have come are in the buffer; -1 for those that are not."""
        prior = np.full(arrived.num_rows, -1, dtype=np.int64)
        hashes, known = hashes_of(arrived), hashes_of(before)
        if not len(known):
            return prior
        touching = np.flatnonzero(known[np.minimum(np.searchsorted(known, hashes), len(known) - 1)] == hashes)
        touching = touching[order_of(hashes[touching])]
        rows = arrived.select([HASH, *dict.fromkeys(self.key)]).take(numbers(touching))
        for _, places, keys in look_up(rows, self.key, [OpenRun.of(before)]).parts:
            prior[touching[keys]] = places
        return prior

    def _reaches(self, arrived: pa.Table, before: pa.Table) -> npt.NDArray[np.bool_]:
        """Which of them can come before the last row of the buffer, by the first thing that they are ordered by."""
        both = pa.concat_arrays([one_chunk(rows.column(BY)) for rows in (arrived, before)])
        first = sortable(both)[0]
        those = first.slice(arrived.num_rows)
        if those.null_count:  # nulls are the last ones
            return np.ones(arrived.num_rows, dtype=np.bool_)
        last = those[pc.sort_indices(those)[0].as_py()]
        reaches = pc.greater_equal(first.slice(0, arrived.num_rows), last)
        return flags(reaches.fill_null(False) if reaches.null_count else reaches)

    def _nearest(self, arrived: pa.Table, near: Positions) -> Positions:
        """Those of the rows that can get into the buffer: a pass over all of them, before anything is sorted."""
        most = 2 * self.n + 51
        if len(near) <= 4 * most:
            return near
        keyed, order = ranking_of(arrived.take(numbers(near)), self.key)
        return near[integers(pc.select_k_unstable(keyed, k=most, sort_keys=order).cast(pa.int64()))]

    def _order(self, rows: pa.Table) -> Positions:
        keyed, order = ranking_of(rows, self.key)
        return integers(pc.sort_indices(keyed, sort_keys=order).cast(pa.int64()))

    def _write(self, pool: Pool, after: Positions, whole: bool, task: Task) -> None:
        before, prior = pool.before, pool.prior_of(after)
        ranks = np.arange(1, len(after) + 1)
        ranks[self.n :] = 0
        changed = ~self._is_as_before(pool, after, prior, ranks)
        if before.num_rows and before.column(WHOLE)[0].as_py() != whole:
            changed[:] = True
        moved = np.flatnonzero(changed)
        gone = np.setdiff1d(np.arange(before.num_rows), prior)
        if not len(moved) and not len(gone):
            return
        places = np.concatenate([after[moved], pool.came + gone])
        by_hash = pool.by_hash(places)
        rows = _ranked(pool.rows, places[by_hash], np.append(ranks[moved], np.zeros_like(gone))[by_hash])
        columns = {name: rows.column(name) for name in rows.column_names if name != UPDATED}
        columns[WHOLE] = pa.repeat(whole, rows.num_rows)
        deleted = pa.array(by_hash >= len(moved))
        task.state(self.layout).write(columns, rows.column(UPDATED), deleted)
        if self.sinks or self.feeds:
            changes = self._changes(pool, after[: self.n], prior[: self.n])
            hand_on(self.step, changes, self.sinks, self.feeds, task, self.times)

    def _is_as_before(self, pool: Pool, after: Positions, prior: Positions, ranks: Positions) -> npt.NDArray[np.bool_]:
        """Which rows of the next buffer are in this one as they are."""
        same = prior >= 0
        same[same] = pool.ranks[prior[same]] == ranks[same]
        (came,) = np.nonzero(same & (after < pool.came))
        for name in (*self.values, BY, UPDATED) if len(came) else ():
            is_, was = (numbers(places[came]) for places in (after, prior))
            equal = equal_values(pool.rows.column(name).take(is_), pool.before.column(name).take(was))
            same[came] &= flags(equal)
        return same

    def _changes(self, pool: Pool, shown: Positions, prior: Positions) -> pa.Table:
        """What became of the n rows that are shown. `prior`: where these are in the buffer before."""
        left = np.setdiff1d(np.flatnonzero(pool.ranks), prior)
        places, prior = np.append(shown, pool.came + left), np.append(prior, left)
        by_hash = pool.by_hash(places)
        ranks = np.append(np.arange(1, len(shown) + 1), np.zeros_like(left))
        rows, prior = _ranked(pool.rows, places[by_hash], ranks[by_hash]), prior[by_hash]
        was = np.append(pool.ranks, 0)[prior] > 0  # of -1: that 0
        (found,) = np.nonzero(was)
        matches = Matches(len(prior), ((OpenRun.of(pool.before), prior[found], found),))
        gone = pa.array(by_hash >= len(shown))
        return changes_of_shown(rows, matches, self.key, self.values, pa.array(was), gone, self.times)


def _ranked(rows: pa.Table, places: Positions, ranks: Positions) -> pa.Table:
    """The rows at these places, with their ranks; 0: none."""
    return rows.take(numbers(places)).append_column(RANK, pa.array(ranks.astype(np.int32), mask=ranks == 0))
