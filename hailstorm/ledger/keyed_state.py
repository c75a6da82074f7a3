"""Keyed state: what every stateful step does with its rows, in one piece.

A step finds the prior rows of some keys, or the rows of a group, or what is due; it decides; it writes the new rows as
a sorted run and says what changed. The decision is the step's own (engine/stages). All the rest is here, and nobody
else knows how runs are laid out.

A step may have several tables of state, each a `Layout` with a name of its own: `counts`, `counts.members`,
`counts.agenda`. No user's step has a dot in its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import (
    BUCKET,
    DELETED,
    EVENT_TIME,
    HASH,
    HIDDEN,
    KIND,
    OLD,
    PANE,
    UPDATED,
    WINDOW_END,
    WINDOW_START,
)
from hailstorm.ledger.arrays import first_of_each
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.commit import Run
from hailstorm.ledger.compaction import hash_ranges
from hailstorm.ledger.equality import equal_values, one_chunk
from hailstorm.ledger.lookup import (
    Between,
    Matches,
    all_members,
    look_up,
    numbered_rows,
    numbers_in,
    range_of,
)
from hailstorm.ledger.runs import Hashes, buckets_of, hashes_of, is_sorted, merge_runs, sort_by_hash

ALL_HASHES: Between = (-(1 << 63), (1 << 63) - 1)


@dataclass(frozen=True)
class Layout:
    """One table of state. Two rows with equal `key` columns are the same row, and the newer one is right.

    Rows are sorted by `_hash`. That is the hash of the whole key, or of the part of it that makes a group (members),
    or the time in microseconds at which a row is due (an agenda). By which clock the rows of an agenda are due is in
    `clock`: `event`, the watermark; `expiry`, the watermark too, but the end of input lets nothing expire; `system`,
    the wall clock of the tick; `tick`, the number of the commit that wrote them, so that they are due in the next tick.
    `kept` rows are past by the watermark, too, and then nobody is told: they are dropped.
    """

    table: str
    key: tuple[str, ...]
    clock: str = ""

    @property
    def moment(self) -> str | None:
        """The column of the key by which rows of one time are told from those of others: of windows and of panes. The
        end of a window rather than its start: a session that grows has a later end."""
        return next((name for name in (PANE, WINDOW_END, WINDOW_START) if name in self.key), None)

    @property
    def step(self) -> str:
        """The step that it is a table of."""
        return self.table.partition(".")[0]


class KeyedState:
    """One table of state as a tick finds it, and where the tick writes it.

    `runs` are the live ones, newest first; `write_run` takes a sorted table. A run that this tick has written is not
    among them: a stage that asks twice gets the same answer.

    A run is opened when rows are asked for that it may hold: a machine whose tasks own some ranges of hashes has
    copies of the runs of these ranges, and of no others.
    """

    def __init__(
        self,
        layout: Layout,
        runs: Sequence[Run],
        open_run: Callable[[str, Run], OpenRun],
        write_run: Callable[[str, pa.Table], object],
    ) -> None:
        self._layout, self._runs, self._open_run, self._write_run = layout, runs, open_run, write_run

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written."""
        return not self._runs

    def prior(self, rows: pa.Table, also: Sequence[pa.Table] = ()) -> Matches:
        """The newest state row of each of these rows' keys. `rows` are sorted by hash.

        Rows of `also`, sorted by hash with one row per key, count as newer: what this tick has written.
        """
        return look_up(rows, self._layout.key, [*map(OpenRun.of, also), *self._opened(rows)], self._layout.moment)

    def members(
        self,
        groups: pa.Table,
        by: Sequence[str],
        also: Sequence[pa.Table] = (),
        after: tuple[str, int] | None = None,
    ) -> pa.Table | None:
        """Every live row of these groups; None when there is none, or nothing was ever written.

        `groups` are sorted by hash and hold the columns `by`. Rows of `also`, sorted by hash, count as newer. With
        `after`, a time in the key and a moment: only rows whose time is later.
        """
        found = [*also, *all_members(first_of_each(hashes_of(groups)), self._opened(groups), after)]
        if not found:
            return None
        rows = merge_runs(found, self._layout.key, drop_deleted=True)
        # Rows of another group come along where hashes are equal.
        return rows.filter(is_among(rows, groups, by)) if by else rows

    def numbered(
        self,
        number: str,
        wanted: Callable[[Hashes], npt.NDArray[np.bool_]],
        columns: pa.Schema,
        between: Between | None = None,
    ) -> list[pa.Table]:
        """Every live row whose `number`, a column of integers in the key, is wanted: in several tables, sorted by hash,
        with the hash, the other columns of the key, and these columns. With `between`, of a range of hashes."""
        runs = self._between(*(between or ALL_HASHES))
        return numbered_rows(self._layout.key, number, wanted, columns, runs, between)

    def numbers(self, number: str, between: Between | None = None) -> Hashes:
        """The different numbers that rows have, sorted. Some rows may be gone."""
        return numbers_in(number, self._between(*(between or ALL_HASHES)))

    def due(self, after: int, until: int) -> pa.Table | None:
        """The rows of an agenda that are due in (after, until], in microseconds, in order of time."""
        found = [rows for run in self._between(after + 1, until) if (rows := range_of(run, after, until)).num_rows]
        return merge_runs(found, self._layout.key, drop_deleted=True) if found else None

    def pieces(self) -> Iterator[pa.Table]:
        """Every live row, a range of hashes at a time: for whoever has to see all of a state that may be large."""
        opened = [self._open_run(self._layout.table, run) for run in self._runs]
        for tables in hash_ranges(opened) if opened else ():
            yield merge_runs(tables, self._layout.key, drop_deleted=True)

    def everything(self, also: Sequence[pa.Table] = ()) -> pa.Table | None:
        """Every live row. For states that are small by nature.

        Rows of `also`, sorted by hash, count as newer.
        """
        tables = [*also, *(self._open_run(self._layout.table, run).table for run in self._runs)]
        return merge_runs(tables, self._layout.key, drop_deleted=True) if tables else None

    def _opened(self, rows: pa.Table) -> list[OpenRun]:
        """The runs that may hold something of these rows, newest first."""
        hashes = hashes_of(rows)
        return self._between(int(hashes.min()), int(hashes.max())) if len(hashes) else []

    def _between(self, first: int, last: int) -> list[OpenRun]:
        wanted = (run for run in self._runs if run.first <= last and run.last >= first)
        return [self._open_run(self._layout.table, run) for run in wanted]

    def write(self, columns: Mapping[str, Any], updated: Any, deleted: Any = None) -> pa.Table:
        """Write rows: `_hash`, the key and what else is to be remembered. The rows as they are in the run.

        A deleted row keeps its key only: what a key's last rows made of its values depends on how they were cut
        into ticks.
        """
        rows = pa.table({**columns, UPDATED: updated, DELETED: _none(len(updated)) if deleted is None else deleted})
        if deleted is not None and pc.any(deleted).as_py():
            for place, name in enumerate(rows.column_names):
                if name not in (*self._layout.key, HASH, UPDATED, DELETED):
                    rows = rows.set_column(place, name, unless(deleted, rows.column(name)))
        rows = rows.combine_chunks() if is_sorted(rows) else sort_by_hash(rows)
        rows = rows.add_column(0, BUCKET, buckets_of(hashes_of(rows)))
        if rows.num_rows:
            self._write_run(self._layout.table, rows)
        return rows


