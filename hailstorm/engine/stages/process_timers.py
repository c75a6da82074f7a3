"""The timers of a process: which of those that are due still hold, and what a tick has set.

A timer is a row of `fraud.timers`, by key and name. The agendas have entries with the times at which timers are due: by
the watermark, by the wall clock, and in the next tick, for those whose time had passed when they were set. An entry is
a hint: the timer itself says whether it still holds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import HASH, KEY_HASH, NUMBER, TIME, TIMER, TIMER_AT, TIMER_CLOCK
from hailstorm.engine.stages.process_calls import Asked, Firing
from hailstorm.engine.stages.task import Task
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.ordering import sortable
from hailstorm.ledger.runs import Positions, sort_by_hash

TIMER_COLUMNS = pa.schema([(TIMER, pa.string()), (TIMER_AT, pa.int64()), (TIMER_CLOCK, pa.string())])
_AGENDAS = {"event": "agenda", "system": "system", "tick": "next"}
_AGENDA = "_agenda"


@dataclass(frozen=True)
class TimerTables:
    """The tables of state of a process's timers."""

    step: str
    key: tuple[str, ...]

    @property
    def set(self) -> Layout:
        return Layout(f"{self.step}.timers", (*self.key, TIMER))

    @property
    def agendas(self) -> dict[str, Layout]:
        """By clock."""
        key = (*self.key, TIMER)
        return {clock: Layout(f"{self.step}.{name}", key, clock) for clock, name in _AGENDAS.items()}

    def firings(self, due: pa.Table, numbers: Positions, keys: pa.Table, task: Task) -> Iterator[Firing]:
        """The entries that still hold: those whose timer is set for just that time.

        `numbers` say which of the keys each entry is about. One may be there twice: where it was set for, and in the
        next tick.
        """
        if not due.num_rows:
            return
        rows = due.append_column(NUMBER, pa.array(numbers))
        hashes = hash_columns([rows.column(name).combine_chunks() for name in (HASH, TIMER)], rows.num_rows)
        entries = sort_by_hash(rows.set_column(rows.schema.get_field_index(HASH), HASH, pa.array(hashes)))
        timers = task.state(self.set).prior(entries)
        same_time = pc.equal(timers.column(TIMER_AT, pa.int64()), entries.column(TIMER_AT))
        same_clock = pc.equal(timers.column(TIMER_CLOCK, pa.string()), entries.column(TIMER_CLOCK))
        held = entries.filter(pc.fill_null(pc.and_(same_time, same_clock), False))
        ranks = _ranks(keys.select(list(self.key)))
        columns = [held.column(name).to_pylist() for name in (TIMER_AT, TIMER, TIMER_CLOCK, NUMBER)]
        for at, name, clock, key in zip(*columns, strict=True):
            yield Firing(at, int(ranks[key]), name, clock, key)

    def write(self, asked: Mapping[int, Mapping[str, Asked | None]], keys: pa.Table, task: Task) -> Counter[int]:
        """Write the timers that were set, were cancelled or have fired. How many more each key has."""
        flat = [(key, name, one) for key, timers in asked.items() for name, one in timers.items()]
        more: Counter[int] = Counter()
        if not flat:
            return more
        rows = self._rows(flat, keys)
        was = task.state(self.set).prior(rows).found()
        is_ = rows.column(TIMER_AT).combine_chunks().is_valid()
        known = pc.or_(was, is_)
        kept = rows.filter(known)
        columns = {name: kept.column(name) for name in (HASH, *self.set.key, TIMER_AT, TIMER_CLOCK)}
        updated = kept.column(TIMER_AT).combine_chunks().cast(TIME)
        task.state(self.set).write(columns, updated, pc.invert(is_).filter(known))
        self._write_entries(rows, task)
        change = pc.subtract(is_.cast(pa.int64()), was.cast(pa.int64()))
        for key, by in zip(rows.column(NUMBER).to_pylist(), change.to_pylist(), strict=True):
            more[key] += by
        return more

    def _rows(self, flat: Sequence[tuple[int, str, Asked | None]], keys: pa.Table) -> pa.Table:
        owners = pa.array([key for key, _, _ in flat], pa.int64())
        names = pa.array([name for _, name, _ in flat], pa.string())
        of_keys = keys.take(owners)
        rows = {
            HASH: pa.array(hash_columns([of_keys.column(HASH).combine_chunks(), names], len(names))),
            **{name: of_keys.column(name) for name in self.key},
            TIMER: names,
            TIMER_AT: pa.array([None if one is None else one.at for _, _, one in flat], pa.int64()),
            TIMER_CLOCK: pa.array([None if one is None else one.clock for _, _, one in flat], pa.string()),
            KEY_HASH: of_keys.column(HASH),
            _AGENDA: pa.array([None if one is None else one.agenda for _, _, one in flat], pa.string()),
            NUMBER: owners,
        }
        return sort_by_hash(pa.table(rows))

    def _write_entries(self, rows: pa.Table, task: Task) -> None:
        for clock, agenda in self.agendas.items():
            mine = rows.filter(pc.fill_null(pc.equal(rows.column(_AGENDA), clock), False))
            if mine.num_rows:
                at = mine.column(TIMER_AT).combine_chunks()
                due = pa.repeat(pa.scalar(task.order.seq, pa.int64()), len(at)) if clock == "tick" else at
                columns = {name: mine.column(name) for name in (*agenda.key, TIMER_AT, TIMER_CLOCK, KEY_HASH)}
                task.state(agenda).write({HASH: due, **columns}, at.cast(TIME))


def _ranks(keys: pa.Table) -> Positions:
    """The place of each key in the order of keys."""
    parts = [part for column in keys.columns for part in sortable(column.combine_chunks())]
    keyed = pa.table({str(place): part for place, part in enumerate(parts)})
    order = pc.sort_indices(keyed, sort_keys=[(name, "ascending") for name in keyed.column_names])
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order.to_numpy()] = np.arange(len(order))
    return ranks
