"""Lookups: the newest state row of each of many keys, vectorised.

The caller's rows and every run are sorted by `_hash`. Each run, newest first, is searched for the keys that are
still open with one `searchsorted`; then the keys themselves are compared, because equal hashes may hide different
keys. No Python runs per key and only rows that are found are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.columns import DELETED
from hailstorm.ledger.arrays import flags_at, integers, numbers, order_of, taken
from hailstorm.ledger.cache import Moments, OpenRun
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


@dataclass(frozen=True)
class Members:
    """Rows of groups, by group and number; `group` is the place of the group of each. Columns are read when asked."""

    group: Positions
    known: Positions  # the different numbers, sorted
    which: Positions  # of each row, the place of its number among them
    parts: tuple[tuple[OpenRun, Positions], ...] = ()
    chosen: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # among the rows of all parts

    def __len__(self) -> int:
        return len(self.group)

    def column(self, name: str, type_: pa.DataType, rows: Positions | None = None) -> pa.Array:
        """A column of these rows, or of some of them."""
        if not self.parts:
            return pa.nulls(0, type_)
        found = pa.concat_arrays([_taken(run, name, type_, places) for run, places in self.parts])
        return found.take(numbers(self.chosen if rows is None else self.chosen[rows]))


_NONE = np.zeros(0, dtype=np.int64)
_SPARSE = 4  # cells for each row: then rows are sorted instead


def numbered_members(groups: pa.Table, by: Sequence[str], number: str, runs: Iterable[OpenRun]) -> Members:
    """Every live row of these groups, where a row is known by its group and the integer column `number`.

    Groups are sorted by hash and have one row each. It is `all_members` without a comparison of keys between rows, and
    without reading what nobody asks for.
    """
    hashes, keys = hashes_of(groups), groups.select(list(by))
    found = [(run, *_rows_of(run, hashes, keys, by)) for run in runs]
    found = [(run, places, group) for run, places, group in found if len(places)]
    if not found:
        return Members(_NONE, _NONE, _NONE)
    total = sum(len(places) for _, places, _ in found)
    moments = [(run.moments(number), places) for run, places, _ in found]
    few = [(one, places) for one, places in moments if one is not None]
    known = np.unique(np.concatenate([one.known for one, _ in few])) if few else _NONE
    if len(few) < len(found) or len(known) * len(hashes) > _SPARSE * total:
        return _sorted_members(number, found)
    # A cell for each group and number. The oldest rows first, so that newer ones replace them.
    cells = np.full(len(hashes) * len(known), -1, dtype=np.int64)
    row = total
    for (run, places, group), (one, _) in zip(reversed(found), reversed(few), strict=True):
        row -= len(places)
        numbers_ = np.searchsorted(known, one.known)[one.which[places]]
        rows = np.arange(row, row + len(places))
        if run.deleted is not None:
            rows[run.deleted[places]] = -1
        cells[group * len(known) + numbers_] = rows
    there = np.flatnonzero(cells >= 0)
    group = there // len(known)
    return Members(
        group, known, there - group * len(known), tuple((run, places) for run, places, _ in found), cells[there]
    )


def _rows_of(run: OpenRun, hashes: Hashes, keys: pa.Table, by: Sequence[str]) -> tuple[Positions, Positions]:
    """The rows of a run that are of these groups, and the group of each, in its order."""
    if not len(run.hashes):
        return _NONE, _NONE
    distinct, borders = run.groups
    place = np.minimum(np.searchsorted(distinct, hashes), len(distinct) - 1)
    group = np.flatnonzero(distinct[place] == hashes)
    first, counts = borders[place[group]], borders[place[group] + 1] - borders[place[group]]
    mixed = bool(by) and run.is_mixed(by)
    # Other keys may have the same hash.
    if by and not mixed:
        same = equal_keys(run.table.select(list(by)), first, keys, group)
        if not same.all():
            group, first, counts = group[same], first[same], counts[same]
    if not len(counts) or counts.max() == 1:
        places = first
    else:
        places = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
        group = np.repeat(group, counts)
    if mixed:
        same = equal_keys(run.table.select(list(by)), places, keys, group)
        places, group = places[same], group[same]
    return places, group


def _sorted_members(number: str, found: Sequence[tuple[OpenRun, Positions, Positions]]) -> Members:
    """As `numbered_members`, where there are many different numbers for few rows."""
    group = np.concatenate([group for _, _, group in found])
    value = np.concatenate([integers(_taken(run, number, pa.int64(), places)) for run, places, _ in found])
    known, which = np.unique(value, return_inverse=True)
    both = group * len(known) + which
    order = order_of(both)  # newer rows first among those that are one
    both = both[order]
    newest = np.ones(len(order), dtype=np.bool_)
    newest[1:] = both[1:] != both[:-1]
    gone = [np.zeros(len(places), np.bool_) if run.deleted is None else run.deleted[places] for run, places, _ in found]
    chosen = order[newest]
    chosen = chosen[~np.concatenate(gone)[chosen]]
    return Members(group[chosen], known, which[chosen], tuple((run, places) for run, places, _ in found), chosen)


def range_of(run: OpenRun, after: int, until: int) -> pa.Table:
    """The rows of a run with after < hash <= until: one search at each end."""
    if run.last <= after or run.first > until:
        return run.table.slice(0, 0)
    first = int(np.searchsorted(run.hashes, after, side="right"))
    return run.table.slice(first, int(np.searchsorted(run.hashes, until, side="right")) - first)
