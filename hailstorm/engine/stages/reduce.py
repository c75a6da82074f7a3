"""Merging states with states: where several rows of state become one, as panes of a window, parts of a session, or what
several tasks have of a key do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, MEMBERS, STATE, TIME
from hailstorm.engine.stages.fold import Cell
from hailstorm.engine.stages.group import groups_of, neighbours_of, reduced
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.engine.stages.waiting import DUE
from hailstorm.ledger.open_windows import merge_neighbours
from hailstorm.ledger.runs import Positions, hashes_of


@dataclass(frozen=True)
class ReduceStates:
    """One row per key: the states of its rows merged; the latest time; due, and there, if one of them is.

    `beside_due` leaves entries of agendas as they are: rows without a time, which have a key and nothing else.
    """

    key: tuple[str, ...]
    cells: tuple[Cell, ...]
    beside_due: bool = False

    phase = "merge"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return
        rows = pa.Table.from_batches(kept).combine_chunks()
        if self.beside_due and rows.column(EVENT_TIME).null_count:
            yield from rows.filter(pc.is_null(rows.column(EVENT_TIME))).to_batches()
            rows = rows.filter(pc.is_valid(rows.column(EVENT_TIME))).combine_chunks()
        if rows.num_rows:
            yield from self.reduced(rows).to_batches()

    def reduced(self, rows: pa.Table) -> pa.Table:
        """Of the key, the hash and the states, and of those other columns that there are."""
        count, keys = rows.num_rows, rows.select(list(self.key))
        starts = neighbours_of(keys, hashes_of(rows))
        if starts is None:
            order, starts = groups_of(keys, hashes_of(rows))
            rows = rows.take(pa.array(order)).combine_chunks()
        if len(starts) == count:
            return rows
        firsts = pa.array(starts)
        columns: dict[str, Any] = {name: rows.column(name).take(firsts) for name in (*self.key, HASH)}
        for cell in self.cells:
            columns[STATE + cell.name] = merged_states(rows.column(STATE + cell.name).combine_chunks(), starts, cell)
        if EVENT_TIME in rows.column_names:
            times = rows.column(EVENT_TIME).combine_chunks().cast(pa.int64())
            columns[EVENT_TIME] = reduced(times, "max", starts, count).cast(TIME)
        if DUE in rows.column_names:
            columns[DUE] = pa.array(np.logical_or.reduceat(np.asarray(rows.column(DUE)), starts))
        if MEMBERS in rows.column_names:
            columns[MEMBERS] = reduced(rows.column(MEMBERS).combine_chunks(), "max", starts, count)
        return pa.table({name: columns[name] for name in rows.column_names}).combine_chunks()


@dataclass(frozen=True)
class MergeLists:
    """Lists of states that Spark has gathered, as the one state that each of them is."""

    cells: tuple[Cell, ...]

    phase = "merge"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            for cell in self.cells:
                place = batch.schema.get_field_index(STATE + cell.name)
                batch = batch.set_column(place, STATE + cell.name, self._merged(batch.column(place), cell))
            yield batch

    def _merged(self, lists: pa.Array, cell: Cell) -> pa.Array:
        lengths = np.diff(lists.offsets.to_numpy())
        (filled,) = np.nonzero(lengths)
        if not len(filled):
            return pa.nulls(len(lists), cell.state_type)
        starts = np.cumsum(lengths)[filled] - lengths[filled]
        states = merged_states(lists.flatten(), starts, cell)
        places = np.cumsum(lengths > 0) - 1
        return states.take(pa.array(places, mask=lengths == 0))


def merged_states(states: pa.Array, starts: Positions, cell: Cell) -> pa.Array:
    """The states of each group of neighbours, merged."""
    return merge_neighbours(states, starts, cell.combine)


def jvm_merge(merge: str, states: str) -> str:
    """The same as SQL, over a list of states: `merge` has {a} and {b}."""
    both = merge.replace("{a}", "a").replace("{b}", "b")
    return f"IF(size({states}) = 0, NULL, aggregate(slice({states}, 2, size({states})), {states}[0], (a, b) -> {both}))"


def take_whole(prior: pa.Array, state: pa.Array) -> pa.Array:
    """The merge of a state that is whole already."""
    return state


def can_combine(cells: Sequence[Cell]) -> bool:
    return all(cell.combine is not None for cell in cells)
