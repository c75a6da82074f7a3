"""A join of two tables on their keys: a view that follows both.

The state has one row for each key that either table has, with the values of both sides: so one look-up finds all that
a change of one side must be put together with, and both sides may change in one tick. Rows that the kind of join does
not show are kept all the same (`_present` is null), because the other side may come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, KIND, PRESENT, TIME
from hailstorm.engine.stages.deposit import hand_on
from hailstorm.engine.stages.newest import first_of_keys
from hailstorm.engine.stages.sides import Side, split
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.equality import one_chunk
from hailstorm.ledger.keyed_state import Layout, changes
from hailstorm.ledger.lookup import Matches, look_up
from hailstorm.ledger.runs import sort_by_hash

LEFT, RIGHT = "_left", "_right"  # whether a row has this side


@dataclass(frozen=True)
class JoinOnKeys:
    """In: changes of two tables, under the names of the result. Nothing flows out of it."""

    step: str
    key: tuple[str, ...]
    values: tuple[pa.Schema, pa.Schema]  # of the left, and of the right
    how: str
    sides: tuple[Side, ...]
    sinks: tuple[str, ...]
    feeds: bool
    times: bool  # the times of rows matter to those who read it

    phase = "merge"

    @property
    def layout(self) -> Layout:
        return Layout(self.step, self.key)

    def __call__(self, batches: Batches, task: Task) -> Batches:
        changed = split(batches, self.sides)
        keys = pa.concat_tables([table.select([*self.key, HASH]) for table in changed]).combine_chunks()
        if keys.num_rows:
            self._update(first_of_keys(sort_by_hash(keys), self.key), changed, task)
        yield from ()

    def _update(self, keys: pa.Table, changed: list[pa.Table], task: Task) -> None:
        state = task.state(self.layout)
        prior = state.prior(keys)
        left, right = (
            _Half.after(keys, self.key, table, prior, schema, flag)
            for table, schema, flag in zip(changed, self.values, (LEFT, RIGHT), strict=True)
        )
        kinds = {
            "inner": pc.and_(left.is_there, right.is_there),
            "left": left.is_there,
            "right": right.is_there,
            "full": pc.or_(left.is_there, right.is_there),
        }
        shown = kinds[self.how]
        known = pc.coalesce(later_of(left.time, right.time), later_of(left.changed_at, right.changed_at))
        columns: dict[str, Any] = {name: keys.column(name) for name in (HASH, *self.key)}
        flags = {PRESENT: pc.if_else(shown, True, None), **left.flags, **right.flags}
        kept = pc.or_(left.is_there, right.is_there)
        state.write({**columns, **left.values, **right.values, **flags}, known, pc.invert(kept))
        if self.sinks or self.feeds:
            was = pc.is_valid(prior.column(PRESENT, pa.bool_()))
            self._hand_on(keys, {**left.values, **right.values}, prior, was, shown, known, task)

    def _hand_on(
        self, keys: pa.Table, values: dict[str, Any], prior: Matches, was: Any, shown: Any, time: Any, task: Task
    ) -> None:
        seen = pc.or_(was, shown)
        types = {field.name: field.type for schema in self.values for field in schema}
        changed = changes(
            {name: keys.column(name).filter(seen) for name in self.key},
            {name: column.filter(seen) for name, column in values.items()},
            {name: prior.column(name, types[name]).filter(seen) for name in values},
            was.filter(seen),
            pc.invert(shown).filter(seen),
            time.filter(seen),
            keys.column(HASH).filter(seen),
            pa.repeat(True, pc.sum(seen).as_py() or 0) if self.times else None,
        )
        hand_on(self.step, changed, self.sinks, self.feeds, task, self.times)


@dataclass(frozen=True)
class _Half:
    """One side of some keys after a tick."""

    is_there: pa.Array
    time: pa.Array  # of its row, where it is there
    changed_at: pa.Array  # where it changed
    values: dict[str, pa.Array]
    flags: dict[str, pa.Array]

    @staticmethod
    def after(
        keys: pa.Table, key: tuple[str, ...], changed: pa.Table, prior: Matches, schema: pa.Schema, flag: str
    ) -> _Half:
        now = look_up(keys, key, [OpenRun.of(changed)])
        moved, changed_at = now.found(), now.column(EVENT_TIME, TIME)
        stays = pc.fill_null(pc.not_equal(now.column(KIND, pa.string()), "delete"), False)
        was = pc.fill_null(prior.column(flag, pa.bool_()), False)
        is_there = pc.if_else(moved, stays, was)
        time = pc.if_else(moved, changed_at, prior.column(f"{flag}{EVENT_TIME}", TIME))
        time = pc.if_else(is_there, time, pa.scalar(None, TIME))
        values = {f.name: pc.if_else(moved, now.column(f.name, f.type), prior.column(f.name, f.type)) for f in schema}
        return _Half(is_there, time, changed_at, values, {flag: is_there, f"{flag}{EVENT_TIME}": time})


def later_of(one: Any, two: Any) -> pa.Array:
    """The later time of each pair; the other one where one is null. As integers: Arrow has no maximum of times."""
    return one_chunk(pc.max_element_wise(one.cast(pa.int64()), two.cast(pa.int64()))).cast(TIME)