def changes(
    key: Mapping[str, Any],
    values: Mapping[str, Any],
    old: Mapping[str, Any],
    found: Any,
    deleted: Any,
    time: Any,
    hashes: Any,
    moved: Any = None,
) -> pa.Table:
    """Changes as they flow: key, new values, `_kind`, `_old`, hidden columns. Keys that stayed equal are left out.

    `old` are the values before, where `found`; `deleted` says which keys are gone (None: none is). `moved` says which
    keys have another time than before, where a step below reads it: they stay, also when their values are equal.
    """
    count = len(found)
    if deleted is None:
        kind = pc.if_else(found, "update", "insert")
    else:
        kind = pc.if_else(deleted, "delete", pc.if_else(found, "update", "insert"))
        values = {name: unless(deleted, column) for name, column in values.items()}
    same = [equal_values(value, old[name]) for name, value in values.items()]
    changed = pc.invert(reduce(pc.and_, same, pc.equal(kind, "update")))
    if moved is not None:
        changed = pc.or_(changed, moved)
    before = pa.StructArray.from_arrays(
        [one_chunk(old[name]) for name in values], names=list(values), mask=pc.invert(one_chunk(found))
    )
    nowhere = {field.name: pa.nulls(count, field.type) for field in HIDDEN if field.name != EVENT_TIME}
    rows = pa.table({**key, **values, KIND: kind, OLD: before, **nowhere, EVENT_TIME: time, HASH: hashes})
    return rows.filter(changed).combine_chunks()


def seen_changes(changes: pa.Table) -> pa.Table:
    """Without updates that leave all values equal: what sinks and bolts see of a table."""
    old = one_chunk(changes.column(OLD))
    same = [
        equal_values(changes.column(field.name), pc.struct_field(old, [place])) for place, field in enumerate(old.type)
    ]
    return changes.filter(pc.invert(reduce(pc.and_, same, pc.equal(changes.column(KIND), "update"))))


def is_among(rows: pa.Table, others: pa.Table, by: Sequence[str]) -> pa.Array:
    """For each row, sorted by hash, whether one of the others, sorted too, has the same values in these columns."""
    return look_up(rows, by, [OpenRun.of(others.select([HASH, *dict.fromkeys(by)]))]).found()


def unless(deleted: Any, column: Any) -> Any:
    """The column with nulls for keys that are gone."""
    gone = one_chunk(deleted).to_numpy(zero_copy_only=False)
    return column.take(pa.array(np.arange(len(gone)), mask=gone)) if gone.any() else column


def _none(count: int) -> pa.Array:
    return pa.array(np.zeros(count, dtype=np.bool_))
