"""Lookups: the newest state row of each of many keys, vectorised.

The caller's rows and every run are sorted by `_hash`. Each run, newest first, is searched for the keys that are
still open with one `searchsorted`; then the keys themselves are compared, because equal hashes may hide different
keys. No Python runs per key and only rows that are found are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.columns import DELETED, HASH
from hailstorm.ledger.arrays import distinct, flags_at, integers, taken
from hailstorm.ledger.cache import Moments, OpenRun
from hailstorm.ledger.runs import Hashes, Positions, equal_keys, hashes_of, merge_runs, shaped


@dataclass(frozen=True)
class Matches:
    """For n keys: which row of which run holds each."""

    count: int
    parts: tuple[tuple[OpenRun, Positions, Positions], ...]  # run, places in the run, places among the keys
    _columns: dict[tuple[str, pa.DataType], pa.Array] = field(default_factory=dict)

    def column(self, name: str, type_: pa.DataType) -> pa.Array:
        """A column of the found rows, in the order of the keys; null where a key was not found."""
        if not self.parts:
            return pa.nulls(self.count, type_)
        column = name, type_
        if column not in self._columns:  # state and old value are often the same column
            pieces = [_taken(run, name, type_, places) for run, places, _ in self.parts]
            self._columns[column] = pa.concat_arrays(pieces).take(self._positions)
        return self._columns[column]

    def found(self) -> pa.Array:
        mask = np.zeros(self.count, dtype=np.bool_)
        for _, _, keys in self.parts:
            mask[keys] = True
        return pa.array(mask)

    @cached_property
    def _positions(self) -> pa.Array:
        at = np.full(self.count, -1, dtype=np.int64)
        offset = 0
        for _, places, keys in self.parts:
            at[keys] = np.arange(offset, offset + len(places))
            offset += len(places)
        return pa.array(at, mask=at < 0)


def _taken(run: OpenRun, name: str, type_: pa.DataType, places: Positions) -> pa.Array:
    if name not in run.table.schema.names:
        return pa.nulls(len(places), type_)  # a monoid that was added to the fold after this run was written
    column = run.table.column(name)
    if len(places) == len(column) and (places[1:] > places[:-1]).all():  # all of it
        found = column.combine_chunks()
    else:
        found = column.take(pa.array(places)).combine_chunks()
    return found if found.type == type_ else found.cast(type_)


def look_up(rows: pa.Table, key: Sequence[str], runs: Iterable[OpenRun], moment: str | None = None) -> Matches:
    """Find each of these rows' keys, in runs given newest first. `rows` are sorted by hash, one row a key.

    A key whose newest row is a tombstone is not found. `moment` is a time in the key: a row is looked for only in runs
    that hold its time, or, where runs have many, in those whose latest one is not before it. So a window that has just
    begun, or a session that has just grown, is looked for in none.
    """
    hashes, keys = hashes_of(rows), rows.select(list(key))
    open_ = np.arange(rows.num_rows, dtype=np.int64)
    is_open = np.ones(rows.num_rows, dtype=np.bool_)
    parts: list[tuple[OpenRun, Positions, Positions]] = []
    held_by = _asking_for(rows, moment)
    for run in runs:
        if not len(open_):
            break
        asked = held_by(run, open_)
        if not len(asked):
            continue
        wanted, places = _search(run, hashes, asked, keys, key)
        if not len(wanted):
            continue
        is_open[wanted] = False
        open_ = np.flatnonzero(is_open)
        deleted = _deleted_at(run, places)
        if deleted.any():
            wanted, places = wanted[~deleted], places[~deleted]
        parts.append((run, places, wanted))
    return Matches(rows.num_rows, tuple(parts))


def _deleted_at(run: OpenRun, places: Positions) -> npt.NDArray[np.bool_]:
    column = run.table.column(DELETED)
    return flags_at(column.chunk(0) if column.num_chunks == 1 else column.combine_chunks(), places)


def _asking_for(rows: pa.Table, column: str | None) -> Callable[[OpenRun, Positions], Positions]:
    """A function that picks those of the rows whose time a run may have."""
    if column is None:
        return lambda _, open_: open_
    moments = Moments.of(rows, column)
    if moments is not None:
        return lambda run, open_: _held_by(run, column, moments, open_)
    if not pa.types.is_timestamp(rows.schema.field(column).type) or rows.column(column).null_count:
        return lambda _, open_: open_  # a user's own column of that name
    times = integers(rows.column(column).cast(pa.int64()).combine_chunks())
    return lambda run, open_: open_[times[open_] <= run.latest(column)]


def _held_by(run: OpenRun, column: str, moments: Moments, rows: Positions) -> Positions:
    there = run.moments(column)
    held = None if there is None else np.isin(moments.known, there.known)
    if held is None or held.all():
        return rows
    return rows[held[moments.which[rows]]] if held.any() else rows[:0]


def _search(
    run: OpenRun, hashes: Hashes, open_: Positions, keys: pa.Table, key: Sequence[str]
) -> tuple[Positions, Positions]:
    """Which of the open keys this run holds, and where."""
    queries = hashes[open_]
    low = np.searchsorted(queries, run.first, side="left")
    high = np.searchsorted(queries, run.last, side="right")
    open_, queries = open_[low:high], queries[low:high]
    if not len(open_):
        return open_, open_
    places = np.searchsorted(run.hashes, queries)
    # No place is behind the last row, because no query is behind its hash.
    hit = np.flatnonzero(run.hashes[places] == queries)
    open_, places, queries = open_[hit], places[hit], queries[hit]
    if not len(open_) or not key:
        return open_, places
    run_keys = run.table.select(list(key))
    wanted, found = [], []
    while len(open_):
        same = equal_keys(run_keys, places, keys, open_)
        if same.all():
            wanted.append(open_)
            found.append(places)
            break
        wanted.append(open_[same])
        found.append(places[same])
        # The rest met another key with the same hash: look at the next row of that hash, if there is one.
        open_, places, queries = open_[~same], places[~same] + 1, queries[~same]
        more = places < len(run.hashes)
        more[more] = run.hashes[places[more]] == queries[more]
        open_, places, queries = open_[more], places[more], queries[more]
    if len(wanted) == 1:
        return wanted[0], found[0]
    return np.concatenate(wanted), np.concatenate(found)


def replaced_rows(older: OpenRun, newer: OpenRun, key: Sequence[str]) -> Positions:
    """The rows of a run whose keys a newer run holds. The work is that of looking up the smaller one's keys."""
    if len(newer.hashes) < len(older.hashes):
        return _search(older, newer.hashes, np.arange(len(newer.hashes)), newer.table.select(list(key)), key)[1]
    return _search(newer, older.hashes, np.arange(len(older.hashes)), older.table.select(list(key)), key)[0]


