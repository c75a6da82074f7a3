"""Members: the rows behind each group of a fold of a table, for monoids that have no inverse.

When a table's row changes or goes, a maximum cannot be un-taken: the group is folded again from its members. They
are kept as state of their own, sorted by the hash of the group, so that finding them costs what the group is
large, not what the state is large.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import (
    BUCKET,
    DELETED,
    EVENT_TIME,
    HASH,
    HIDDEN,
    INNER,
    KIND,
    OLD,
    OLD_TIME,
    SIGN,
    TIME,
    UPDATED,
    WINDOW_END,
    WINDOW_START,
)
from hailstorm.engine.stages.fold import without_null_keys
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.keyed_state import KeyedState, Layout, is_among
from hailstorm.ledger.runs import sort_by_hash

LIVE = "_live"


@dataclass(frozen=True)
class SignRows:
    """In: changes of a table. Out: the row that goes (-1) and the row that comes (+1) of each."""

    key: tuple[str, ...]  # of the table
    columns: tuple[str, ...]

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            kinds, hidden = batch.column(KIND), {name: batch.column(name) for name in HIDDEN.names}
            old = batch.column(OLD)
            fields = {field.name: pc.struct_field(old, [place]) for place, field in enumerate(old.type)}
            new = {name: batch.column(name) for name in self.columns}
            before = {name: batch.column(name) if name in self.key else fields[name] for name in self.columns}
            past = {**hidden, EVENT_TIME: batch.column(OLD_TIME)} if OLD_TIME in batch.schema.names else hidden
            for columns, sign, other, around in ((before, -1, "insert", past), (new, 1, "delete", hidden)):
                rows = pa.record_batch({**columns, SIGN: pa.repeat(pa.scalar(sign, pa.int64()), len(kinds)), **around})
                yield rows.filter(pc.not_equal(kinds, other))


@dataclass(frozen=True)
class RecallTimes:
    """In: changes of a table. Out: the same, with the time that each row had before, which tells its window."""

    step: str
    key: tuple[str, ...]  # of the table

    phase = "look up"

    @property
    def layout(self) -> Layout:
        return Layout(f"{self.step}.times", self.key)

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return
        rows = sort_by_hash(pa.Table.from_batches(kept))
        state = task.state(self.layout)
        before = state.prior(rows).column(UPDATED, TIME)
        columns = {name: rows.column(name) for name in (HASH, *self.key)}
        state.write(columns, rows.column(EVENT_TIME), pc.equal(rows.column(KIND), "delete"))
        yield from rows.append_column(OLD_TIME, before).to_batches()


@dataclass(frozen=True)
class HideInnerWindows:
    """Of windows of windows, the columns of the inner ones make room for those of the outer ones."""

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield batch.rename_columns([inner_name(name) for name in batch.schema.names])


def inner_name(name: str) -> str:
    return f"{INNER}{name}" if name in (WINDOW_START, WINDOW_END) else name


@dataclass(frozen=True)
class HashGroups:
    """The `_hash` of the group that each row belongs to."""

    by: tuple[str, ...]

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield batch.append_column(
                HASH, pa.array(hash_columns([batch.column(name) for name in self.by], batch.num_rows))
            )


@dataclass(frozen=True)
class GroupMembers:
    """The rows behind each row of a fold, by its key and by the key of the table that they are of."""

    step: str
    by: tuple[str, ...]
    identity: tuple[str, ...]

    @property
    def layout(self) -> Layout:
        return Layout(f"{self.step}.members", tuple(dict.fromkeys((*self.by, *self.identity))))

    def forget(self, left: pa.Table, task: Task) -> None:
        """What leaves the state takes the rows behind it along."""
        state = task.state(self.layout)
        rows = state.members(left.select([*self.by, HASH]), self.by)
        if rows is not None and rows.num_rows:
            forget(rows, state)


def forget(members: pa.Table, state: KeyedState) -> None:
    columns = {name: members.column(name) for name in members.column_names if name not in (BUCKET, UPDATED, DELETED)}
    state.write(columns, members.column(UPDATED), pa.repeat(True, members.num_rows))


@dataclass(frozen=True)
class ReplaceMembers:
    """In: signed rows of the upstream table with the `_hash` of their group, all rows of a group in one task.

    Out: every member of each group that changed, with `_live` true; a group that is now empty gives rows with
    `_live` false, so that the fold learns of it.
    """

    step: str
    by: tuple[str, ...]
    identity: tuple[str, ...]  # the upstream table's key
    columns: tuple[str, ...]  # all columns of the upstream table

    phase = "merge"

    @property
    def members(self) -> GroupMembers:
        return GroupMembers(self.step, self.by, self.identity)

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = [batch for batch in batches if batch.num_rows]
        if not kept:
            return
        signed = without_null_keys(self.step, self.by, pa.Table.from_batches(kept), task)
        if not signed.num_rows:
            return
        layout = self.members.layout
        state = task.state(layout)
        rows = newest_of_each(sort_by_hash(signed), layout.key)
        columns = {name: rows.column(name) for name in (HASH, *self.columns)}
        written = state.write(columns, rows.column(EVENT_TIME), pc.less(rows.column(SIGN), 0))
        members = state.members(written, self.by, also=[written])
        assert members is not None  # those that were written, at least
        yield from self._out(members, True).to_batches()
        # By key and not by hash: a group may be gone while another one has the same hash.
        emptied = written.filter(pc.invert(is_among(written, members, self.by)))
        yield from self._out(emptied, False).to_batches()

    def _out(self, rows: pa.Table, live: bool) -> pa.Table:
        columns = {name: rows.column(name) for name in (*self.columns, HASH)}
        columns |= {EVENT_TIME: rows.column(UPDATED), LIVE: pa.repeat(live, rows.num_rows)}
        return pa.table(columns).combine_chunks()


def newest_of_each(signed: pa.Table, key: tuple[str, ...]) -> pa.Table:
    """One row per member, sorted by hash as they came: an arrival hides the departure of the same one."""
    arrived = pc.greater(signed.column(SIGN), 0)
    came, went = signed.filter(arrived), signed.filter(pc.invert(arrived))
    gone = went.filter(pc.invert(is_among(went, came, key)))
    return sort_by_hash(pa.concat_tables([came, gone])) if gone.num_rows else came
