"""Parts of runs: the rows of some hashes, or of a range of them, without reading the rest.

Runs are sorted by `_hash`, and every row group of their files says which hashes it holds. So one key of ten million
costs one or two row groups per run that may hold it. `reader.py` is the caller.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.columns import HASH
from hailstorm.ledger.arrays import numbers
from hailstorm.ledger.commit import Run
from hailstorm.ledger.runs import Hashes, Positions, hashes_of, run_name
from hailstorm.ledger.stores.store import Store, open_parquet
from hailstorm.ledger.sums import Reading

# Given the hashes of a row group: the places of the rows that are wanted.
Choice = Callable[[Hashes], Positions]


def rows_of_hashes(store: Store, step: str, run: Run, hashes: Hashes) -> pa.Table:
    """All rows of a run that have one of these (sorted, distinct) hashes."""

    def places(held: Hashes) -> Positions:
        left, right = (np.searchsorted(held, hashes, side=side) for side in ("left", "right"))
        return np.concatenate([np.arange(a, b) for a, b in zip(left, right, strict=True)] or [np.arange(0)])

    return _chosen(store, step, run, hashes, places)


def rows_of_range(store: Store, step: str, run: Run, first: int, last: int) -> pa.Table:
    """The rows of a run whose hashes are from `first` to `last`, both included."""

    def places(held: Hashes) -> Positions:
        return np.arange(np.searchsorted(held, first, side="left"), np.searchsorted(held, last, side="right"))

    return _chosen(store, step, run, np.array([first, last]), places, is_range=True)


def hashes_of_range(store: Store, step: str, run: Run, first: int, last: int) -> Hashes:
    """The hashes of a run from `first` to `last`, both included. Only their column is read."""
    with _opened(store, step, run) as file:
        groups = [group for group, low, high in _groups(file) if first <= high and low <= last]
        held = hashes_of(file.read_row_groups(groups, columns=[HASH]).combine_chunks())
    return held[np.searchsorted(held, first, side="left") : np.searchsorted(held, last, side="right")]


def columns_of(store: Store, step: str, run: Run) -> pa.Schema:
    """The columns of a run and their types."""
    with _opened(store, step, run) as file:
        return file.schema_arrow


def _chosen(store: Store, step: str, run: Run, hashes: Hashes, places: Choice, is_range: bool = False) -> pa.Table:
    with _opened(store, step, run) as file:
        found = [file.read_row_groups([])]
        for group, first, last in _groups(file):
            # A range touches a group as an interval does; single hashes must lie in it.
            if is_range:
                touches = hashes[0] <= last and first <= hashes[1]
            else:
                touches = np.searchsorted(hashes, first) < np.searchsorted(hashes, last, side="right")
            if not touches:
                continue
            wanted = places(hashes_of(file.read_row_group(group, columns=[HASH])))
            if len(wanted):
                found.append(file.read_row_group(group).take(numbers(wanted)))
        return pa.concat_tables(found)


def _groups(file: pq.ParquetFile) -> Iterator[tuple[int, int, int]]:
    """The row groups, each with its lowest and highest hash."""
    for number in range(file.num_row_groups):
        group = file.metadata.row_group(number)
        column = next(i for i in range(group.num_columns) if group.column(i).path_in_schema == HASH)
        held = group.column(column).statistics
        yield (number, -(2**63), 2**63 - 1) if held is None else (number, held.min, held.max)


@contextlib.contextmanager
def _opened(store: Store, step: str, run: Run) -> Iterator[pq.ParquetFile]:
    name = run_name(step, run.id)
    with open_parquet(store, name, run.sums) as file, Reading(name):
        yield file