def all_members(hashes: Hashes, runs: Iterable[OpenRun], after: tuple[str, int] | None = None) -> list[pa.Table]:
    """Every row that has one of these (sorted, distinct) hashes, a table per run, in the order of the runs. `after`
    is a column of times and a moment: only rows whose time is later."""
    found = []
    for run in runs:
        if not len(run.hashes) or (after is not None and run.latest(after[0]) <= after[1]):
            continue
        first = np.searchsorted(run.hashes, hashes)
        there = np.flatnonzero(run.hashes[np.minimum(first, len(run.hashes) - 1)] == hashes)
        if len(there):
            first = first[there]
            counts = np.searchsorted(run.hashes, hashes[there], side="right") - first
            places = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
            if after is not None:
                places = places[run.times(after[0])[places] > after[1]]
            if len(places):
                found.append(taken(run.table, places))
    return found


Between = tuple[int, int]  # hashes, both ends included


def numbers_in(number: str, runs: Iterable[OpenRun]) -> Hashes:
    """The different values of a column of integers, sorted, also those of rows that are gone."""
    found = [_numbers_of(run, number)[0] for run in runs]
    return distinct(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)


def numbered_rows(
    key: Sequence[str],
    number: str,
    wanted: Callable[[Hashes], npt.NDArray[np.bool_]],
    columns: pa.Schema,
    runs: Iterable[OpenRun],
    between: Between | None = None,
) -> list[pa.Table]:
    """Every live row whose `number`, a column of integers in the key, is wanted: in several tables, sorted by hash,
    with the hash, the other columns of the key, and these columns.

    Most numbers are in one run alone, and then no row of another one has to be compared.
    """
    found = []
    for run in runs:
        known, which = _numbers_of(run, number)
        mask = wanted(known)
        if mask.any():
            found.append((run, known, which, mask))
    times = _counted([known[mask] for _, known, _, mask in found])
    several, rest = [], [name for name in key if name != number]
    tables = []
    for run, known, which, mask in found:
        is_shared = np.array([times.get(one, 0) > 1 for one in known.tolist()], dtype=np.bool_) & mask
        if is_shared.any():
            rows = _within(run, np.flatnonzero(is_shared[which]), between)
            several.append(_columns_at(run, (*key, HASH, DELETED), columns, rows))
        alone = mask & ~is_shared
        if alone.any():
            rows = None if alone.all() and run.deleted is None else np.flatnonzero(alone[which])
            rows = rows if run.deleted is None or rows is None else rows[~run.deleted[rows]]
            tables.append(_columns_at(run, (*rest, HASH), columns, _within(run, rows, between)))
    if several:
        merged = merge_runs(several, key, drop_deleted=True)
        tables.append(merged.select(tables[0].column_names if tables else [*rest, HASH, *columns.names]))
    return [table for table in tables if table.num_rows]


def _counted(sets: Sequence[Hashes]) -> dict[int, int]:
    """How many of these sets have each number."""
    known, times = np.unique(np.concatenate(sets), return_counts=True) if sets else ((), ())
    return {int(one): int(count) for one, count in zip(known, times, strict=True)}


def _numbers_of(run: OpenRun, number: str) -> tuple[Hashes, npt.NDArray[np.integer[Any]]]:
    """The different numbers of a run, and which of them each row has."""
    moments = run.moments(number)
    if moments is not None:
        return moments.known, moments.which
    encoded = run.table.column(number).combine_chunks().dictionary_encode()
    return integers(encoded.dictionary), encoded.indices.to_numpy()


def _within(run: OpenRun, rows: Positions | None, between: Between | None) -> Positions | None:
    """Those of these rows that are in a range of hashes; None is all."""
    if between is None or (between[0] <= run.first and run.last <= between[1]):
        return rows
    rows = np.arange(len(run.hashes)) if rows is None else rows
    hashes = run.hashes[rows]
    return rows[np.searchsorted(hashes, between[0]) : np.searchsorted(hashes, between[1], side="right")]


def _columns_at(run: OpenRun, names: Sequence[str], typed: pa.Schema, rows: Positions | None) -> pa.Table:
    names = [name for name in names if name not in typed.names]
    table = run.table.select([*names, *(name for name in typed.names if name in run.table.schema.names)])
    return shaped(table if rows is None else taken(table, rows), pa.schema([*map(table.schema.field, names), *typed]))


def range_of(run: OpenRun, after: int, until: int) -> pa.Table:
    """The rows of a run with after < hash <= until: one search at each end."""
    if run.last <= after or run.first > until:
        return run.table.slice(0, 0)
    first = int(np.searchsorted(run.hashes, after, side="right"))
    return run.table.slice(first, int(np.searchsorted(run.hashes, until, side="right")) - first)
