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

from hailstorm.engine.stages.chain import Batches, Task
from hailstorm.engine.stages.read import HIDDEN, TIME
from hailstorm.ledger.lookup import look_up
from hailstorm.ledger.runs import BUCKET, DELETED, HASH, UPDATED, buckets_of, hashes_of, sort_by_hash

STATE, PRIOR, OLD, FOUND, MEMBERS = "_state_", "_prior_", "_old_", "_found", "_members"


@dataclass(frozen=True)
class Cell:
    """One monoid of a fold, as the workers need it."""

    name: str
    state_type: pa.DataType
    value_type: pa.DataType
    own_state: bool  # the state differs from the value, and is stored beside it
    merge: Any  # (prior, delta) -> state, over Arrow arrays; None when the JVM merges
    present: Any  # state -> value, over an Arrow array; None when the JVM presents or the value is the state

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
    feeds: bool  # steps of a later wave read the changes
    forwards: bool  # the one step that reads the changes comes next in the same pass


@dataclass(frozen=True)
class LookUp:
    """In: key, `_hash`, `_state_*`, `_time` and maybe `_members`. Out: what WriteFold takes, sorted by hash."""

    fold: FoldShape

    phase = "look up"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if not rows:
            return
        table = without_null_keys(self.fold.step, self.fold.key, pa.Table.from_batches(rows), task)
        if table.num_rows:
            yield from self._looked_up(_sorted(table), task).to_batches()

    def _looked_up(self, table: pa.Table, task: Task) -> pa.Table:
        fold = self.fold
        matches = look_up(table, fold.key, task.open_runs(fold.step))
        columns: dict[str, Any] = {name: table.column(name) for name in (*fold.key, HASH)}
        for cell in fold.cells:
            delta = table.column(STATE + cell.name).combine_chunks()
            prior = (
                pa.nulls(len(delta), cell.state_type) if fold.replaces else matches.column(cell.stored, cell.state_type)
            )
            columns[STATE + cell.name] = delta if cell.merge is None else cell.merge(prior, delta)
            if cell.merge is None and not fold.replaces:
                columns[PRIOR + cell.name] = prior
            if cell.present is not None:
                columns[cell.name] = cell.present(columns[STATE + cell.name])
            columns[OLD + cell.name] = matches.column(cell.name, cell.value_type)
        if fold.counts_members:
            members = table.column(MEMBERS).combine_chunks()
            if not fold.replaces:
                members = pc.add(pc.coalesce(matches.column(MEMBERS, pa.int64()), 0), members)
            columns[MEMBERS] = members
        columns[FOUND] = matches.found()
        # As integers: Arrow has no maximum of times with a zone.
        updated, before = table.column("_time").combine_chunks(), matches.column(UPDATED, TIME)
        columns["_time"] = pc.max_element_wise(updated.cast(pa.int64()), before.cast(pa.int64())).cast(TIME)
        return pa.table(columns).combine_chunks()


@dataclass(frozen=True)
class WriteFold:
    """The end of a fold: its run, and its changes to outboxes, to scratch, or to the next stage."""

    fold: FoldShape

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if not rows:
            return
        table = pa.Table.from_batches(rows).combine_chunks()
        deleted = pc.less_equal(table.column(MEMBERS), 0) if self.fold.counts_members else None
        if deleted is not None:
            # A key that came and went within the tick was never there.
            real = pc.or_(table.column(FOUND), pc.invert(deleted))
            table, deleted = table.filter(real), deleted.filter(real)
        if not table.num_rows:
            return
        self._write_state(table, deleted, task)
        if self.fold.sinks or self.fold.feeds or self.fold.forwards:
            changes = self._changes(table, deleted)
            if changes.num_rows:
                write_changes(self.fold.step, changes, self.fold.sinks, self.fold.feeds, task)
                if self.fold.forwards:
                    yield from changes.to_batches()

    def _write_state(self, table: pa.Table, deleted: Any, task: Task) -> None:
        columns: dict[str, Any] = {BUCKET: buckets_of(hashes_of(table)), HASH: table.column(HASH)}
        columns |= {name: table.column(name) for name in self.fold.key}
        for cell in self.fold.cells:
            if cell.own_state:
                columns[cell.name] = _unless(deleted, table.column(cell.name))
            columns[cell.stored] = _unless(deleted, table.column(STATE + cell.name))
        if self.fold.counts_members:
            columns[MEMBERS] = table.column(MEMBERS)
        columns[UPDATED] = table.column("_time")
        columns[DELETED] = pa.array(np.zeros(table.num_rows, dtype=np.bool_)) if deleted is None else deleted
        task.write_state(self.fold.step, pa.table(columns).combine_chunks())

    def _changes(self, table: pa.Table, deleted: Any) -> pa.Table:
        values = {c.name: table.column(c.name if c.own_state else STATE + c.name) for c in self.fold.cells}
        old = {c.name: table.column(OLD + c.name) for c in self.fold.cells}
        return change_rows(
            {name: table.column(name) for name in self.fold.key},
            values,
            old,
            table.column(FOUND),
            deleted,
            table.column("_time"),
            table.column(HASH),
        )


