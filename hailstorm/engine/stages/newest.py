"""Tables of records: the newest one of each key.

Newer is the later event time; of equal times, the later record, in the order of spout, partition and offset. So it does
not matter how the input was cut into ticks. Rows without a time go by arrival.

A key that is removed is remembered for a day of event time, or an older record that comes after it would bring it back.
It is a row of the state that is not shown, and the agenda says when it may go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import (
    DELETED,
    EVENT_TIME,
    GONE,
    HASH,
    HIDDEN,
    OFFSET,
    OWN_HASH,
    PARTITION,
    PRESENT,
    SPOUT,
    TIME,
    UPDATED,
)
from hailstorm.engine.stages.bolt import refuse_row
from hailstorm.engine.stages.deposit import Outlet, hand_on
from hailstorm.engine.stages.sides import Side, split
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.equality import one_chunk
from hailstorm.ledger.keyed_state import Layout, changes, is_among, unless
from hailstorm.ledger.lookup import Matches
from hailstorm.ledger.runs import first_of_each_key, hashes_of, sort_by_hash

REMEMBERED = 86_400_000_000  # µs of event time for which a key that was removed is known
SEEN = "_seen"  # the event time of a record, where the table goes by another one
DELETES = "_deletes"  # what the predicate of a table says of a record
_ORIGIN = (SPOUT, PARTITION, OFFSET)


@dataclass(frozen=True)
class KeepNewest:
    """In: the records of a stream or log, and the keys that may be forgotten. Nothing flows out of it."""

    step: str
    key: tuple[str, ...]
    values: pa.Schema
    sides: tuple[Side, ...]
    sinks: tuple[str, ...]
    feeds: bool
    times: bool  # the times of rows matter to those who read it
    versions: Outlet | None  # who wants every record, also those that are not the newest

    phase = "merge"

    @property
    def layout(self) -> Layout:
        return Layout(self.step, self.key)

    @property
    def agenda(self) -> Layout:
        return forgotten(self.step, self.key)

    def __call__(self, batches: Batches, task: Task) -> Batches:
        records, due = split(batches, self.sides)
        if self.versions is not None and records.num_rows:
            self.versions.give(records.drop_columns([HASH, SEEN]), task)
        newest = newest_of_each(records, self.key)
        prior = task.state(self.layout).prior(newest)
        newer = self._is_newer(newest, prior)
        self._write(newest, prior, newer, self._forgettable(due, newest.filter(newer), task), task)
        if newest.num_rows and (self.sinks or self.feeds):
            changed = self._changes(newest, prior, newer)
            hand_on(self.step, changed, self.sinks, self.feeds, task, self.times)
        yield from ()

    def _is_newer(self, rows: pa.Table, prior: Matches) -> pa.Array:
        """Whether each row comes after what is known of its key. What has no time, or no origin, has come later."""
        known = [(EVENT_TIME, prior.column(UPDATED, TIME))]
        known += [(name, prior.column(name, HIDDEN.field(name).type)) for name in _ORIGIN]
        newer = pa.repeat(True, rows.num_rows)
        for name, before in reversed(known):
            now = rows.column(name).combine_chunks()
            later, earlier = (pc.fill_null(compare(now, before), False) for compare in (pc.greater, pc.less))
            newer = pc.or_(later, pc.and_(pc.invert(earlier), newer))
        untimed = pc.or_(pc.is_null(rows.column(EVENT_TIME)), pc.is_null(prior.column(UPDATED, TIME)))
        return one_chunk(pc.or_(newer, untimed))

    def _write(self, newest: pa.Table, prior: Matches, newer: pa.Array, forgotten: pa.Table, task: Task) -> None:
        """The rows that are newer, and the removed keys that may be forgotten: in one run, because each is of a key."""
        gone, time = newest.column(GONE), newest.column(EVENT_TIME)
        # Without a time nothing is older, so nothing need be remembered.
        deleted = pc.and_(gone, pc.is_null(time))
        known = pc.or_(pc.invert(deleted), prior.found())
        wanted = pc.and_(newer, known)
        columns: dict[str, Any] = {name: newest.column(name) for name in (HASH, *self.key, *_ORIGIN, SEEN)}
        columns |= {field.name: unless(gone, newest.column(field.name)) for field in self.values}
        columns |= {PRESENT: pc.if_else(gone, None, True), UPDATED: time, DELETED: deleted}
        rows = pa.table(columns).filter(wanted)
        remembered = rows.filter(pc.and_(pc.is_null(rows.column(PRESENT)), pc.is_valid(rows.column(SEEN))))
        if forgotten.num_rows:
            away = forgotten.select([*self.key]).append_column(HASH, forgotten.column(OWN_HASH))
            away = away.append_column(DELETED, pa.repeat(True, away.num_rows))
            rows = pa.concat_tables([rows, away], promote_options="default").combine_chunks()
        if rows.num_rows:
            names = [name for name in rows.column_names if name not in (UPDATED, DELETED)]
            task.state(self.layout).write(
                {name: rows.column(name) for name in names},
                rows.column(UPDATED),
                rows.column(DELETED).combine_chunks(),
            )
        self._note(remembered, task)

    def _note(self, removed: pa.Table, task: Task) -> None:
        """Write down until when keys that were removed are remembered."""
        if removed.num_rows:
            due = removed.column(SEEN).cast(pa.int64()).to_numpy() + REMEMBERED
            watermark = task.watermark(self.step)
            if watermark is not None:
                due = np.maximum(due, watermark + 1)
            columns = {name: removed.column(name) for name in self.key}
            columns |= {HASH: pa.array(due), OWN_HASH: removed.column(HASH)}
            task.state(self.agenda).write(columns, removed.column(UPDATED))

    def _forgettable(self, due: pa.Table, arrived: pa.Table, task: Task) -> pa.Table:
        """Of the keys that are due, those that are still removed, for long enough, and have no record in this tick."""
        due = first_of_keys(due, self.key)
        if not due.num_rows:
            return due
        watermark = task.watermark(self.step)
        assert watermark is not None  # or nothing would be due
        prior = task.state(self.layout).prior(due)
        since = pc.add(prior.column(SEEN, TIME).cast(pa.int64()), REMEMBERED)
        old = pc.and_(
            pc.is_null(prior.column(PRESENT, pa.bool_())), pc.fill_null(pc.less_equal(since, watermark), False)
        )
        return due.filter(pc.and_(old, pc.invert(is_among(due, sort_by_hash(arrived), self.key))))

    def _changes(self, newest: pa.Table, prior: Matches, newer: pa.Array) -> pa.Table:
        gone = newest.column(GONE).combine_chunks()
        found = pc.is_valid(prior.column(PRESENT, pa.bool_()))
        # What is removed and was not there is no change.
        seen = pc.and_(newer, pc.or_(found, pc.invert(gone)))
        rows = newest.filter(seen)
        return changes(
            {name: rows.column(name) for name in self.key},
            {field.name: rows.column(field.name) for field in self.values},
            {field.name: prior.column(field.name, field.type).filter(seen) for field in self.values},
            found.filter(seen),
            one_chunk(rows.column(GONE)),
            rows.column(EVENT_TIME),
            rows.column(HASH),
            pa.repeat(True, rows.num_rows) if self.times else None,
        )


def forgotten(step: str, key: tuple[str, ...]) -> Layout:
    """The agenda of keys that were removed."""
    return Layout(f"{step}.gone", key, clock="expiry")


def newest_of_each(records: pa.Table, key: Sequence[str]) -> pa.Table:
    """One record per key, sorted by hash: the one that comes after all others."""
    if records.num_rows < 2:
        return records
    order = [(name, "descending") for name in (EVENT_TIME, *_ORIGIN)]
    number = pa.array(np.arange(records.num_rows))
    keys = records.select([EVENT_TIME, *_ORIGIN]).append_column("_place", number)
    places = pc.sort_indices(keys, sort_keys=[*order, ("_place", "descending")])
    return first_of_keys(sort_by_hash(records.take(places)), key)


def first_of_keys(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The first row of each key, of rows that are sorted by hash."""
    if rows.num_rows < 2:
        return rows
    keep = first_of_each_key(hashes_of(rows), rows.select(list(key)), np.arange(rows.num_rows))
    return rows if keep.all() else rows.filter(pa.array(keep))


@dataclass(frozen=True)
class RecordTimes:
    """Rows with another event time, taken from a column; a row in which that is null is a dead letter."""

    step: str
    column: str

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            times = batch.column(self.column)
            for index in pc.indices_nonzero(times.is_null()).to_pylist() if times.null_count else ():
                refuse_row(batch, index, self.step, f"its time '{self.column}' is null", "dead-letter", task)
            place = batch.schema.get_field_index(EVENT_TIME)
            batch = batch.append_column(SEEN, batch.column(EVENT_TIME))
            batch = batch.set_column(place, HIDDEN.field(EVENT_TIME), times.cast(TIME))
            yield batch.filter(times.is_valid()) if times.null_count else batch


@dataclass(frozen=True)
class MarkGone:
    """Say of every record whether it removes its key, by the predicate `deletes` or because it has no value, and when
    it was seen."""

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            gone = pa.repeat(False, batch.num_rows)
            for name in (DELETES, GONE):
                if name in batch.schema.names:
                    gone = pc.or_(gone, pc.fill_null(batch.column(name), False))
                    batch = batch.drop_columns([name])
            if SEEN not in batch.schema.names:
                batch = batch.append_column(SEEN, batch.column(EVENT_TIME))
            yield batch.append_column(GONE, gone)
