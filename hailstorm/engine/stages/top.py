"""Top: the n first rows of a table, kept exactly under updates and deletes.

The state is a buffer of somewhat more than n rows, such that every row outside of it comes after all rows in it.
A row that falls below the buffer's last leaves it; when fewer than n are left, the buffer is filled again from the
table's whole state, which the driver arranges. Counts only grow, so for them that never happens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cmp_to_key
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.engine.stages.chain import Batches, Task
from hailstorm.engine.stages.fold import change_rows, write_changes
from hailstorm.ledger.runs import BUCKET, DELETED, HASH, UPDATED, buckets_of, merge_runs, sort_by_hash

Row = dict[str, Any]


@dataclass(frozen=True)
class KeepTop:
    """In: changes of the table with their `_hash`, all in one task. Nothing flows out of it."""

    step: str
    table: str  # the table whose state refills the buffer
    n: int
    by: str  # the column to order by
    key: tuple[str, ...]
    values: tuple[str, ...]  # without rank
    schema: pa.Schema  # key, values, `_by`, `_hash`
    sinks: tuple[str, ...]
    feeds: bool

    phase = "merge"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        refilling = task.order.refill == self.table
        if rows or refilling:
            changes = pa.Table.from_batches(rows) if rows else None
            if changes is not None and self.by != "_by":
                changes = changes.append_column("_by", changes.column(self.by))
            self._update(changes, refilling, task)
        yield from ()

    def _update(self, changes: pa.Table | None, refilling: bool, task: Task) -> None:
        runs = task.open_runs(self.step)
        before: list[Row] = merge_runs([run.table for run in runs], self.key, True).to_pylist() if runs else []
        shown = {self._identity(row): row for row in before if row["rank"] is not None}
        if refilling:
            buffer, whole = {}, True
        else:
            buffer = {self._identity(row): row for row in before}
            # Without a buffer the changes are all there is, if the table had no state before this tick.
            earlier = any(run.seq < task.order.seq for run in task.order.runs.get(self.table, ()))
            whole = before[0]["_whole"] if before else not earlier
        arrived = self._candidates(changes, buffer, whole) if changes is not None else []
        buffer, touched = self._applied(buffer, arrived, whole)
        ordered = sorted(buffer.values(), key=cmp_to_key(self._order))
        # A top that is new to an old table has to see all of it, too.
        if not whole and (len(ordered) < self.n or not before):
            task.report.refill.append(self.step)
            return
        limit = 2 * self.n + 50
        whole = whole and len(ordered) <= limit
        if not touched and not refilling:
            return
        self._write(ordered[:limit], whole, shown, task)

    def _candidates(self, changes: pa.Table, buffer: dict[Any, Row], whole: bool) -> Any:
        """The changes that can matter: those of buffered rows, and those that reach the buffer's last row.

        An empty or whole buffer has no last row that counts; then it is what would be last of a full one.
        """
        by = changes.column("_by")
        if changes.num_rows <= 4 * self.n + 200 or pa.types.is_nested(by.type):
            return changes.to_pylist()
        if whole or not buffer:
            best = pc.select_k_unstable(changes, k=2 * self.n + 51, sort_keys=[("_by", "descending")])
            last = by.take(best)[-1]
        else:
            last = pa.scalar(max(buffer.values(), key=cmp_to_key(self._order))["_by"], by.type)
        if not last.is_valid:
            return changes.to_pylist()
        near = pc.fill_null(pc.greater_equal(by, last), False)
        known = pa.array([self._identity(row) in buffer for row in changes.select(list(self.key)).to_pylist()])
        return changes.filter(pc.or_(near, known)).to_pylist()

    def _applied(self, buffer: dict[Any, Row], arrived: list[Row], whole: bool) -> tuple[dict[Any, Row], bool]:
        floor = None if whole or not buffer else max(buffer.values(), key=cmp_to_key(self._order))
        touched = False
        for row in arrived:
            identity = self._identity(row)
            known = identity in buffer
            below = floor is not None and self._order(row, floor) > 0
            if row["_kind"] == "delete" or below:
                touched = touched or known
                buffer.pop(identity, None)
            else:
                buffer[identity] = row
                touched = True
        return buffer, touched

    def _write(self, ordered: list[Row], whole: bool, shown: dict[Any, Row], task: Task) -> None:
        ranked = [{**row, "rank": i + 1 if i < self.n else None} for i, row in enumerate(ordered)]
        task.report.replaced.append(self.step)
        if ranked:
            rows = self._table(ranked)
            hashes = rows.column(HASH).combine_chunks().to_numpy(zero_copy_only=False)
            rows = rows.append_column(BUCKET, buckets_of(hashes))
            rows = rows.append_column(DELETED, pa.repeat(False, rows.num_rows))
            task.write_state(self.step, sort_by_hash(rows.append_column("_whole", pa.repeat(whole, rows.num_rows))))
        changes = self._changes(shown, {self._identity(row): row for row in ranked if row["rank"] is not None})
        if changes is not None and (self.sinks or self.feeds):
            write_changes(self.step, changes, self.sinks, self.feeds, task)

    def _changes(self, before: dict[Any, Row], after: dict[Any, Row]) -> pa.Table | None:
        identities = [*after, *(identity for identity in before if identity not in after)]
        if not identities:
            return None
        names = (*self.values, "rank")
        new = self._table([after.get(i) or {**before[i], **dict.fromkeys(names)} for i in identities])
        old = self._table([before.get(i) or {} for i in identities])
        changes = change_rows(
            {name: new.column(name) for name in self.key},
            {name: new.column(name) for name in names},
            {name: old.column(name) for name in names},
            pa.array([i in before for i in identities]),
            pa.array([i not in after for i in identities]),
            new.column(UPDATED),
            new.column(HASH),
        )
        return changes if changes.num_rows else None

    def _table(self, rows: list[Row]) -> pa.Table:
        columns = {f.name: pa.array([row.get(f.name) for row in rows], f.type) for f in self.schema}
        updated = [row.get(UPDATED, row.get("_time")) for row in rows]
        ranks = pa.array([row.get("rank") for row in rows], pa.int32())
        return pa.table({**columns, "rank": ranks, UPDATED: pa.array(updated, pa.timestamp("us", tz="UTC"))})

    def _identity(self, row: Row) -> Any:
        return tuple(row[name] for name in self.key)

    def _order(self, a: Row, b: Row) -> int:
        """Largest first, nulls last, ties by key: a total order, so that every cut into ticks gives the same rows."""
        if a["_by"] != b["_by"]:
            if a["_by"] is None or b["_by"] is None:
                return 1 if a["_by"] is None else -1
            return -1 if a["_by"] > b["_by"] else 1
        left, right = self._identity(a), self._identity(b)
        return 0 if left == right else (-1 if left < right else 1)
