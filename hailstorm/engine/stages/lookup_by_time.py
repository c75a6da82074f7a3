"""Look-ups of the past: every row of a stream with the version of a table's row that was valid at its time.

A row waits in the agenda until the watermark has passed its time: then no version that it must see can come any more,
but a late one. A version leaves when the watermark has reached the one that followed it, because a row that asks for an
earlier time would be late. A row that was removed is a version, too, and is known as long as the table itself knows it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.watermark import END
from hailstorm.columns import (
    DELETED,
    EVENT_TIME,
    GONE,
    HASH,
    HIDDEN,
    NUMBER,
    OFFSET,
    OWN_HASH,
    PARTITION,
    SPOUT,
    TICK,
    UPDATED,
)
from hailstorm.engine.stages.lookup import LookupShape, places_among
from hailstorm.engine.stages.matching import Flags, Numbers, key_numbers, newest_until, times_of
from hailstorm.engine.stages.newest import REMEMBERED, first_of_keys
from hailstorm.engine.stages.sides import has_all, numbered, split
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.arrays import order_of
from hailstorm.ledger.keyed_state import Layout, is_among
from hailstorm.ledger.runs import sort_by_hash

SINCE = "_since"  # when a version began
_ORDER = (SINCE, SPOUT, PARTITION, OFFSET)
_NOWHERE = {SPOUT: "", PARTITION: -1, OFFSET: -1}  # of a record that does not know where it came from


@dataclass(frozen=True)
class LookUpByTime:
    """In: rows of the stream, records of the table, rows whose time has come, and keys with versions that may go."""

    shape: LookupShape
    table: str  # the step whose watermark says which versions are known

    phase = "look up"

    @property
    def versions(self) -> Layout:
        return Layout(f"{self.shape.step}.versions", (*self.shape.on, *_ORDER))

    @property
    def waiting(self) -> Layout:
        return waiting(self.shape.step)

    @property
    def expiring(self) -> Layout:
        return expiring(self.shape.step, self.shape.on)

    def __call__(self, batches: Batches, task: Task) -> Batches:
        rows, records, ready, expiring = split(batches, self.shape.sides)
        came = self._as_versions(records)
        self._keep_versions(came, expiring, task)
        known, unknown = self._arrived(rows, task)
        self._wait(unknown, task)
        asking = pa.concat_tables([known, ready.select(known.column_names)]).combine_chunks()
        if asking.num_rows:
            self.shape.out.give(self._answered(sort_by_hash(asking), came, task).combine_chunks(), task)
        yield from ()

    def _arrived(self, rows: pa.Table, task: Task) -> tuple[pa.Table, pa.Table]:
        """The rows whose versions are all known, and those that must wait. Those that are too late go their own way."""
        watermark = task.watermark(self.shape.step)
        if watermark is None or not rows.num_rows:
            return rows.slice(0, 0), rows
        times = times_of(rows, EVENT_TIME)
        is_late = times < watermark
        if is_late.any():
            task.report.late[self.shape.step] = int(is_late.sum())
            if self.shape.late is not None:
                names = [*self.shape.rows.names, *HIDDEN.names]
                self.shape.late.give(rows.filter(pa.array(is_late)).select(names).combine_chunks(), task)
        known_until = task.watermark(self.table)
        is_known = ~is_late & (times < (watermark if known_until is None else known_until))
        return rows.filter(pa.array(is_known)), rows.filter(pa.array(~is_late & ~is_known))

    def _wait(self, rows: pa.Table, task: Task) -> None:
        if rows.num_rows:
            named = numbered(rows, task)
            columns = {name: named.column(name) for name in named.column_names if name not in (HASH, EVENT_TIME)}
            own = {HASH: pa.array(np.minimum(times_of(rows, EVENT_TIME) + 1, END)), OWN_HASH: rows.column(HASH)}
            task.state(self.waiting).write({**columns, **own}, rows.column(EVENT_TIME))

    def _answered(self, rows: pa.Table, came: pa.Table, task: Task) -> pa.Table:
        shape = self.shape
        asking = has_all(rows, shape.on)
        asked = rows.filter(asking)
        groups = first_of_keys(asked.select([*shape.on, HASH]), shape.on)
        versions = task.state(self.versions).members(groups, shape.on, also=[came] if came.num_rows else [])
        versions = came.slice(0, 0) if versions is None else _in_order(versions.select(came.column_names))
        keys, of_versions = key_numbers(asked, versions, shape.on)
        found = newest_until(keys, times_of(asked, EVENT_TIME), of_versions, times_of(versions, SINCE))
        places = pa.array(found, mask=found < 0)
        is_there = pc.fill_null(pc.invert(versions.column(GONE).take(places)), False).combine_chunks()
        places = pc.if_else(is_there, places, pa.scalar(None, pa.int64()))
        taken = places_among(asking)
        matched = pc.fill_null(is_there.take(taken), False)
        others = {f.name: versions.column(f.name).take(places).combine_chunks().take(taken) for f in shape.others}
        return shape.answered(rows, matched, others)

    def _as_versions(self, records: pa.Table) -> pa.Table:
        """The records as the state keeps them, one for each place that a record can come from."""
        columns = {name: records.column(name) for name in (*self.shape.on, *self.shape.others.names, GONE, HASH)}
        columns |= {name: pc.fill_null(records.column(name), value) for name, value in _NOWHERE.items()}
        times = {SINCE: records.column(EVENT_TIME), UPDATED: records.column(EVENT_TIME)}
        rows = pa.table({**columns, **times, DELETED: pa.repeat(False, records.num_rows)})
        last_first = pa.array(np.arange(rows.num_rows)[::-1])
        return first_of_keys(sort_by_hash(rows.take(last_first)), self.versions.key)

    def _keep_versions(self, came: pa.Table, expiring: pa.Table, task: Task) -> None:
        """Write the versions that came, and take away those that nobody can ask for any more."""
        names = [*self.shape.on, HASH]
        groups = pa.concat_tables([came.select(names), expiring.select(names)]).combine_chunks()
        if not groups.num_rows:
            return
        groups = first_of_keys(sort_by_hash(groups), self.shape.on)
        versions = task.state(self.versions).members(groups, self.shape.on, also=[came] if came.num_rows else [])
        if versions is None:
            return
        versions = _in_order(versions.select(came.column_names))
        keys, _ = key_numbers(versions, versions.slice(0, 0), self.shape.on)
        versions = versions.take(pa.array(order_of(keys))).combine_chunks()
        ends, follows = _ends(versions, np.sort(keys, kind="stable"))
        watermark = task.watermark(self.shape.step)
        gone = ends <= watermark if watermark is not None else np.zeros(len(ends), dtype=np.bool_)
        self._write(came, sort_by_hash(versions.filter(pa.array(gone))), task)
        is_new = is_among(sort_by_hash(versions), came, self.versions.key)
        back = order_of(versions.column(HASH).to_numpy())
        arrived = np.zeros(len(ends), dtype=np.bool_)
        arrived[back] = is_new.to_numpy(zero_copy_only=False)
        # A version that came ends when the next one begins, and is itself the end of the one before it.
        moved = arrived.copy()
        moved[:-1] |= arrived[1:] & follows[1:]
        self._note(versions, ends, moved & ~gone & (ends < END), task)

    def _write(self, came: pa.Table, gone: pa.Table, task: Task) -> None:
        stays = came.filter(pc.invert(is_among(came, gone, self.versions.key)))
        rows = pa.concat_tables([stays, gone]).combine_chunks()
        if rows.num_rows:
            columns = {name: rows.column(name) for name in rows.column_names if name not in (UPDATED, DELETED)}
            deleted = pa.array(np.arange(rows.num_rows) >= stays.num_rows)
            task.state(self.versions).write(columns, rows.column(UPDATED), deleted)

    def _note(self, versions: pa.Table, ends: Numbers, wanted: Flags, task: Task) -> None:
        """Write down when versions may go."""
        rows, due = versions.filter(pa.array(wanted)), ends[wanted]
        if rows.num_rows:
            columns = {name: rows.column(name) for name in self.shape.on}
            noted = pa.table(
                {**columns, HASH: pa.array(due), OWN_HASH: rows.column(HASH), UPDATED: rows.column(UPDATED)}
            )
            noted = first_of_keys(sort_by_hash(noted), self.shape.on)
            task.state(self.expiring).write(
                {name: noted.column(name) for name in (*self.shape.on, HASH, OWN_HASH)}, noted.column(UPDATED)
            )


def waiting(step: str) -> Layout:
    """The rows whose time has not come, by their time."""
    return Layout(f"{step}.waiting", (TICK, NUMBER), clock="event")


def expiring(step: str, on: tuple[str, ...]) -> Layout:
    """The keys of which a version may go, by when."""
    return Layout(f"{step}.expiring", on, clock="expiry")


def _in_order(versions: pa.Table) -> pa.Table:
    """By when they began; of equal times, by the place of their records."""
    return versions.take(pc.sort_indices(versions, sort_keys=[(name, "ascending") for name in _ORDER])).combine_chunks()


def _ends(versions: pa.Table, keys: Numbers) -> tuple[Numbers, Flags]:
    """When each version ends, of versions in order of key and time, and whether each follows another one of its key.

    The last one of a key has no end; when it says that the key is gone, that is known for some time.
    """
    since = times_of(versions, SINCE)
    gone = versions.column(GONE).to_numpy()
    ends = np.where(gone, np.minimum(since + REMEMBERED, END - 1), END)
    follows = np.zeros(len(keys), dtype=np.bool_)
    follows[1:] = keys[1:] == keys[:-1]
    ends[:-1] = np.where(follows[1:], since[1:], ends[:-1])
    return ends, follows
