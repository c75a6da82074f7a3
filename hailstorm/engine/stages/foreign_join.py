"""A join of two tables from columns of the left to the key of the right: a view that follows both.

It keeps the left's rows by the hash of what they point at (`.left`), so that a change of a row of the right finds those
that point there, and the right's rows (`.right`). A left row that now points elsewhere is taken away where it pointed
before: `SplitMoved` makes two rows of such a change, and each goes to the task of what it points at. What a row looks
like in the result is decided where it points now, so in one task.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, KIND, OLD, OWN_HASH, SIGN, TIME, UPDATED
from hailstorm.engine.stages.deposit import hand_on
from hailstorm.engine.stages.key_join import later_of
from hailstorm.engine.stages.newest import first_of_keys
from hailstorm.engine.stages.sides import Side, has_all, split
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.arrays import order_of
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.keyed_state import Layout, changes, is_among
from hailstorm.ledger.runs import sort_by_hash

_POINTS_AT = "_points_at"  # the hash of what a left row points at, where its own key's is in `_hash`


@dataclass(frozen=True)
class SplitMoved:
    """In: changes of the left table. Out: the row that goes (`_sign` -1) and the row that comes (+1) of each."""

    key: tuple[str, ...]
    values: tuple[str, ...]

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            kinds, old = batch.column(KIND), batch.column(OLD)
            fields = {field.name: pc.struct_field(old, [place]) for place, field in enumerate(old.type)}
            same = {name: batch.column(name) for name in (*self.key, KIND, EVENT_TIME)}
            new = {name: batch.column(name) for name in self.values}
            before = {name: fields[name] for name in self.values}
            for values, sign, other in ((before, -1, "insert"), (new, 1, "delete")):
                signs = pa.repeat(pa.scalar(sign, pa.int8()), len(kinds))
                rows = pa.record_batch({**same, **values, SIGN: signs, OWN_HASH: batch.column(HASH)})
                yield rows.filter(pc.not_equal(kinds, other))


@dataclass(frozen=True)
class JoinByForeignKey:
    """In: split changes of the left table, and changes of the right one, under the names of the result."""

    step: str
    key: pa.Schema  # of the left, and of the result
    values: pa.Schema  # of the left
    others: pa.Schema  # of the right
    on: tuple[str, ...]
    how: str
    rehashed: bool  # a key column has got a wider type, and so another hash
    sides: tuple[Side, ...]
    sinks: tuple[str, ...]
    feeds: bool
    times: bool  # the times of rows matter to those who read it

    phase = "merge"

    @property
    def layout(self) -> Layout:
        return Layout(self.step, tuple(self.key.names))

    @property
    def pointing(self) -> Layout:
        return Layout(f"{self.step}.left", tuple(self.key.names))

    @property
    def pointed_at(self) -> Layout:
        return Layout(f"{self.step}.right", self.on)

    def __call__(self, batches: Batches, task: Task) -> Batches:
        left, right = split(batches, self.sides)
        if left.num_rows or right.num_rows:
            self._update(self._hashed(left), right, task)
        yield from ()

    def _hashed(self, left: pa.Table) -> pa.Table:
        if not self.rehashed:
            return left
        hashes = hash_columns([left.column(name).combine_chunks() for name in self.key.names], left.num_rows)
        return left.set_column(left.schema.get_field_index(OWN_HASH), OWN_HASH, pa.array(hashes))

    def _update(self, left: pa.Table, right: pa.Table, task: Task) -> None:
        comes = pc.greater(left.column(SIGN), 0)
        came, went = left.filter(comes), left.filter(pc.invert(comes))
        written = self._write_pointing(came, went, task)
        known = self._write_pointed_at(right, task)
        rows = self._looked_up(self._affected(came, written, known, task), known, task)
        deleted = went.filter(pc.equal(went.column(KIND), "delete"))
        self._write_result(rows, deleted, task)

    def _write_pointing(self, came: pa.Table, went: pa.Table, task: Task) -> list[pa.Table]:
        """The left rows by what they point at. Those that point nowhere cannot be found that way."""
        came, went = (rows.filter(has_all(rows, self.on)) for rows in (came, went))
        left = went.filter(pc.invert(is_among(went, came, self.key.names)))
        rows = pa.concat_tables([came, left]).combine_chunks()
        if not rows.num_rows:
            return []
        names = [HASH, OWN_HASH, *self.key.names, *self.values.names]
        gone = pa.array(np.arange(rows.num_rows) >= came.num_rows)
        columns = {name: rows.column(name) for name in names}
        return [task.state(self.pointing).write(columns, rows.column(EVENT_TIME), gone)]

    def _write_pointed_at(self, right: pa.Table, task: Task) -> list[pa.Table]:
        if not right.num_rows:
            return []
        columns = {name: right.column(name) for name in (HASH, *self.on, *self.others.names)}
        gone = pc.equal(right.column(KIND), "delete").combine_chunks()
        return [task.state(self.pointed_at).write(columns, right.column(EVENT_TIME), gone)]

    def _affected(self, came: pa.Table, written: list[pa.Table], known: list[pa.Table], task: Task) -> pa.Table:
        """The left rows as they are now: those that came, and those that point at a row of the right that changed.

        Sorted by the hash of their key.
        """
        names = [*self.key.names, *self.values.names]

        def keyed(rows: pa.Table, time: str) -> pa.Table:
            columns = {name: rows.column(name) for name in names}
            own = {EVENT_TIME: rows.column(time), HASH: rows.column(OWN_HASH), _POINTS_AT: rows.column(HASH)}
            return pa.table({**columns, **own})

        found = [keyed(came, EVENT_TIME)]
        for groups in known:
            members = task.state(self.pointing).members(groups, self.on, also=written)
            if members is not None:
                found.append(keyed(members, UPDATED).cast(found[0].schema))
        return first_of_keys(sort_by_hash(pa.concat_tables(found).combine_chunks()), self.key.names)

    def _looked_up(self, rows: pa.Table, known: list[pa.Table], task: Task) -> pa.Table:
        """The rows with what the right has for them, and whether the result has them."""
        points = rows.column(_POINTS_AT).to_numpy()
        places = np.flatnonzero(has_all(rows, self.on).to_numpy(zero_copy_only=False))
        places = places[order_of(points[places])]
        asked = rows.select(list(self.on)).take(pa.array(places)).append_column(HASH, pa.array(points[places]))
        matches = task.state(self.pointed_at).prior(asked, also=known)
        back = np.full(rows.num_rows, -1, dtype=np.int64)
        back[places] = np.arange(len(places))
        taken = pa.array(back, mask=back < 0)
        for field in self.others:
            rows = rows.append_column(field, matches.column(field.name, field.type).take(taken))
        matched = pc.fill_null(matches.found().take(taken), False)
        time = later_of(rows.column(EVENT_TIME), matches.column(UPDATED, TIME).take(taken))
        rows = rows.set_column(rows.schema.get_field_index(EVENT_TIME), EVENT_TIME, time)
        shown = matched if self.how == "inner" else pa.repeat(True, rows.num_rows)
        return rows.append_column(KIND, pc.if_else(shown, "update", "delete")).drop_columns([_POINTS_AT])

    def _write_result(self, rows: pa.Table, deleted: pa.Table, task: Task) -> None:
        columns: dict[str, Any] = {name: deleted.column(name) for name in (*self.key.names, EVENT_TIME, KIND)}
        away = pa.table({**columns, HASH: deleted.column(OWN_HASH)})
        rows = sort_by_hash(pa.concat_tables([rows, away], promote_options="default").combine_chunks())
        state = task.state(self.layout)
        prior = state.prior(rows)
        gone, found = pc.equal(rows.column(KIND), "delete").combine_chunks(), prior.found()
        seen = pc.or_(found, pc.invert(gone))
        if not pc.any(seen).as_py():
            return
        rows, gone, found = rows.filter(seen), gone.filter(seen), found.filter(seen)
        values = [*self.values, *self.others]
        state.write(
            {name: rows.column(name) for name in (HASH, *self.key.names, *(field.name for field in values))},
            rows.column(EVENT_TIME),
            gone,
        )
        if self.sinks or self.feeds:
            changed = changes(
                {name: rows.column(name) for name in self.key.names},
                {field.name: rows.column(field.name) for field in values},
                {field.name: prior.column(field.name, field.type).filter(seen) for field in values},
                found,
                gone,
                rows.column(EVENT_TIME),
                rows.column(HASH),
                pa.repeat(True, rows.num_rows) if self.times else None,
            )
            hand_on(self.step, changed, self.sinks, self.feeds, task, self.times)
