"""Top of each group: the n first rows of every group of a table, kept exactly under updates and deletes.

The state holds every row of the table, sorted by the hash of its group, and of the first n their rank; the others wait
and are not shown. A change ranks its group again: the work follows the sizes of the groups that change, and not the
number of groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import BUCKET, DELETED, EVENT_TIME, SIGN, TIME, UPDATED
from hailstorm.engine.stages.deposit import hand_on
from hailstorm.engine.stages.group import groups_of
from hailstorm.engine.stages.ranking import BY, RANK, Ranking, changes_of_shown, ranking_of
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.equality import equal_values
from hailstorm.ledger.keyed_state import is_among
from hailstorm.ledger.lookup import look_up
from hailstorm.ledger.runs import hashes_of, shaped, sort_by_hash


@dataclass(frozen=True, kw_only=True)
class KeepTopOfGroups(Ranking):
    """In: rows of the table that come (`_sign` 1) and go (-1), with `_by` and the `_hash` of their group.

    All rows of a group are in one task.
    """

    per: tuple[str, ...]

    def _arrived(self, batches: Batches) -> pa.Table:
        """One row per member, as in a run: an arrival hides the departure of the same one."""
        schema = pa.schema([*self.schema, (EVENT_TIME, TIME), (SIGN, pa.int64())])
        # Spark may know that an item of a list is never null; the state does not.
        kept = list(batches)
        signed = sort_by_hash(shaped(pa.Table.from_batches(kept), schema)) if kept else schema.empty_table()
        came, went = (signed.filter(mask(signed.column(SIGN), 0)) for mask in (pc.greater, pc.less))
        gone = went.filter(pc.invert(is_among(went, came, self.key)))
        rows = sort_by_hash(pa.concat_tables([came, gone]).combine_chunks())
        deleted = pc.less(rows.column(SIGN), 0)
        columns = {name: rows.column(name) for name in self.schema.names}
        return pa.table({**columns, UPDATED: rows.column(EVENT_TIME), DELETED: deleted})

    def _update(self, arrived: pa.Table, task: Task) -> None:
        state = task.state(self.layout)
        earlier = any(run.seq < task.order.seq for run in task.order.runs.get(self.table, ()))
        if state.is_empty and earlier and not self.refilling:
            task.report.refill.append(self.step)  # a top that is new to an old table has to see all of it
            return
        if not arrived.num_rows:
            return
        known = pa.schema([*self.schema, (UPDATED, TIME), (RANK, pa.int32())])
        found = state.members(arrived, self.per)
        before = known.empty_table() if found is None else shaped(found, known)
        stayed = before.filter(pc.invert(is_among(before, arrived, self.key)))
        came = arrived.filter(pc.invert(arrived.column(DELETED)))
        names = [*self.schema.names, UPDATED]
        after = self._ranked(pa.concat_tables([stayed.select(names), came.select(names)]).combine_chunks())
        self._write(before, after, task)

    def _ranked(self, rows: pa.Table) -> pa.Table:
        """Sorted by hash, with the rank of the first n of each group."""
        if not rows.num_rows:
            return rows.append_column(RANK, pa.array([], pa.int32()))
        order, starts = groups_of(rows.select(list(self.per)), hashes_of(rows))
        begins = np.zeros(len(order), dtype=np.int64)
        begins[starts[1:]] = 1
        groups = np.empty(len(order), dtype=np.int64)
        groups[order] = np.cumsum(begins)
        keyed, by = ranking_of(rows, self.key, pa.array(groups))
        sorted_ = pc.sort_indices(keyed, sort_keys=by)
        # Groups are numbered in the order of their hashes, so the rows are sorted by hash, too.
        sizes = np.diff(np.append(starts, len(order)))
        ranks = (np.arange(len(order)) - np.repeat(starts, sizes) + 1).astype(np.int32)
        return rows.take(sorted_).append_column(RANK, pa.array(ranks, mask=ranks > self.n))

    def _write(self, before: pa.Table, after: pa.Table, task: Task) -> None:
        gone = before.filter(pc.invert(is_among(before, after, self.key)))
        names = after.column_names
        rows = sort_by_hash(pa.concat_tables([after, gone.select(names)]).combine_chunks())
        deleted = pc.invert(is_among(rows, after, self.key))
        prior = look_up(rows, self.key, [OpenRun.of(before)])
        same = [
            equal_values(rows.column(name), prior.column(name, rows.schema.field(name).type))
            for name in (*self.values, BY, RANK, UPDATED)
        ]
        changed = pc.or_(deleted, pc.invert(reduce(pc.and_, same, prior.found())))
        written, gone_mask = rows.filter(changed), deleted.filter(changed)
        if not written.num_rows:
            return
        columns = {name: written.column(name) for name in names if name not in (UPDATED, BUCKET)}
        task.state(self.layout).write(columns, written.column(UPDATED), gone_mask)
        if self.sinks or self.feeds:
            hand_on(self.step, self._changes(written, gone_mask, before), self.sinks, self.feeds, task, self.times)

    def _changes(self, rows: pa.Table, deleted: pa.Array, before: pa.Table) -> pa.Table:
        """What became of the rows that are shown, or were."""
        prior = look_up(rows, self.key, [OpenRun.of(before)])
        was = pc.is_valid(prior.column(RANK, pa.int32()))
        is_ = pc.and_(pc.is_valid(rows.column(RANK).combine_chunks()), pc.invert(deleted))
        seen = pc.or_(was, is_)
        rows, was, is_ = rows.filter(seen).combine_chunks(), was.filter(seen), is_.filter(seen)
        prior = look_up(rows, self.key, [OpenRun.of(before)])
        return changes_of_shown(rows, prior, self.key, self.values, was, pc.invert(is_), self.times)
