"""Diff: what changed in a step between two moments, key by key.

    open_ledger(path).diff("counts", "monday", "latest").pandas()

One row per key that differs: `kind` (insert, update, delete, on the way from the first moment to the second), the key
columns, and `before` and `after` with the values. Applied to the state of the first moment it gives that of the second.
The work follows what changed (touched.py), and is done in pieces that memory holds.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.errors import LedgerError
from hailstorm.history.touched import touched_runs
from hailstorm.ledger import parts
from hailstorm.ledger.arrays import distinct
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.commit import Run
from hailstorm.ledger.equality import equal_values
from hailstorm.ledger.live import Live
from hailstorm.ledger.lookup import look_up
from hailstorm.ledger.reader import Rows, State, html_of, no_such_step, with_values
from hailstorm.ledger.renaming import called_now
from hailstorm.ledger.runs import Hashes

if TYPE_CHECKING:
    from hailstorm.ledger.commit import StepShape

INSERT, UPDATE, DELETE = "insert", "update", "delete"
KIND, BEFORE, AFTER = "kind", "before", "after"
_PIECE = 500_000  # rows that are looked at at once


@dataclass(frozen=True)
class Diff(Rows):
    """What changed in a step from one moment to another."""

    one: State
    other: State

    def arrow(self) -> pa.Table:
        """The changes as an Arrow table, in order of the key."""
        found = pa.concat_tables([self._empty(), *self.pieces()], promote_options="permissive")
        nested = any(pa.types.is_nested(found.schema.field(name).type) for name in self._key)
        return found if nested or not self._key else found.sort_by([(name, "ascending") for name in self._key])

    def pieces(self) -> Iterator[pa.Table]:
        """The same in no order, some hundred thousand rows at a time."""
        runs = touched_runs(self.one, self.other)
        count = max(1, -(-sum(run.rows for _, run in runs) // _PIECE))
        cuts = [-(2**63) + (2**64 * place) // count for place in range(count + 1)]
        with contextlib.ExitStack() as pins:
            for state in (self.one, self.other):
                pins.enter_context(state.ledger.pinned(state.live.commit))
            for first, after in itertools.pairwise(cuts):
                hashes = self._hashes(runs, first, after - 1)
                if len(hashes):
                    yield self._both(hashes)

    def of_keys(self, wanted: Mapping[str, pa.Array]) -> pa.Table:
        """Only keys that have one of these values in each of these columns."""
        hashes = self._sides()[1].hashes_of_keys(wanted)
        if hashes is None:
            return with_values(self.arrow(), wanted)
        return with_values(self._both(hashes), wanted)

    def key_types(self) -> dict[str, pa.DataType]:
        """The key columns and their types; empty when nothing was ever written."""
        one, other = self._sides()
        return other.key_types() or one.key_types()

    def _repr_html_(self) -> str:
        rows = self.arrow()
        caption = (
            f"{self.step}: {rows.num_rows:,} changes from commit {self.one.live.commit} to {self.other.live.commit}"
        )
        return html_of(rows, caption)

    @property
    def _key(self) -> tuple[str, ...]:
        return self.shape.key

    @property
    def _names(self) -> list[str]:
        kind, before, after = (beside_key(name, self._key) for name in (KIND, BEFORE, AFTER))
        return [kind, *self._key, before, after]

    @property
    def step(self) -> str:
        """The name that the step has at the second moment."""
        return self.other.step

    @property
    def shape(self) -> StepShape:
        """How the step's rows are shown: as at the second moment, if it was there."""
        return self.other.live.steps.get(self.other.step) or self.one.live.steps[self.one.step]

    def _sides(self) -> tuple[State, State]:
        """Both in the shape of one; of a step that was not there yet, nothing."""
        return replace(self.one, shape=self.shape), replace(self.other, shape=self.shape)

    def _hashes(self, runs: Sequence[tuple[State, Run]], first: int, last: int) -> Hashes:
        within = [(state, run) for state, run in runs if run.first <= last and first <= run.last]
        read = [parts.hashes_of_range(state.ledger.cache, state.step, run, first, last) for state, run in within]
        return distinct(np.concatenate(read)) if read else np.zeros(0, dtype=np.int64)

    def _both(self, hashes: Hashes) -> pa.Table:
        """What differs among the keys that have one of these hashes."""
        known: dict[str, pa.Table] = {}
        return self._compared(*(side.of_hashes(hashes, known) for side in self._sides()))

    def _compared(self, one: pa.Table | None, other: pa.Table | None) -> pa.Table:
        """What differs between the rows of some keys at the two moments."""
        columns = [*self._key, *self.shape.values]
        if one is not None and other is not None:
            one, other = _alike(one, other, columns, self._key, self.step)
        found = []
        if other is not None:
            there = None if one is None else look_up(other, self._key, [OpenRun.of(one)])
            is_old = pa.repeat(False, other.num_rows) if there is None else there.found()
            new = other.filter(pc.invert(is_old))
            found.append(self._rows(INSERT, new, None, new))
            values = self.shape.values
            if there is not None and values:  # a row that is all key does not change
                before = pa.table([there.column(name, other.schema.field(name).type) for name in values], list(values))
                same = [equal_values(other.column(name), before.column(name)) for name in values]
                differs = pc.and_(is_old, pc.invert(_all(same, other.num_rows)))
                found.append(self._rows(UPDATE, other.filter(differs), before.filter(differs), other.filter(differs)))
        if one is not None:
            gone = one if other is None else one.filter(pc.invert(look_up(one, self._key, [OpenRun.of(other)]).found()))
            found.append(self._rows(DELETE, gone, gone, None))
        return pa.concat_tables(found, promote_options="permissive") if found else self._empty()

    def _rows(self, kind: str, keys: pa.Table, before: pa.Table | None, after: pa.Table | None) -> pa.Table:
        count = keys.num_rows
        sides = [_struct(side, self.shape.values, count) for side in (before, after)]
        columns = [pa.repeat(kind, count), *(keys.column(name) for name in self._key), *sides]
        return pa.table(columns, self._names)

    def _empty(self) -> pa.Table:
        types = self.key_types()
        keys = [types.get(name, pa.null()) for name in self._key]
        values = pa.struct([pa.field(name, pa.null()) for name in self.shape.values])
        return pa.schema(list(zip(self._names, [pa.string(), *keys, values, values], strict=True))).empty_table()


