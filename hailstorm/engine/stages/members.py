"""Members: the rows behind each group of a fold of a table, for monoids that have no inverse.

When a table's row changes or goes, a maximum cannot be un-taken: the group is folded again from its members. They
are kept as state of their own, sorted by the hash of the group, so that finding them costs what the group is
large, not what the state is large.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.engine.stages.chain import Batches, Task
from hailstorm.engine.stages.fold import without_null_keys
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.lookup import all_members, look_up
from hailstorm.ledger.runs import (
    BUCKET,
    DELETED,
    HASH,
    UPDATED,
    buckets_of,
    first_of_each_key,
    hashes_of,
    merge_runs,
    sort_by_hash,
)

SIGN = "_sign"


def members_of(step: str) -> str:
    """The name under which a fold's members are kept. No user's step has a dot in its name."""
    return f"{step}.members"


@dataclass(frozen=True)
class ReplaceMembers:
    """In: signed rows of the upstream table with the `_hash` of their group, all rows of a group in one task.

    Out: every member of each group that changed, with `_live` true; a group that is now empty gives one row with
    `_live` false, so that the fold learns of it.
    """

    step: str
    by: tuple[str, ...]
    identity: tuple[str, ...]  # the upstream table's key
    columns: tuple[str, ...]  # all columns of the upstream table

    phase = "merge"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return
        signed = without_null_keys(self.step, self.by, pa.Table.from_batches(kept), task)
        if not signed.num_rows:
            return
        name, key = members_of(self.step), (*self.by, *self.identity)
        # An arrival hides the departure of the same member: sort arrivals first, then keep the first of each key.
        arrivals = signed.filter(pc.greater(signed.column(SIGN), 0))
        departures = signed.filter(pc.less(signed.column(SIGN), 0))
        rows = merge_runs([self._as_run(arrivals, False), self._as_run(departures, True)], key, drop_deleted=False)
        prior = task.open_runs(name)
        task.write_state(name, rows)
        groups = np.unique(hashes_of(rows))
        members = self._of_groups(merge_runs([rows, *all_members(groups, prior)], key, drop_deleted=True), rows)
        living = self._out(members, pa.repeat(True, members.num_rows))
        yield from living.to_batches()
        # By key and not by hash: a group may be gone while another one has the same hash.
        changed = self._out(rows, pa.repeat(False, rows.num_rows))
        newest = merge_runs([living, changed], self.by, drop_deleted=False)
        yield from newest.filter(pc.invert(newest.column("_live"))).to_batches()

    def _of_groups(self, members: pa.Table, rows: pa.Table) -> pa.Table:
        """The members of the groups of these rows. Members of others may have come along, where hashes are equal."""
        if not self.by:
            return members
        hashes = hashes_of(rows)
        keys = rows.select([HASH, *self.by])
        first = first_of_each_key(hashes, keys, np.arange(len(hashes)))
        groups = keys.filter(pa.array(first)).append_column(DELETED, pa.repeat(False, int(first.sum())))
        run = OpenRun(groups, hashes_of(groups), int(hashes[0]), int(hashes[-1]))
        return members.filter(look_up(members, self.by, [run]).found())

    def _as_run(self, rows: pa.Table, deleted: bool) -> pa.Table:
        columns = {BUCKET: buckets_of(hashes_of(rows)), HASH: rows.column(HASH)}
        columns |= {name: rows.column(name) for name in self.columns}
        columns |= {UPDATED: rows.column("_time"), DELETED: pa.repeat(deleted, rows.num_rows)}
        return sort_by_hash(pa.table(columns))

    def _out(self, rows: pa.Table, live: pa.Array) -> pa.Table:
        columns = {name: rows.column(name) for name in (*self.columns, HASH)}
        return pa.table({**columns, "_time": rows.column(UPDATED), "_live": live}).combine_chunks()
