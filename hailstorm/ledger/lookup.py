"""Lookups: the newest state row of each of many keys, vectorised.

The caller's rows and every run are sorted by `_hash`. Each run, newest first, is searched for the keys that are
still open with one `searchsorted`; then the keys themselves are compared, because equal hashes may hide different
keys. No Python runs per key and only rows that are found are touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa

from hailstorm.columns import DELETED
from hailstorm.ledger.arrays import flags, integers, numbers
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.runs import Hashes, Positions, equal_keys, hashes_of


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
        taken = column.combine_chunks()
    else:
        taken = column.take(pa.array(places)).combine_chunks()
    return taken if taken.type == type_ else taken.cast(type_)


def look_up(rows: pa.Table, key: Sequence[str], runs: Iterable[OpenRun]) -> Matches:
    """Find each of these rows' keys, in runs given newest first. `rows` are sorted by hash, one row a key.

    A key whose newest row is a tombstone is not found.
    """
    hashes, keys = hashes_of(rows), rows.select(list(key))
    open_ = np.arange(rows.num_rows, dtype=np.int64)
    is_open = np.ones(rows.num_rows, dtype=np.bool_)
    parts: list[tuple[OpenRun, Positions, Positions]] = []
    for run in runs:
        if not len(open_):
            break
        wanted, places = _search(run, hashes, open_, keys, key)
        if not len(wanted):
            continue
        is_open[wanted] = False
        open_ = np.flatnonzero(is_open)
        deleted = run.table.column(DELETED).take(pa.array(places)).to_numpy()
        if deleted.any():
            wanted, places = wanted[~deleted], places[~deleted]
        parts.append((run, places, wanted))
    return Matches(rows.num_rows, tuple(parts))


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


def all_members(hashes: Hashes, runs: Iterable[OpenRun]) -> list[pa.Table]:
    """Every row that has one of these (sorted, distinct) hashes, a table per run, in the order of the runs."""
    found = []
    for run in runs:
        left = np.searchsorted(run.hashes, hashes, side="left")
        right = np.searchsorted(run.hashes, hashes, side="right")
        counts = right - left
        if counts.any():
            places = np.repeat(left - np.concatenate(([0], np.cumsum(counts)[:-1])), counts) + np.arange(counts.sum())
            found.append(run.table.take(pa.array(places)))
    return found


@dataclass(frozen=True)
class Members:
    """Rows of groups, by group and number; `group` is the place of the group of each. Columns are read when asked."""

    group: Positions
    number: Positions
    parts: tuple[tuple[OpenRun, Positions], ...] = ()
    chosen: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # among the rows of all parts

    def __len__(self) -> int:
        return len(self.group)

    def column(self, name: str, type_: pa.DataType, rows: Positions | None = None) -> pa.Array:
        """A column of these rows, or of some of them."""
        if not self.parts:
            return pa.nulls(0, type_)
        taken = pa.concat_arrays([_taken(run, name, type_, places) for run, places in self.parts])
        return taken.take(numbers(self.chosen if rows is None else self.chosen[rows]))


def numbered_members(groups: pa.Table, by: Sequence[str], number: str, runs: Iterable[OpenRun]) -> Members:
    """Every live row of these groups, where a row is known by its group and the integer column `number`.

    Groups are sorted by hash and have one row each. It is `all_members` without a comparison of keys between rows, and
    without reading what nobody asks for.
    """
    hashes, keys = hashes_of(groups), groups.select(list(by))
    parts, of_group = [], []
    for run in runs:
        left = np.searchsorted(run.hashes, hashes, side="left")
        counts = np.searchsorted(run.hashes, hashes, side="right") - left
        if not counts.any():
            continue
        group = np.repeat(np.arange(len(hashes)), counts)
        places = np.repeat(left - (np.cumsum(counts) - counts), counts) + np.arange(len(group))
        # Other keys may have the same hash.
        same = equal_keys(run.table.select(list(by)), places, keys, group) if by else np.ones(len(group), np.bool_)
        if not same.all():
            group, places = group[same], places[same]
        parts.append((run, places))
        of_group.append(group)
    none = np.zeros(0, dtype=np.int64)
    group = np.concatenate([none, *of_group])
    if not len(group):
        return Members(none, none)
    value = np.concatenate([integers(_taken(run, number, pa.int64(), places)) for run, places in parts])
    low, high = int(value.min()), int(value.max())
    if (high - low + 1) * len(hashes) < 1 << 62:
        both = group * (high - low + 1) + (value - low)
    else:
        _, rank = np.unique(value, return_inverse=True)
        both = group * len(rank) + rank
    order = np.argsort(both, kind="stable")  # newer rows first among those that are one
    newest = np.diff(both[order], prepend=-1) != 0
    deleted = np.concatenate([flags(_taken(run, DELETED, pa.bool_(), places)) for run, places in parts])
    chosen = order[newest]
    chosen = chosen[~deleted[chosen]]
    return Members(group[chosen], value[chosen], tuple(parts), chosen)


def range_of(run: OpenRun, after: int, until: int) -> pa.Table:
    """The rows of a run with after < hash <= until: one search at each end."""
    if run.last <= after or run.first > until:
        return run.table.slice(0, 0)
    first = int(np.searchsorted(run.hashes, after, side="right"))
    return run.table.slice(first, int(np.searchsorted(run.hashes, until, side="right")) - first)
