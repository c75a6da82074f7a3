"""Joins of streams, and look-ups of the past: which rows meet depends on the watermarks of the ticks (ticks.py).

Their oracles go through the ticks of the case, row by row. They are drawn over streams whose rows cannot be retried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from tests.generated.batch import Batch, Input, Row
from tests.generated.compare import plain
from tests.generated.expressions import Columns
from tests.generated.steps import Step
from tests.generated.steps_of_tables import Newest, common_type, listed
from tests.generated.steps_of_time import clocked_streams
from tests.generated.ticks import Ticks, place
from tests.generated.values import Chance

On = tuple[tuple[str, str], ...]


def _identity(row: Row, names: Iterable[str]) -> tuple[Any, ...] | None:
    """The values of a row to join on; None where one of them is null: that matches nothing."""
    values = tuple(row[name] for name in names)
    return None if None in values else tuple(plain(value, False) for value in values)


@dataclass(frozen=True)
class Joined(Step):
    """What both kinds share: two sides, of which the right one's columns come after the left's."""

    on: On
    left: Columns
    right: Columns  # beside those of `on`, by their names there
    how: str
    suffix: str
    late: bool  # the rows that come too late, instead of what is joined

    ends = True

    @staticmethod
    def columns_of(left: Step, right: Step, on: On, suffix: str) -> tuple[Columns, Columns] | None:
        """The right's other columns, and those of the result; None when two of these have one name."""
        mine, others = dict(on), tuple(c for c in right.columns if c.name not in [theirs for _, theirs in on])
        columns = [
            replace(c, type=common_type(c.type, right.column(mine[c.name]).type) or c.type) if c.name in mine else c
            for c in left.columns
        ]
        for column in others:
            new = column.name + (suffix if column.name in [c.name for c in left.columns] else "")
            columns.append(replace(column, name=new))
        return (others, tuple(columns)) if len({c.name for c in columns}) == len(columns) else None

    def declared(self, call: str, arguments: str) -> str:
        """The step, or the step and what is late for it."""
        equal = all(mine == theirs for mine, theirs in self.on)
        on = listed([mine for mine, _ in self.on]) if equal else repr(dict(self.on))
        suffix = f", suffix={self.suffix!r}" if self.suffix != "_right" else ""
        name = f"{self.name}_all" if self.late else self.name
        left, right = self.inputs[:2]
        made = f"{name} = {left}.{call}({name!r}, {right}, on={on}, how={self.how!r}, {arguments}{suffix})"
        return f"{made}\n{self.name} = {name}.late.where({self.name!r}, 'true')" if self.late else made

    def joined(self, left: Row | None, right: Row | None) -> Row:
        """A row of the result. Without a left one, the columns of `on` are those of the right one."""
        mine = dict(self.on)
        of_left = [
            left[column.name]
            if left is not None
            else right[mine[column.name]]
            if right and column.name in mine
            else None
            for column in self.left
        ]
        of_right = [None if right is None else right[column.name] for column in self.right]
        values = [*of_left, *of_right][: len(self.columns)]  # a semi join does not show the right's
        time = max(row["_time"] for row in (left, right) if row is not None)
        return {**dict(zip([column.name for column in self.columns], values, strict=True)), "_time": time}


@dataclass(eq=False)
class _Waiting:
    """A row on one side of a join: until when it is open, and whether it has met another one."""

    row: Row
    key: tuple[Any, ...] | None
    bound: datetime
    arrived: datetime  # the watermark of its tick
    met: bool = False

    @property
    def is_late(self) -> bool:
        """A row that is not behind the watermark is never late, also where a negative bound is."""
        return max(self.bound, self.row["_time"]) < self.arrived

    @property
    def released(self) -> datetime:
        """Once the watermark is after this, it comes out alone."""
        return max(self.bound, self.arrived)