def beside_key(name: str, key: Collection[str]) -> str:
    """What a column of ours is called. A key column of that name keeps it, and ours begins with an underscore."""
    return name if name not in key else beside_key(f"_{name}", key)


def refuse_unknown(step: str, one: State, other: State, newest: Live) -> None:
    """Raise when a step was at neither of two moments, or when the name means another step at each. A step that was
    not there yet has no rows."""
    there = [state for state in (one, other) if state.step in state.live.steps]
    for state in (one, other):
        formers = {former.name for shape in state.live.steps.values() for former in shape.formerly}
        if state not in there and (not there or step in formers):
            raise no_such_step(step, state.live)
    now = [called_now(state.step, newest.called_then(state.live.commit)) for state in there]
    if len(set(now)) > 1:
        raise LedgerError(
            88,
            f"'{step}' is one step at commit {one.live.commit} and another at commit {other.live.commit}",
            hint=f"They are called '{now[0]}' and '{now[1]}' now: compare one of these with itself.",
        )


def _alike(
    one: pa.Table, other: pa.Table, columns: Sequence[str], key: Sequence[str], step: str
) -> tuple[pa.Table, pa.Table]:
    """The two with columns of the same types: a fold may have got a monoid, or a wider type, in between."""
    for name in key:
        if one.schema.field(name).type != other.schema.field(name).type:
            raise LedgerError(
                49,
                f"the key of step '{step}' has changed its type between the two moments",
                hint=f"'{name}' was {one.schema.field(name).type} and is {other.schema.field(name).type}: "
                "the keys are others. Take two moments on one side of the change.",
            )
    both = pa.unify_schemas([side.select(list(columns)).schema for side in (one, other)], promote_options="permissive")
    for field in both:
        one, other = (_with_type(side, field) for side in (one, other))
    return one, other


def _with_type(rows: pa.Table, field: pa.Field) -> pa.Table:
    at = rows.schema.get_field_index(field.name)
    return rows.set_column(at, field.name, rows.column(at).cast(field.type))


def _all(flags: Sequence[pa.Array], count: int) -> pa.Array:
    found = pa.repeat(True, count)
    for one in flags:
        found = pc.and_(found, one)
    return found


def _struct(rows: pa.Table | None, values: Sequence[str], count: int) -> pa.Array:
    if rows is None:
        return pa.nulls(count, pa.struct([pa.field(name, pa.null()) for name in values]))
    if not values:
        return pa.array([{}] * count, pa.struct([]))
    return pa.StructArray.from_arrays([rows.column(name).combine_chunks() for name in values], list(values))
