"""Parts of runs: the rows of some hashes, or of a range of them, without reading the rest.

Runs are sorted by `_hash`, and every row group of their files says which hashes it holds. So one key of ten million
costs one or two row groups per run that may hold it. `reader.py` is the caller.

Whoever has a ledger open asks of the same runs again. So small runs are kept in memory, and the footers of large ones,
as far as `KEPT_BYTES` go and as long as the file is the one that was read: an erasure puts another in its place.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from hailstorm.columns import HASH
from hailstorm.ledger.arrays import taken
from hailstorm.ledger.cache import OpenRun, RunCache
from hailstorm.ledger.commit import Run
from hailstorm.ledger.copies import CheckedCopy, DamagedCopy
from hailstorm.ledger.runs import Hashes, hashes_of, run_name
from hailstorm.ledger.stores.store import Store, open_parquet
from hailstorm.ledger.sums import Reading

if TYPE_CHECKING:
    import pyarrow.parquet as pq

KEPT_BYTES = 32 << 20
SMALL_BYTES = 1 << 18  # of a file: then all of it is read as fast as a part
_GROUP_BYTES = 2_000  # about what a footer takes for each row group


@dataclass(frozen=True)
class _Footer:
    """Where everything is in a large run: which hashes each row group holds."""

    metadata: pq.FileMetaData
    firsts: Hashes
    lasts: Hashes

    @staticmethod
    def of(file: pq.ParquetFile) -> _Footer:
        found = file.metadata
        column = next(i for i in range(found.num_columns) if found.schema.column(i).path == HASH)
        held = [found.row_group(group).column(column).statistics for group in range(found.num_row_groups)]
        firsts = [-(2**63) if one is None else one.min for one in held]
        lasts = [2**63 - 1 if one is None else one.max for one in held]
        return _Footer(found, np.array(firsts, dtype=np.int64), np.array(lasts, dtype=np.int64))

    def groups(self, first: int, last: int) -> list[int]:
        """The row groups that may hold hashes from `first` to `last`, both included."""
        return [int(group) for group in np.flatnonzero((self.firsts <= last) & (first <= self.lasts))]


def rows_of_hashes(cache: RunCache, step: str, run: Run, hashes: Hashes, columns: Sequence[str]) -> pa.Table:
    """All rows of a run that have one of these (sorted, distinct) hashes, with those of these columns that it has."""
    if run.bytes <= SMALL_BYTES:
        return _members(_whole(cache, step, run), hashes, columns)
    # A copy in the cache is as good as the run, and a search in it costs a few pages.
    copy = cache.copy_of(step, run)
    if copy is not None:
        with contextlib.suppress(DamagedCopy):
            return _members(OpenRun.of(copy.table), hashes, columns, copy)
    with _opened(cache, step, run) as (file, footer):
        found = [_shown(file.schema_arrow.empty_table(), columns)]
        for group in footer.groups(int(hashes[0]), int(hashes[-1])) if len(hashes) else ():
            begin = np.searchsorted(hashes, footer.firsts[group], side="left")
            asked = hashes[begin : np.searchsorted(hashes, footer.lasts[group], side="right")]
            # Of a few hashes, most groups hold none, and those that might hold one are asked for their hashes first.
            many = len(asked) > _FEW
            if len(asked) and (many or _holds(file, group, asked)):
                rows = file.read_row_group(group, columns=list(columns), use_threads=many)
                found.append(_members(OpenRun.of(rows), asked, columns))
        return pa.concat_tables(found)


def rows_of_range(cache: RunCache, step: str, run: Run, first: int, last: int, columns: Sequence[str]) -> pa.Table:
    """The rows of a run whose hashes are from `first` to `last`, both included, with those of these columns that it
    has."""
    with _opened(cache, step, run) as (file, footer):
        found = [_shown(file.schema_arrow.empty_table(), columns)]
        for group in footer.groups(first, last):
            rows = _shown(file.read_row_group(group, columns=list(columns)), columns)
            within = _range(hashes_of(rows), first, last)
            found.append(rows.slice(within.start, within.stop - within.start))
        return pa.concat_tables(found)


def hashes_of_range(cache: RunCache, step: str, run: Run, first: int, last: int) -> Hashes:
    """The hashes of a run from `first` to `last`, both included. Only their column is read."""
    if run.bytes <= SMALL_BYTES:
        held = _whole(cache, step, run).hashes
    else:
        with _opened(cache, step, run) as (file, footer):
            held = hashes_of(file.read_row_groups(footer.groups(first, last), columns=[HASH]).combine_chunks())
    return held[_range(held, first, last)]


def columns_of(cache: RunCache, step: str, run: Run) -> pa.Schema:
    """The columns of a run and their types."""
    if run.bytes <= SMALL_BYTES:
        return _whole(cache, step, run).table.schema
    with _opened(cache, step, run) as (file, _):
        return file.schema_arrow


_FEW = 4  # hashes
_NEAR = 4_096  # rows: further than that, few hashes of ten million are from where they are expected


def _holds(file: pq.ParquetFile, group: int, hashes: Hashes) -> bool:
    held = hashes_of(file.read_row_group(group, columns=[HASH], use_threads=False))
    places = np.searchsorted(held, hashes)
    return bool((held[np.minimum(places, len(held) - 1)] == hashes).any())


def _members(run: OpenRun, hashes: Hashes, columns: Sequence[str], copy: CheckedCopy | None = None) -> pa.Table:
    """The rows of these hashes. Raises DamagedCopy when what it believed of the run's copy is not what was written."""
    rows = _shown(run.table, columns)
    first, end = _places(run.hashes, hashes)
    if copy is not None:
        # With the neighbours on both sides: they say that there are no more rows of the hash, or none at all.
        copy.check_rows(HASH, np.maximum(first - 1, 0), np.minimum(end + 1, len(run.hashes)))
        for name in set(rows.column_names).intersection(copy.table.column_names):
            copy.check_rows(name, first, end)
    counts = end - first
    places = np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    # Not an empty slice of it: that would keep a copy mapped.
    return taken(rows, places) if len(places) else rows.schema.empty_table()