@dataclass(frozen=True)
class StreamJoin(Joined):
    before: int  # minutes
    after: int
    spouts: tuple[str, ...]

    kind = "stream-join"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = clocked_streams(known)
        pairs = [(a, b) for a in sources for b in sources if a[0] is not b[0] or chance.random() < 0.2]
        chance.shuffle(pairs)
        for (left, left_spouts), (right, right_spouts) in pairs:
            on, suffix = _draw_on(chance, left, right), chance.choice(["_right", "_right", "2"])
            found = cls.columns_of(left, right, on, suffix) if on else None
            if found is not None:
                others, columns = found
                how, late = chance.choice(["inner", "left", "right", "full", "semi", "anti"]), chance.random() < 0.3
                if how in ("semi", "anti") and not late:
                    columns = left.columns
                spouts = tuple(sorted({*left_spouts, *right_spouts}))
                before = chance.choice(_MINUTES)
                after = chance.choice([before, before, *_MINUTES])
                if chance.random() < 0.25:
                    further = chance.choice(_MINUTES)
                    before, after = chance.choice([(-before, before + further), (before + further, -before)])
                inputs = (left.name, right.name)
                return cls(
                    name, inputs, columns, None, on, left.columns, others, how, suffix, late, before, after, spouts
                )
        return None

    def code(self) -> str:
        before, after = f"{self.before} minutes", f"{self.after} minutes"
        return self.declared("join", f"within={before if before == after else (before, after)!r}")

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        ticks, (mine, theirs) = batch.ticks, zip(*self.on, strict=True)
        before, after = timedelta(minutes=self.before), timedelta(minutes=self.after)
        lefts = self._by_tick(inputs[0], mine, after, ticks)
        rights = self._by_tick(inputs[1], theirs, before, ticks)
        late: list[Row] = []
        pairs: list[Row] = []
        all_left: list[_Waiting] = []
        all_right: list[_Waiting] = []
        for tick in sorted({*lefts, *rights}):
            watermark = ticks.watermark(self.spouts, tick)
            new = [lefts.get(tick, []), rights.get(tick, [])]
            late += [self.joined(one.row, None) for one in new[0] if one.is_late]
            late += [self.joined(None, one.row) for one in new[1] if one.is_late]
            new_left, new_right = ([one for one in side if not one.is_late] for side in new)
            old_left = [one for one in all_left if one.bound >= watermark]
            old_right = [one for one in all_right if one.bound >= watermark]
            meetings = [
                *((left, right) for left in new_left for right in [*new_right, *old_right]),
                *((left, right) for left in old_left for right in new_right),
            ]
            for left, right in meetings:
                time, other = left.row["_time"], right.row["_time"]
                if left.key is not None and left.key == right.key and time - before <= other <= time + after:
                    left.met = right.met = True
                    pairs.append(self.joined(left.row, right.row))
            all_left += new_left
            all_right += new_right
        if self.late:
            return late
        return [
            *(pairs if self.how in ("inner", "left", "right", "full") else []),
            *self._alone(all_left, all_right, ticks),
        ]

    def _by_tick(
        self, source: Input, names: Sequence[str], further: timedelta, ticks: Ticks
    ) -> dict[int, list[_Waiting]]:
        by_tick = {}
        for tick, rows in ticks.cut(source.rows):
            watermark = ticks.watermark(self.spouts, tick)
            by_tick[tick] = [_Waiting(row, _identity(row, names), row["_time"] + further, watermark) for row in rows]
        return by_tick

    def _alone(self, lefts: Sequence[_Waiting], rights: Sequence[_Waiting], ticks: Ticks) -> list[Row]:
        """The rows that come out by themselves: those that have met one, in a semi join; in others, those that can
        meet none any more."""
        watermark = ticks.watermark(self.spouts)
        if self.how == "semi":
            return [self.joined(one.row, None) for one in lefts if one.met]
        rows = []
        if self.how in ("left", "full", "anti"):
            rows += [self.joined(one.row, None) for one in lefts if not one.met and one.released < watermark]
        if self.how in ("right", "full"):
            rows += [self.joined(None, one.row) for one in rights if not one.met and one.released < watermark]
        return rows


_MINUTES = (0, 1, 15, 15, 30, 45, 60, 1440)


