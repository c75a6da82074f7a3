"""Joins of two streams: pairs of rows with the same key, near in time.

A row is open until the watermark has passed its bound: the time of the last row that could match it. A pair is made
when its second row comes while the first is open. A row whose own bound has passed when it comes is late.

Open rows are kept by a number that is a time after their bound, the same for a stretch of time, plus a part of the hash
of their key. So rows that can match are found with one search for each of two stretches, however many are kept, and
those that are past are a range that compaction drops: nobody has to take them away.

Where rows without a match come out, the agenda has those that have none so far, by when their bound has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.clock.watermark import BEGINNING, END
from hailstorm.columns import EVENT_TIME, HASH, HIDDEN, NUMBER, OWN_HASH, TICK, UPDATED
from hailstorm.engine.stages.deposit import Outlet
from hailstorm.engine.stages.key_join import later_of
from hailstorm.engine.stages.matching import Flags, Numbers, key_numbers, pairs, times_of
from hailstorm.engine.stages.sides import Side, has_all, numbered, split
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import Layout

_SHORTEST_STRETCH = 60_000_000  # µs: as many slots for the keys of a stretch


@dataclass(frozen=True)
class Stream:
    """One side of the join."""

    name: str  # left or right
    columns: tuple[str, ...]  # public ones
    before: int  # its rows match others from so many µs before their own time ...
    after: int  # ... to so many after it; one of the two may be negative
    gives_unmatched: bool

    @property
    def patience(self) -> int:
        """How far the watermark may be past a row that comes. A row that is not behind it is never late, also where
        all that could match it is."""
        return max(self.after, 0)


@dataclass(frozen=True)
class JoinStreams:
    """In: rows of both streams, and rows of both without a match whose bound has passed."""

    step: str
    on: tuple[str, ...]
    columns: pa.Schema  # the public columns of both sides
    how: str
    streams: tuple[Stream, Stream]
    sides: tuple[Side, ...]
    out: Outlet
    late: Outlet | None

    phase = "merge"

    @property
    def layouts(self) -> tuple[Layout, ...]:
        return tuple(layout for one in self.streams for layout in (self._open(one), unmatched(self.step, one.name)))

    def __call__(self, batches: Batches, task: Task) -> Batches:
        left, right, *due = split(batches, self.sides)
        new = self._on_time((left, right), task)
        found = _Found.of(self, new, task) if new[0].num_rows or new[1].num_rows else None
        made = [] if found is None else self._matched(found)
        made += [self._alone(rows, stream) for rows, stream in zip(due, self.streams, strict=True) if rows.num_rows]
        if found is not None:
            self._remember(found, task)
        rows = [one for one in made if one.num_rows]
        if rows:
            names = self.columns.names if self._shows_both else self.streams[0].columns
            everything = pa.concat_tables(rows).select([*names, *HIDDEN.names])
            self.out.give(everything.combine_chunks(), task)
        yield from ()

    @property
    def _shows_both(self) -> bool:
        return self.how not in ("semi", "anti")

    def _open(self, stream: Stream) -> Layout:
        return Layout(f"{self.step}.{stream.name}", (TICK, NUMBER), clock="kept")

    def _on_time(self, arrived: tuple[pa.Table, pa.Table], task: Task) -> tuple[pa.Table, pa.Table]:
        """The rows whose bound has not passed, each with a name of its own. The others are late."""
        watermark, kept, late = task.watermark(self.step), [], []
        for rows, stream in zip(arrived, self.streams, strict=True):
            if watermark is not None and rows.num_rows:
                is_late = times_of(rows, EVENT_TIME) + stream.patience < watermark
                if is_late.any():
                    late.append(self._alone(rows.filter(pa.array(is_late)), stream))
                    rows = rows.filter(pa.array(~is_late))
            kept.append(numbered(rows, task))
        if late:
            rows = pa.concat_tables(late).combine_chunks()
            task.report.late[self.step] = rows.num_rows
            if self.late is not None:
                self.late.give(rows, task)
        return kept[0], kept[1]

    def _matched(self, found: _Found) -> list[pa.Table]:
        """What comes out because of a match."""
        if self.how == "anti":
            return []
        if self.how == "semi":
            left = found.left
            met = [left.new.filter(pa.array(left.new_matched)), left.old.filter(pa.array(left.old_matched))]
            return [self._alone(rows, self.streams[0]) for rows in met]
        return [self._joined(left, right) for left, right in found.pairs]

    def _joined(self, left: pa.Table, right: pa.Table) -> pa.Table:
        """Pairs of rows. A pair comes from where its left row came from, and has the later time."""
        mine = self.streams[0].columns
        columns: dict[str, Any] = {name: (left if name in mine else right).column(name) for name in self.columns.names}
        columns |= {name: left.column(name) for name in HIDDEN.names}
        columns[EVENT_TIME] = later_of(left.column(EVENT_TIME), right.column(EVENT_TIME))
        return pa.table(columns)

    def _alone(self, rows: pa.Table, stream: Stream) -> pa.Table:
        """Rows of one side, with nulls for what only the other one has."""
        columns: dict[str, Any] = {
            field.name: rows.column(field.name) if field.name in stream.columns else pa.nulls(rows.num_rows, field.type)
            for field in self.columns
        }
        return pa.table({**columns, **{name: rows.column(name) for name in HIDDEN.names}})

    def _remember(self, found: _Found, task: Task) -> None:
        """Keep the rows that came for those that may come, and write down which have no match so far."""
        for half, stream in zip((found.left, found.right), self.streams, strict=True):
            nothing = half.old.slice(0, 0)
            keyed = has_all(half.new, self.on)
            matched_before = half.old.filter(pa.array(half.old_matched))
            if self._shows_both or stream.name == "right":
                self._write_open(stream, half.new.filter(keyed), nothing, task)
            else:  # one match is all that counts: the row need not meet another one
                unmet = half.new.filter(pc.and_(keyed, pa.array(~half.new_matched)))
                self._write_open(stream, unmet, matched_before, task)
            if stream.gives_unmatched:
                unmet = half.new.filter(pa.array(~half.new_matched))
                self._write_unmatched(stream, unmet, matched_before, task)

    def _write_open(self, stream: Stream, rows: pa.Table, gone: pa.Table, task: Task) -> None:
        both = pa.concat_tables([rows, gone]).combine_chunks()
        bounds = times_of(both, EVENT_TIME) + stream.after
        self._write(self._open(stream), both, rows.num_rows, self.slots(both, bounds), task)

    def _write_unmatched(self, stream: Stream, rows: pa.Table, gone: pa.Table, task: Task) -> None:
        both = pa.concat_tables([rows, gone]).combine_chunks()
        due = times_of(both, EVENT_TIME) + stream.after + 1
        watermark = task.watermark(self.step)
        if watermark is not None:
            # Where a bound is negative, that of a row may have passed before it comes. It is due at the next watermark.
            due = np.maximum(due, watermark + 1)
        due = np.minimum(due, END)  # a bound may be after the end of time, and at that everything is due
        self._write(unmatched(self.step, stream.name), both, rows.num_rows, due, task)

    def _write(self, layout: Layout, rows: pa.Table, stay: int, hashes: Numbers, task: Task) -> None:
        """Write rows under these numbers, of which the first ones stay and the others go."""
        if rows.num_rows:
            columns = {name: rows.column(name) for name in rows.column_names if name not in (EVENT_TIME, HASH)}
            own = {OWN_HASH: rows.column(HASH), HASH: pa.array(hashes)}
            gone = pa.array(np.arange(rows.num_rows) >= stay)
            task.state(layout).write({**columns, **own}, rows.column(EVENT_TIME), gone)

    def slots(self, rows: pa.Table, bounds: Numbers) -> Numbers:
        """The numbers under which rows with these bounds are kept: all of them are times after the bound."""
        before, after = self.streams[0].before, self.streams[0].after
        stretch = max(before + after, _SHORTEST_STRETCH)
        slots: Numbers = (bounds // stretch + 1) * stretch + rows.column(HASH).to_numpy() % stretch
        return slots

    def candidates(self, asking: pa.Table, stream: Stream, like: pa.Table, task: Task) -> pa.Table:
        """The open rows of a stream that may match one of these rows of the other one."""
        times = times_of(asking, EVENT_TIME)
        # What matches a row has a bound from the row's time to the length of both bounds after it: two stretches.
        ends = (times, times + stream.before + stream.after)
        slots = np.unique(np.concatenate([self.slots(asking, bounds) for bounds in ends]))
        found = task.state(self._open(stream)).members(pa.table({HASH: slots}), ())
        if found is None:
            return like.slice(0, 0)
        named = {EVENT_TIME: UPDATED, HASH: OWN_HASH}
        rows = pa.table({name: found.column(named.get(name, name)) for name in like.column_names})
        watermark = task.watermark(self.step)
        is_open = times_of(rows, EVENT_TIME) + stream.after >= (watermark if watermark is not None else BEGINNING)
        return rows.filter(pa.array(is_open)).cast(like.schema)


@dataclass(frozen=True)
class _Half:
    """The rows of one side that came, those that were there, and which of them have a match in this tick."""

    new: pa.Table
    old: pa.Table
    new_matched: Flags
    old_matched: Flags


@dataclass(frozen=True)
class _Found:
    """What matches in a tick: both sides, and the pairs as rows of the left beside rows of the right."""

    left: _Half
    right: _Half
    pairs: tuple[tuple[pa.Table, pa.Table], ...]

    @staticmethod
    def of(join: JoinStreams, new: tuple[pa.Table, pa.Table], task: Task) -> _Found:
        """New rows of the left meet all of the right, new ones of the right meet those of the left that were there."""
        asking = [rows.filter(has_all(rows, join.on)) for rows in new]
        old_left = join.candidates(asking[1], join.streams[0], new[0], task)
        old_right = join.candidates(asking[0], join.streams[1], new[1], task)
        rights = pa.concat_tables([asking[1], old_right]).combine_chunks()
        ahead = _matching(asking[0], rights, join.streams[0], join.on)
        back = _matching(asking[1], old_left, join.streams[1], join.on)
        count = asking[1].num_rows
        of_rights = _flags(rights.num_rows, ahead[1])
        met_right = of_rights[:count] | _flags(count, back[0])
        left = _Half(
            new[0],
            old_left,
            _among(new[0], join.on, _flags(asking[0].num_rows, ahead[0])),
            _flags(old_left.num_rows, back[1]),
        )
        right = _Half(new[1], old_right, _among(new[1], join.on, met_right), of_rights[count:])
        pairs = (
            (asking[0].take(pa.array(ahead[0])), rights.take(pa.array(ahead[1]))),
            (old_left.take(pa.array(back[1])), asking[1].take(pa.array(back[0]))),
        )
        return _Found(left, right, pairs)


def _matching(rows: pa.Table, others: pa.Table, stream: Stream, on: Sequence[str]) -> tuple[Numbers, Numbers]:
    """The pairs of rows of a stream with others."""
    keys, other_keys = key_numbers(rows, others, on)
    times = times_of(rows, EVENT_TIME)
    return pairs(keys, times - stream.before, times + stream.after, other_keys, times_of(others, EVENT_TIME))


def _flags(count: int, places: Numbers) -> Flags:
    flags = np.zeros(count, dtype=np.bool_)
    flags[places] = True
    return flags


def _among(rows: pa.Table, on: Sequence[str], flags: Flags) -> Flags:
    """The flags of those rows that have a key, as flags of all."""
    everything = np.zeros(rows.num_rows, dtype=np.bool_)
    everything[np.flatnonzero(has_all(rows, on).to_numpy(zero_copy_only=False))] = flags
    return everything


def unmatched(step: str, side: str) -> Layout:
    """The rows of a side that have no match so far, by when their bound has passed."""
    return Layout(f"{step}.unmatched_{side}", (TICK, NUMBER), clock="event")
