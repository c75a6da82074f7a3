"""Which rows of two sides belong together, by key and time: sorted and searched, without a loop over rows.

Keys are numbers here (`key_numbers`), times microseconds. Places are indexes into the caller's rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.ledger import runs
from hailstorm.ledger.arrays import order_by

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


def key_numbers(one: pa.Table, two: pa.Table, key: Sequence[str]) -> tuple[Numbers, Numbers]:
    """A number for each row of two tables: rows with equal keys, and only those, have equal numbers. None is null."""
    names = list(key)
    keys = pa.concat_tables([one.select(names), two.select(names)]).combine_chunks()
    numbers = runs.key_numbers(keys, np.arange(keys.num_rows))
    return numbers[: one.num_rows], numbers[one.num_rows :]


def pairs(
    keys: Numbers, first: Numbers, last: Numbers, other_keys: Numbers, other_times: Numbers
) -> tuple[Numbers, Numbers]:
    """Every pair of a row and another one with the same key and a time within [first, last] of the row.

    The work is that of sorting the others, and of the pairs that there are.
    """
    order = order_by(other_keys, other_times)
    moments = np.unique(other_times)
    # A key and a rank of a time are one number, in the order of both.
    width = len(moments) + 1
    placed = other_keys[order] * width + np.searchsorted(moments, other_times[order])
    start = np.searchsorted(placed, keys * width + np.searchsorted(moments, first, side="left"))
    end = np.searchsorted(placed, keys * width + np.searchsorted(moments, last, side="right"))
    counts = np.maximum(end - start, 0)
    mine = np.repeat(np.arange(len(keys)), counts)
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    return mine, order[np.repeat(start, counts) + within]


def newest_until(keys: Numbers, times: Numbers, other_keys: Numbers, other_times: Numbers) -> Numbers:
    """For each row, the place of the last of the others with its key and a time not after its own; -1 for none.

    Of others with equal key and time, the last one in the order given counts.
    """
    order = order_by(other_keys, other_times)
    moments = np.unique(other_times)
    width = len(moments) + 1
    sorted_keys = other_keys[order]
    placed = sorted_keys * width + np.searchsorted(moments, other_times[order])
    found = np.searchsorted(placed, keys * width + np.searchsorted(moments, times, side="right")) - 1
    is_mine = found >= 0
    is_mine[is_mine] = sorted_keys[found[is_mine]] == keys[is_mine]
    return np.where(is_mine, order[found] if len(order) else -1, -1)


def times_of(rows: pa.Table, name: str) -> Numbers:
    """A column of times as microseconds."""
    times: Numbers = rows.column(name).cast(pa.int64()).to_numpy()
    return times
