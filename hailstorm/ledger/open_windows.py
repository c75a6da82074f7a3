"""Open windows of a fold whose windows share panes: merged when somebody reads them, because no row of them is kept.

The step's shape says how windows lie, and of which native monoids the columns are. So it takes neither the app nor
Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hailstorm.algebra import vector
from hailstorm.algebra.known import native_monoid
from hailstorm.clock.panes import Panes
from hailstorm.clock.watermark import BEGINNING
from hailstorm.clock.windows import Windows
from hailstorm.columns import PANE, STATE, TIME, WINDOW_END, WINDOW_START
from hailstorm.ledger.arrays import integers, numbers, order_by
from hailstorm.ledger.commit import PanesShape
from hailstorm.ledger.runs import key_numbers


def open_windows(rows: pa.Table, by: Sequence[str], shape: PanesShape, watermark: int | None) -> pa.Table:
    """The windows over these panes that end after the watermark, with their values as they are now."""
    panes = Panes(Windows(shape.size, shape.every, shape.offset, shape.zone))
    known, number = np.unique(integers(rows.column(PANE).combine_chunks()), return_inverse=True)
    index, start, end = panes.windows_of(known)
    still = end > (BEGINNING if watermark is None else watermark)
    index, start, end = index[still], start[still], end[still]
    counts = np.bincount(index, minlength=len(known))[number]
    pane = np.repeat(np.arange(rows.num_rows), counts)
    window = np.searchsorted(index, number)[pane] + np.arange(len(pane)) - np.repeat(np.cumsum(counts) - counts, counts)
    keys = key_numbers(rows.select(list(by)), np.arange(rows.num_rows)) if by else np.zeros(rows.num_rows, np.int64)
    order = order_by(keys[pane], end[window], start[window])
    pane, window = pane[order], window[order]
    same = [np.diff(column, prepend=BEGINNING) == 0 for column in (keys[pane], end[window], start[window])]
    starts = np.flatnonzero(~(same[0] & same[1] & same[2]))
    columns: dict[str, Any] = {name: rows.column(name).take(numbers(pane[starts])) for name in by}
    columns[WINDOW_START] = numbers(start[window[starts]]).cast(TIME)
    columns[WINDOW_END] = numbers(end[window[starts]]).cast(TIME)
    for name, described in shape.monoids.items():
        pieces = native_monoid(described.monoid).pieces(described.types).arrow
        assert pieces is not None, "panes are of monoids that Arrow merges"
        states = _states(rows, name).take(numbers(pane))
        merged = states if not len(states) else merge_neighbours(states, starts, pieces.merge)
        columns[name] = merged if pieces.present is None else pieces.present(merged)
    return pa.table(columns)


def _states(rows: pa.Table, name: str) -> pa.Array:
    column = rows.column(STATE + name)
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def merge_neighbours(states: pa.Array, starts: Any, merge: Any) -> pa.Array:
    """The states of each group of neighbours, merged in pairs, and the results in pairs again."""
    if merge is vector.add and (sums := vector.sums_of_neighbours(states, starts)) is not None:
        return sums
    sizes = np.diff(np.append(starts, len(states)))
    while (sizes > 1).any():
        odd = sizes % 2 == 1
        halves = (sizes + 1) // 2
        if not odd.any():
            states = _merged_pairs(states, merge)
        else:  # the last of such a group waits for the next turn
            last, place = (np.cumsum(sizes) - 1)[odd], (np.cumsum(halves) - 1)[odd]
            paired = np.ones(len(states), dtype=np.bool_)
            paired[last] = False
            merged = _merged_pairs(states.take(numbers(np.flatnonzero(paired))), merge)
            order = np.zeros(len(merged) + len(last), dtype=np.int64)
            order[place] = np.arange(len(merged), len(order))
            is_pair = np.ones(len(order), dtype=np.bool_)
            is_pair[place] = False
            order[is_pair] = np.arange(len(merged))
            states = pa.concat_arrays([merged, states.take(numbers(last))]).take(numbers(order))
        sizes = halves
    return states


def _merged_pairs(states: pa.Array, merge: Any) -> pa.Array:
    lefts = np.arange(0, len(states), 2)
    return merge(states.take(numbers(lefts)), states.take(numbers(lefts + 1)))
