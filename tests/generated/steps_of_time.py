"""The kinds of steps that cut a stream by event time: windows and sessions, as folds by key and window.

Their input has event times of ordinary years (`Spout.times`). Most are drawn so that a batch over all rows says what
they hold: late rows correct, and none is too late for that. Those that leave late rows out, or that are shown when
they have ended, ask for the ticks of the case (ticks.py), and are drawn over streams whose rows cannot be retried.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.generated.batch import Batch, Input, Row
from tests.generated.compare import plain
from tests.generated.expressions import Column
from tests.generated.steps import Fold, Spout, Step, draw_key, draw_monoids, streams
from tests.generated.ticks import Ticks
from tests.generated.values import Chance, Type

BOUNDS = (Column("window_start", Type("timestamp")), Column("window_end", Type("timestamp")))
_KEEP = "keep='20000 days'"  # longer than from the first to the last of TIMES_OF_YEARS
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Span = tuple[datetime, datetime]


def timed_streams(known: Sequence[Step]) -> list[Step]:
    """The streams whose rows all have event times of ordinary years."""
    return [
        step
        for step in streams(known)
        if all(spout.times is not None for spout in _spouts(step, known)) and not _comes_through("errors", step, known)
    ]


def _spouts(step: Step, known: Sequence[Step]) -> list[Spout]:
    if isinstance(step, Spout):
        return [step]
    return [spout for source in known if source.name in step.inputs for spout in _spouts(source, known)]


def clocked_streams(known: Sequence[Step]) -> list[tuple[Step, tuple[str, ...]]]:
    """The streams each of whose rows came in the tick of its record, with the spouts above them."""
    return [
        (step, tuple(sorted({spout.name for spout in _spouts(step, known)})))
        for step in timed_streams(known)
        # Behind a bolt a row may come again, from a dead letter, in another tick.
        if not _comes_through("bolt", step, known)
    ]


def _comes_through(kind: str, step: Step, known: Sequence[Step]) -> bool:
    return step.kind == kind or any(_comes_through(kind, one, known) for one in known if one.name in step.inputs)


@dataclass(frozen=True)
class Closing:
    """When a window is shown, and what becomes of late rows."""

    emit: str = "updates"
    late: str = "correct"
    spouts: tuple[str, ...] = ()  # by whose watermark

    @property
    def code(self) -> str:
        emit = f", emit={self.emit!r}" if self.emit != "updates" else ""
        return f"{_KEEP}{emit}" + (f", late={self.late!r}" if self.late != "correct" else "")

    def refuses(self, end: datetime, row: Row, ticks: Ticks) -> bool:
        """Whether a row is late for a window that ends then; never where no watermark is known of."""
        return self.late != "correct" and bool(self.spouts) and end <= ticks.watermark(self.spouts, ticks.of(row))

    def shows(self, end: datetime, ticks: Ticks) -> bool:
        """Whether a window that ends then is shown by now."""
        return self.emit == "updates" or end <= ticks.watermark(self.spouts)


@dataclass(frozen=True)
class Cut(Fold):
    """What windows and sessions share: the bounds are the end of the key."""

    closing: Closing

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources, clocked = timed_streams(known), clocked_streams(known)
        if not sources:
            return None
        source, closing = chance.choice(sources), Closing()
        if clocked and chance.random() < 0.5:
            source, spouts = chance.choice(clocked)
            closing = Closing(chance.choice(["updates", "final"]), chance.choice(["correct", "side", "drop"]), spouts)
        by = draw_key(chance, source, known, [0, 1, 1, 1, 2])
        bounds = tuple(column.name for column in BOUNDS)
        monoids = draw_monoids(chance, source, by)
        columns = (*(source.column(column) for column in by), *BOUNDS, *(monoid.column for monoid in monoids))
        return cls(name, (source.name,), columns, (*by, *bounds), monoids, closing, *cls.draw_cut(chance))

    @classmethod
    def draw_cut(cls, chance: Chance) -> tuple[Any, ...]:
        """The fields that say how time is cut."""
        raise NotImplementedError

    @property
    def by(self) -> tuple[str, ...]:
        assert self.key is not None
        return self.key[: -len(BOUNDS)]

    def folded(self, source: Input, batch: Batch) -> list[Row]:
        start, end = (column.name for column in BOUNDS)
        shown = [
            (row, span)
            for row, span in self.spans(source.rows, batch.ticks)
            if self.closing.shows(span[1], batch.ticks)
        ]
        rows = [{**row, start: span[0], end: span[1]} for row, span in shown]
        return super().folded(replace(source, columns=(*source.columns, *BOUNDS), rows=rows), batch)

    def spans(self, rows: Sequence[Row], ticks: Ticks) -> list[tuple[Row, Span]]:
        """Each row with each of the windows that take it."""
        raise NotImplementedError

    def late_rows(self, rows: Sequence[Row], ticks: Ticks) -> list[Row]:
        """The rows that some window does not take, each once."""
        raise NotImplementedError


@dataclass(frozen=True)
class Window(Cut):
    """In minutes. `every` may be smaller than `size` (they overlap), equal or larger (there are gaps)."""

    size: int
    every: int
    offset: int

    kind = "window"

    @classmethod
    def draw_cut(cls, chance: Chance) -> tuple[Any, ...]:
        size, every = chance.choice(
            [(10, 10), (60, 60), (1440, 1440), (60, 60), (60, 20), (40, 15), (30, 7), (2880, 1440), (10, 60)]
        )
        return size, every, chance.choice([0, 0, 7])

    @property
    def cut(self) -> str:
        every = f", every='{self.every} minutes'" if self.every != self.size else ""
        offset = f", offset='{self.offset} minutes'" if self.offset else ""
        return f".window('{self.size} minutes'{every}{offset}, {self.closing.code})"

    def spans(self, rows: Sequence[Row], ticks: Ticks) -> list[tuple[Row, Span]]:
        return [pair for pair in self._all(rows) if not self.closing.refuses(pair[1][1], pair[0], ticks)]

    def late_rows(self, rows: Sequence[Row], ticks: Ticks) -> list[Row]:
        return [row for row in rows if any(self.closing.refuses(end, row, ticks) for _, (_, end) in self._all([row]))]

    def _all(self, rows: Sequence[Row]) -> list[tuple[Row, Span]]:
        size, every, offset = (timedelta(minutes=minutes) for minutes in (self.size, self.every, self.offset))
        found = []
        for row in rows:
            start = _EPOCH + offset + (row["_time"] - _EPOCH - offset) // every * every
            while row["_time"] < start + size:
                found.append((row, (start, start + size)))
                start -= every
        return found


@dataclass(frozen=True)
class Session(Cut):
    gap: int  # in minutes

    kind = "session"

    @classmethod
    def draw_cut(cls, chance: Chance) -> tuple[Any, ...]:
        return (chance.choice([1, 15, 15, 16, 40, 1440]),)

    @property
    def cut(self) -> str:
        return f".session('{self.gap} minutes', {self.closing.code})"

    def spans(self, rows: Sequence[Row], ticks: Ticks) -> list[tuple[Row, Span]]:
        late = {id(row) for row in self.late_rows(rows, ticks)}
        of_keys = defaultdict[Any, list[Row]](list)
        for row in rows:
            if id(row) not in late:
                of_keys[tuple(plain(row[name], False) for name in self.by)].append(row)
        found = []
        for of_key in of_keys.values():
            for session in self._sessions(of_key, ticks):
                span = (session[0]["_time"], session[-1]["_time"] + self._gap)
                found += [(row, span) for row in session]
        return found

    def late_rows(self, rows: Sequence[Row], ticks: Ticks) -> list[Row]:
        return [row for row in rows if self.closing.refuses(row["_time"] + self._gap, row, ticks)]

    @property
    def _gap(self) -> timedelta:
        return timedelta(minutes=self.gap)

    def _sessions(self, rows: Sequence[Row], ticks: Ticks) -> list[list[Row]]:
        """The sessions of a key. Where late rows do not correct, one that has ended takes no more rows."""
        if self.closing.late == "correct":
            return self._joined(rows)
        closed: list[list[Row]] = []
        still_open: list[Row] = []
        for _, more in ticks.cut(rows):
            known, still_open = self._joined(still_open), []
            for session in known:
                ended = self.closing.refuses(session[-1]["_time"] + self._gap, more[0], ticks)
                closed += [session] if ended else []
                still_open += [] if ended else session
            still_open += more
        return [*closed, *self._joined(still_open)]

    def _joined(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Rows that follow each other within the gap."""
        sessions: list[list[Row]] = []
        for row in sorted(rows, key=lambda row: row["_time"]):
            if sessions and row["_time"] - sessions[-1][-1]["_time"] < self._gap:
                sessions[-1].append(row)
            else:
                sessions.append([row])
        return sessions


