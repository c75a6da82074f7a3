"""Processes: a user's class over the events and timers of each key, with its state as typed columns.

Columns become Python values once per tick, the calls are one loop (process_calls.py), and what they leave becomes
columns again. The work follows the events of the tick and the timers that are due, never the size of the state.

Its state is a table with one row per key; its timers have tables of their own (process_timers.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.watermark import BEGINNING
from hailstorm.columns import (
    EVENT_TIME,
    HASH,
    HIDDEN,
    TIME,
    TIMER,
)
from hailstorm.engine.stages.bolt import as_list, refuse_row, row_type
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.given_rows import columns_of, reason_of
from hailstorm.engine.stages.group import groups_of
from hailstorm.engine.stages.process_calls import Calls, Firing, StateClass, Values
from hailstorm.engine.stages.process_events import event_values, in_order, numbers, readable_events
from hailstorm.engine.stages.process_timers import TIMER_COLUMNS, TimerTables
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import Positions, hashes_of
from hailstorm.spouts.cycles import without_collecting
from hailstorm.topology.exact_values import Misfit, exact_array
from hailstorm.topology.process import Process, moment
from hailstorm.topology.state_fields import StateField

PENDING = "_timers"  # of a key: how many timers it has


@dataclass(frozen=True)
class ProcessShape:
    """A process as its stage sees it."""

    step: str
    using: type[Process]
    key: pa.Schema
    fields: tuple[StateField, ...]
    columns: tuple[str, ...]  # of an event
    outputs: Mapping[str, pa.Schema]  # public columns; OWN are the process's own rows
    outlets: Mapping[str, Outlet]  # of those that somebody wants

    @property
    def state(self) -> Layout:
        return Layout(self.step, tuple(self.key.names))

    @property
    def timers(self) -> TimerTables:
        return TimerTables(self.step, tuple(self.key.names))

    @property
    def layouts(self) -> tuple[Layout, ...]:
        """Its tables of state, the one that is shown first."""
        return (self.state, self.timers.set, *self.timers.agendas.values())


@dataclass(frozen=True)
class RunProcess:
    """In: events, and entries of the agendas that are due (`_timer` is not null), with the `_hash` of their key."""

    shape: ProcessShape

    phase = "compute"
    calls_users = True

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows = [batch for batch in batches if batch.num_rows]
        if rows:
            table = pa.Table.from_batches(rows).combine_chunks()
            with without_collecting():
                _Tick(self.shape, task, *self._parted(table, task)).run()
        yield from ()

    def _parted(self, table: pa.Table, task: Task) -> tuple[pa.Table, pa.Table]:
        """The events, and what is due."""
        due = table.column(TIMER).is_valid()
        events = table.filter(pc.invert(due)) if pc.any(due).as_py() else table
        return readable_events(events, self.shape.columns, self.shape.step, task), table.filter(due)


@dataclass
class _Tick:
    """One tick of a process in one task: from rows to calls, and from calls to rows."""

    shape: ProcessShape
    task: Task
    arrived: pa.Table
    due: pa.Table

    def run(self) -> None:
        calls = Calls(
            using=self.shape.using,
            shape=StateClass(self.shape.using.state, self.shape.fields),
            outputs=self.shape.outputs,
            step=self.shape.step,
            now=self.task.order.now,
            until={"event": self.task.watermark(self.shape.step), "system": self.task.order.now},
            keys=self._key_values,
            prior=self._prior_values,
            events=event_values(self._events, self.shape.columns, self.task.watermark(self.shape.step)),
            keys_of=self._event_keys.tolist(),
            due=list(
                self.shape.timers.firings(self.due, self._grouped[1][self.arrived.num_rows :], self._keys, self.task)
            ),
        )
        calls.run()
        try:
            states, rows = self._converted(calls)
        except Misfit:  # somebody gave what does not fit: find out who
            calls = calls.again_with_care()
            calls.run()
            states, rows = self._converted(calls)
        self._refuse(calls)
        for name, outlet in self.shape.outlets.items():
            if rows[name].num_rows:
                outlet.give(rows[name], self.task, self._keys_of(calls, name) if outlet.marks else None)
        self._write(calls, states)

    # The keys of the tick, and whose rows are whose

    @cached_property
    def _grouped(self) -> tuple[pa.Table, Positions]:
        """One row per key, sorted by hash; and the number of the key of each row, events first and then what is due."""
        names = [HASH, *self.shape.key.names]
        rows = pa.concat_tables([self.arrived.select(names), self.due.select(names)]).combine_chunks()
        order, starts = groups_of(rows.select(self.shape.key.names), hashes_of(rows))
        numbers = np.zeros(len(order), dtype=np.int64)
        numbers[starts[1:]] = 1
        of_rows = np.empty(len(order), dtype=np.int64)
        of_rows[order] = np.cumsum(numbers)
        return rows.take(pa.array(order[starts])), of_rows

    @property
    def _keys(self) -> pa.Table:
        return self._grouped[0]

    @cached_property
    def _key_values(self) -> list[Any]:
        columns = [as_list(self._keys.column(name).combine_chunks()) for name in self.shape.key.names]
        if len(columns) == 1:
            return columns[0]
        return list(map(row_type(tuple(self.shape.key.names)), zip(*columns, strict=True)))

    # Events, in order

    @cached_property
    def _order(self) -> Positions:
        return in_order(self.arrived, self._grouped[1][: self.arrived.num_rows], self.shape.columns)

    @cached_property
    def _events(self) -> pa.RecordBatch:
        ordered = self.arrived.take(pa.array(self._order)).combine_chunks()
        return ordered.to_batches()[0] if ordered.num_rows else pa.RecordBatch.from_pylist([], ordered.schema)

    @cached_property
    def _event_keys(self) -> Positions:
        return self._grouped[1][self._order]

    # State, as it was

    @cached_property
    def _prior(self) -> Any:
        return self.task.state(self.shape.state).prior(self._keys)

    @cached_property
    def _found(self) -> npt.NDArray[np.bool_]:
        return np.asarray(self._prior.found().to_numpy(zero_copy_only=False))

    @cached_property
    def _prior_values(self) -> list[Values | None]:
        """The state of each key; None for a key that has none."""
        found = self._found
        if not found.any():
            return [None] * len(found)
        columns = [self._prior_column(one, int((~found).sum())) for one in self.shape.fields]
        values: Sequence[Values] = list(zip(*columns, strict=True)) if columns else [()] * len(found)
        return [one if there else None for one, there in zip(values, found.tolist(), strict=True)]

    def _prior_column(self, field: StateField, absent: int) -> list[Any]:
        column = self._prior.column(field.name, field.column.type)
        nested = pa.types.is_nested(column.type)
        values = column.to_pylist(maps_as_pydicts="strict") if nested else as_list(column)
        if not field.optional and column.null_count > absent:  # rows of before the class had this field
            values = [field.default if one is None else one for one in values]
        return values

    @cached_property
    def _pending(self) -> npt.NDArray[np.int64]:
        """How many timers each key had."""
        return np.asarray(self._prior.column(PENDING, pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))

    # What comes out

    def _converted(self, calls: Calls) -> tuple[dict[int, Values], dict[str, pa.Table]]:
        """The values of the states that were touched, and the rows of each output. Raises Misfit."""
        states = {key: calls.shape.values(state) for key, state in calls.states.items()}
        for place, one in enumerate(self.shape.fields):
            made = exact_array([values[place] for values in states.values()], one.column.type, one.name)
            if made.null_count and not one.optional:
                raise Misfit(f"the state's '{one.name}' is None")
        hidden = self._hidden(calls.fired)
        rows = {}
        for name, schema in self.shape.outputs.items():
            arrays = columns_of(calls.rows[name], schema)
            if arrays is None:
                raise Misfit(f"a row of '{name}' does not fit")
            origin = hidden.take(pa.array(calls.origins[name], pa.int64()))
            rows[name] = pa.table([*arrays, *origin.columns], names=[*schema.names, *HIDDEN.names])
        return states, rows

    def _hidden(self, fired: Sequence[Firing]) -> pa.Table:
        """Where rows come from: the events, and behind them the timers that have fired."""
        times = pa.array([one.at for one in fired], pa.int64()).cast(TIME)
        of_timers = [times if one.name == EVENT_TIME else pa.nulls(len(fired), one.type) for one in HIDDEN]
        events = pa.Table.from_batches([self._events]).select(HIDDEN.names)
        return pa.concat_tables([events, pa.table(of_timers, schema=events.schema)]).combine_chunks()

    def _keys_of(self, calls: Calls, output: str) -> pa.Table:
        """Of each row of an output, the key that gave it."""
        keys = [*self._event_keys.tolist(), *(firing.key for firing in calls.fired)]
        places = pa.array([keys[origin] for origin in calls.origins[output]], pa.int64())
        return self._keys.select(self.shape.key.names).take(places)

    def _refuse(self, calls: Calls) -> None:
        for place, error in calls.refused.items():
            batch = self._events.drop_columns(TIMER_COLUMNS.names)
            refuse_row(batch, place, self.shape.step, reason_of(error), "dead-letter", self.task)
        for firing, error in calls.failed:
            key = self._keys.select(self.shape.key.names).slice(firing.key, 1).combine_chunks().to_batches()[0]
            timer = [firing.name, firing.at, firing.clock]
            row = key
            for field, value in zip(TIMER_COLUMNS, timer, strict=True):
                row = row.append_column(field, pa.array([value], field.type))
            told = {**key.to_pylist()[0], "timer": firing.name, "time": moment(firing.at), "clock": firing.clock}
            raw = msgspec.json.encode(told, enc_hook=str)
            reason = f"timer '{firing.name}': {reason_of(error)}"
            self.task.refuse(self.shape.step, reason, "dead-letter", (None, None, None), raw, row)

    # What is written

    def _write(self, calls: Calls, states: Mapping[int, Values]) -> None:
        pending = self._pending.copy()
        for key, change in self.shape.timers.write(calls.asked, self._keys, self.task).items():
            pending[key] += change
        beginning = calls.shape.values(calls.shape.of(None))
        kept, gone = [], []
        for key, values in states.items():
            found = self._found[key]
            if values == beginning and not pending[key]:
                if found:
                    gone.append(key)
            elif not found or values != calls.before[key] or pending[key] != self._pending[key]:
                kept.append(key)
        if not kept and not gone:
            return
        changed = kept + gone
        keys = self._keys.take(pa.array(changed, pa.int64()))
        columns = {name: keys.column(name) for name in (HASH, *self.shape.key.names)}
        for place, one in enumerate(self.shape.fields):
            columns[one.name] = exact_array([states[key][place] for key in changed], one.column.type, one.name)
        columns[PENDING] = pa.array(pending[changed])
        deleted = pa.array(np.arange(len(changed)) >= len(kept))
        updated = self._last_times(calls).take(pa.array(changed, pa.int64()))
        self.task.state(self.shape.state).write(columns, updated, deleted)

    def _last_times(self, calls: Calls) -> pa.Array:
        """Of each key, the last time that it saw in this tick."""
        times = np.full(self._keys.num_rows, BEGINNING, dtype=np.int64)
        np.maximum.at(times, self._event_keys, numbers(self.arrived, EVENT_TIME)[self._order])
        for firing in calls.fired:
            times[firing.key] = max(times[firing.key], firing.at)
        return pa.array(times, mask=times == BEGINNING).cast(TIME)