def _places(held: Hashes, hashes: Hashes) -> tuple[Hashes, Hashes]:
    """Where the rows of each of these hashes begin and end."""
    if len(hashes) > _FEW:
        return np.searchsorted(held, hashes, side="left"), np.searchsorted(held, hashes, side="right")
    found = np.zeros((2, len(hashes)), dtype=np.int64)
    for place, hash_ in enumerate(hashes):
        low, high = _around(held, int(hash_))
        found[:, place] = [low + np.searchsorted(held[low:high], hash_, side=side) for side in ("left", "right")]
    return found[0], found[1]


def _shown(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Those of these columns that there are, in this order: files may have another one."""
    there = set(rows.column_names)
    return rows.select([name for name in columns if name in there])


def _around(held: Hashes, hash_: int) -> tuple[int, int]:
    """A stretch of the hashes of a run that has all its rows of one. Hashes are spread evenly, so it is known where
    about they must be; a search that begins in the middle touches many more pages, of a copy that may not be in
    memory."""
    count = len(held)
    first, last = (int(held[0]), int(held[-1])) if count else (1, 0)
    if hash_ < first or not count:
        return 0, 0
    if hash_ > last:
        return count, count
    place = (hash_ - first) * (count - 1) // max(1, last - first)
    low, high, step = max(0, place - _NEAR), min(count, place + _NEAR), _NEAR
    while low > 0 and held[low - 1] >= hash_:
        low, step = max(0, low - step), 2 * step
    while high < count and held[high] <= hash_:
        high, step = min(count, high + step), 2 * step
    return low, high


def _range(held: Hashes, first: int, last: int) -> slice:
    return slice(int(np.searchsorted(held, first, side="left")), int(np.searchsorted(held, last, side="right")))


@contextlib.contextmanager
def _opened(cache: RunCache, step: str, run: Run) -> Iterator[tuple[pq.ParquetFile, _Footer]]:
    store, name = cache.store, run_name(step, run.id)
    file_ = _identity(cache, name)
    known = _kept.get(store, name, file_)
    footer = known if isinstance(known, _Footer) else None
    with open_parquet(store, name, run.sums, footer and footer.metadata) as file, Reading(name):
        if footer is None:
            footer = _Footer.of(file)
            _kept.put(store, name, file_, footer, len(footer.firsts) * _GROUP_BYTES)
        yield file, footer


def _whole(cache: RunCache, step: str, run: Run) -> OpenRun:
    name = run_name(step, run.id)
    file = _identity(cache, name)
    known = _kept.get(cache.store, name, file)
    if isinstance(known, OpenRun):
        return known
    rows = _copied(cache, step, run)
    if rows is None:
        with open_parquet(cache.store, name, run.sums, whole=True) as opened, Reading(name):
            rows = OpenRun.of(opened.read(use_threads=False).combine_chunks())
    _kept.put(cache.store, name, file, rows, rows.table.nbytes)
    return rows


def _copied(cache: RunCache, step: str, run: Run) -> OpenRun | None:
    copy = cache.copy_of(step, run)
    with contextlib.suppress(DamagedCopy):
        if copy is not None:
            copy.check_all()
            return OpenRun.of(copy.table)
    return None


def _identity(cache: RunCache, name: str) -> object:
    """What tells the file from another that an erasure puts in its place; None when there is none."""
    found = cache.store.identity(name)
    return None if found is None else (cache.copies, found)


class _Kept:
    """What this process has read of runs, the last that was asked for at the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: OrderedDict[tuple[str, str], tuple[object, OpenRun | _Footer, int]] = OrderedDict()
        self._bytes = 0

    def get(self, store: Store, name: str, file: object) -> OpenRun | _Footer | None:
        """What was read of this very file."""
        with self._lock:
            found = self._held.get((store.address, name))
            if found is None or file is None or found[0] != file:
                return None
            self._held.move_to_end((store.address, name))
            return found[1]

    def put(self, store: Store, name: str, file: object, read: OpenRun | _Footer, size: int) -> None:
        """`file` is what it was before it was read: whoever replaces it meanwhile makes this entry useless."""
        with self._lock:
            _, _, replaced = self._held.pop((store.address, name), (None, None, 0))
            self._held[store.address, name] = file, read, size
            self._bytes += size - replaced
            while self._bytes > KEPT_BYTES:
                _, (_, _, gone) = self._held.popitem(last=False)
                self._bytes -= gone


_kept = _Kept()