class OfTable(Cut):
    """Of a table: a row is in the windows of its own time, and leaves them when that moves."""

    of: Step

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        timed = [step.name for step in timed_streams(known)]
        sources = [step for step in known if step.kind in ("fold", "table") and step.inputs[0] in timed]
        sources = [step for step in sources if not getattr(step, "spouts", ())]  # whose keys expire
        if not sources:
            return None
        source = chance.choice(sources)
        by = draw_key(chance, source, known, [0, 1, 1, 2])
        bounds = tuple(column.name for column in BOUNDS)
        if {*bounds} & {column.name for column in source.columns}:
            return None
        monoids = draw_monoids(chance, source, by)
        columns = (*(source.column(column) for column in by), *BOUNDS, *(monoid.column for monoid in monoids))
        return cls(name, (source.name,), columns, (*by, *bounds), monoids, Closing(), *cls.draw_cut(chance), source)

    def folded(self, source: Input, batch: Batch) -> list[Row]:
        key = self.of.key or ()
        times: dict[Any, datetime] = {}
        for row in batch.behind(self.of.name):
            identity = tuple(plain(row[name], False) for name in key)
            times[identity] = max(row["_time"], times.get(identity, row["_time"]))
        rows = [{**row, "_time": times[tuple(plain(row[name], False) for name in key)]} for row in source.rows]
        return super().folded(replace(source, rows=rows), batch)


@dataclass(frozen=True)
class TableWindow(OfTable, Window):
    of: Step

    kind = "table-window"


@dataclass(frozen=True)
class TableSession(OfTable, Session):
    of: Step

    kind = "table-session"


@dataclass(frozen=True)
class Late(Step):
    """What came too late for a window."""

    of: Cut

    kind = "late"
    ends = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        cuts = [step for step in known if isinstance(step, Cut) and not step.reads_ends]
        taken = [step for step in cuts if step.closing.late == "side"]
        if not taken:
            return None
        of = chance.choice(taken)
        source = next(step for step in known if step.name == of.inputs[0])
        return cls(name, (source.name, of.name), source.columns, None, of)

    def code(self) -> str:
        return f"{self.name} = {self.of.name}.late.where({self.name!r}, 'true')"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        keyed = [row for row in inputs[0].rows if not self.of.refuses(row)]
        return self.of.late_rows(keyed, batch.ticks)


KINDS: tuple[tuple[type[Step], int], ...] = ((Window, 4), (Session, 3), (TableWindow, 2), (TableSession, 2), (Late, 2))