def without_null_keys(step: str, key: tuple[str, ...], table: pa.Table, task: Task) -> pa.Table:
    """The rows that have a key. Those behind the others become dead letters: the driver runs a job for them."""
    if not any(table.column(name).null_count for name in key):
        return table
    task.report.null_keys.append(step)
    valid = pc.is_valid(table.column(key[0]))
    for name in key[1:]:
        valid = pc.and_(valid, pc.is_valid(table.column(name)))
    return table.filter(valid)


def _sorted(table: pa.Table) -> pa.Table:
    hashes = hashes_of(table)
    return table if (hashes[1:] >= hashes[:-1]).all() else sort_by_hash(table)


def change_rows(
    key: dict[str, Any], values: dict[str, Any], old: dict[str, Any], found: Any, deleted: Any, time: Any, hashes: Any
) -> pa.Table:
    """Changes as they flow: key, new values, `_kind`, `_old`, hidden columns. Keys that stayed equal are left out."""
    count = len(found)
    if deleted is None:
        kind = pc.if_else(found, "update", "insert")
    else:
        kind = pc.if_else(deleted, "delete", pc.if_else(found, "update", "insert"))
        values = {name: _unless(deleted, column) for name, column in values.items()}
    equal = pa.array(np.ones(count, dtype=np.bool_))
    for name, value in values.items():
        same = _equal_values(value, old[name])
        equal = pc.and_(equal, same)
    changed = pc.invert(pc.and_(pc.equal(kind, "update"), equal))
    flat_old = [_one_chunk(old[name]) for name in values]
    old_struct = pa.StructArray.from_arrays(flat_old, names=list(values), mask=pc.invert(_one_chunk(found)))
    rows = pa.table(
        {
            **key,
            **values,
            "_kind": kind,
            "_old": old_struct,
            "_spout": pa.nulls(count, pa.string()),
            "_partition": pa.nulls(count, pa.int32()),
            "_offset": pa.nulls(count, pa.int64()),
            "_time": time,
            HASH: hashes,
        }
    )
    return rows.filter(changed).combine_chunks()


def write_changes(step: str, changes: pa.Table, sinks: tuple[str, ...], feeds: bool, task: Task) -> None:
    outbox = changes.drop_columns([*HIDDEN.names, HASH]) if sinks else None
    for sink in sinks:
        task.write_outbox(sink, outbox)
    if feeds:
        task.write_scratch(step, changes)


def _equal_values(new: Any, old: Any) -> Any:
    """Null-safe equality. Nested values, which Arrow does not compare, count as changed."""
    if pa.types.is_nested(new.type):
        return pa.array(np.zeros(len(new), dtype=np.bool_))
    both_null = pc.and_(pc.is_null(new), pc.is_null(old))
    return pc.or_(both_null, pc.fill_null(pc.equal(new, old), False))


def _unless(deleted: Any, column: Any) -> Any:
    """The column with nulls for keys that are gone: what their last rows made of it depends on how they were cut."""
    if deleted is None or not pc.any(deleted).as_py():
        return column
    gone = _one_chunk(deleted).to_numpy(zero_copy_only=False)
    return column.take(pa.array(np.arange(len(gone)), mask=gone))


def _one_chunk(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