def _draw_on(chance: Chance, left: Step, right: Step) -> On:
    """One or two pairs of columns that compare; none when there are none."""
    pairs = [(a.name, b.name) for a in left.columns for b in right.columns if common_type(a.type, b.type)]
    chance.shuffle(pairs)
    chosen: list[tuple[str, str]] = []
    for pair in sorted(pairs, key=lambda pair: pair[0] != pair[1]) if chance.random() < 0.6 else pairs:
        if len(chosen) < chance.choice([1, 1, 2]) and all(
            pair[side] not in [p[side] for p in chosen] for side in (0, 1)
        ):
            chosen.append(pair)
    return tuple(chosen)


@dataclass(frozen=True)
class PastLookup(Joined):
    """Each row with what a table of records had for it at the time of the row. Its third input is what the table is
    made of."""

    of: Newest
    spouts: tuple[str, ...]  # of both sides
    table_spouts: tuple[str, ...]

    kind = "past-lookup"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        clocked = {step.name: (step, spouts) for step, spouts in clocked_streams(known)}
        made = [step for step in known if isinstance(step, Newest) and step.inputs[0] in clocked]
        pairs = [(stream, table) for stream in clocked.values() for table in made]
        chance.shuffle(pairs)
        for (stream, spouts), table in pairs:
            on, suffix = _columns_for(chance, stream, table), chance.choice(["_right", "2"])
            found = cls.columns_of(stream, table, on, suffix) if on else None
            if found is not None:
                others, columns = found
                how, late = chance.choice(["left", "inner"]), chance.random() < 0.25
                of_table = clocked[table.inputs[0]][1]
                both = tuple(sorted({*spouts, *of_table}))
                inputs = (stream.name, table.name, table.inputs[0])
                columns = stream.columns if late else columns
                return cls(
                    name, inputs, columns, None, on, stream.columns, others, how, suffix, late, table, both, of_table
                )
        return None

    def code(self) -> str:
        return self.declared("lookup", "as_of='event time'")

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        ticks = batch.ticks
        stream, _, records = inputs
        late = [row for row in stream.rows if row["_time"] < ticks.watermark(self.spouts, ticks.of(row))]
        if self.late:
            return late
        are_late = {id(row) for row in late}
        versions = self._versions(records, batch)
        mine, theirs = zip(*self.on, strict=True)
        found = []
        for row in stream.rows:
            answered = None if id(row) in are_late else self._answered(row, ticks)
            if answered is None:
                continue
            key = _identity(row, mine)
            known = [
                (version, gone)
                for version, gone in versions
                if key is not None
                and _identity(version, theirs) == key
                and ticks.of(version) <= answered
                and version["_time"] <= row["_time"]
            ]
            newest, gone = max(known, key=lambda pair: place(pair[0]), default=(None, True))
            if not gone or self.how == "left":
                found.append(self.joined(row, None if gone else newest))
        return found

    def _versions(self, records: Input, batch: Batch) -> list[tuple[Row, bool]]:
        """The records that the table takes, and which of them remove their key."""
        known = replace(records, rows=[row for row in records.rows if not self.of.refuses(row)])
        removals = self.of.removals(known, batch)
        return [(row, number in removals) for number, row in enumerate(known.rows)]

    def _answered(self, row: Row, ticks: Ticks) -> int | None:
        """The last tick whose versions a row sees: its own, if no other can come; else that which brings the watermark
        past it. None while it waits."""
        arrived = ticks.of(row)
        if row["_time"] < ticks.watermark(self.table_spouts, arrived):
            return arrived
        later = (tick for tick in range(arrived, ticks.number) if row["_time"] < ticks.after(self.spouts, tick))
        return next(later, None)


def _columns_for(chance: Chance, stream: Step, table: Step) -> On:
    """A column of the stream for each of the table's key; none when there is none that compares."""
    found: list[tuple[str, str]] = []
    for theirs in table.key or ():
        taken, type_ = [mine for mine, _ in found], table.column(theirs).type
        usable = [c.name for c in stream.columns if c.name not in taken and common_type(c.type, type_)]
        if not usable:
            return ()
        found.append((theirs if theirs in usable and chance.random() < 0.7 else chance.choice(usable), theirs))
    return tuple(found)


KINDS: tuple[tuple[type[Step], int], ...] = ((StreamJoin, 4), (PastLookup, 8))
