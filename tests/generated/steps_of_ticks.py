"""The kinds of steps whose rows depend on the tick in which a row came: their oracles replay the ticks (ticks.py).

They are drawn over streams whose rows cannot be retried, so that the tick of a row is that of its record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tests.generated.batch import Batch, Input, Letter, Row
from tests.generated.compare import plain
from tests.generated.expressions import Column, Columns
from tests.generated.steps import Fold, Step, draw_key, draw_monoids, tables
from tests.generated.steps_of_time import clocked_streams
from tests.generated.ticks import BEGINNING
from tests.generated.values import BIGINT, BOOLEAN, Chance, Type


def _identity(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(plain(row[name], False) for name in names)


def _listed(names: Sequence[str]) -> str:
    return repr(names[0] if len(names) == 1 else list(names))


@dataclass(frozen=True)
class Expiring(Fold):
    """A fold whose keys are deleted when they were not updated for so many minutes."""

    spouts: tuple[str, ...]
    minutes: int

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = clocked_streams(known)
        if not sources:
            return None
        source, spouts = chance.choice(sources)
        key = draw_key(chance, source, known, [0, 1, 1, 1, 2])
        monoids = draw_monoids(chance, source, key)
        columns = (*(source.column(column) for column in key), *(monoid.column for monoid in monoids))
        return cls(name, (source.name,), columns, key, monoids, spouts, chance.choice([10, 30, 60, 1440]))

    @property
    def arguments(self) -> str:
        return f"ttl='{self.minutes} minutes', "

    def folded(self, source: Input, batch: Batch) -> list[Row]:
        return super().folded(replace(source, rows=self._alive(source.rows, batch)), batch)

    def _alive(self, rows: Sequence[Row], batch: Batch) -> list[Row]:
        """The rows behind the keys that there are in the end."""
        ticks, ttl = batch.ticks, timedelta(minutes=self.minutes)
        alive: dict[Any, list[Row]] = defaultdict(list)

        def expire(watermark: Any) -> None:
            for key in [key for key, of in alive.items() if max(row["_time"] for row in of) + ttl <= watermark]:
                del alive[key]

        for tick, more in ticks.cut(rows):
            expire(ticks.watermark(self.spouts, tick))
            for row in more:
                alive[_identity(row, self.by)].append(row)
        expire(ticks.watermark(self.spouts))
        return [row for of in alive.values() for row in of]


@dataclass(frozen=True)
class Distinct(Step):
    by: tuple[str, ...]
    minutes: int
    spouts: tuple[str, ...]
    late: bool  # what is late, instead of what is distinct

    kind = "distinct"
    ends = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = clocked_streams(known)
        if not sources:
            return None
        source, spouts = chance.choice(sources)
        by = draw_key(chance, source, known, [1, 1, 2])
        if not by:
            return None
        minutes, late = chance.choice([1, 15, 30, 60, 1440]), chance.random() < 0.3
        return cls(name, (source.name,), source.columns, None, by, minutes, spouts, late)

    def code(self) -> str:
        within = f"by={_listed(self.by)}, within='{self.minutes} minutes'"
        if self.late:
            declared = f"{self.name}_all = {self.inputs[0]}.distinct('{self.name}_all', {within})"
            return f"{declared}\n{self.name} = {self.name}_all.late.where({self.name!r}, 'true')"
        return f"{self.name} = {self.inputs[0]}.distinct({self.name!r}, {within})"

    @property
    def refuser(self) -> str:
        return f"{self.name}_all" if self.late else self.name

    def refuses(self, row: Row) -> bool:
        return any(row[name] is None for name in self.by)

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        batch.letters += [Letter(self.refuser, row) for row in inputs[0].rows if self.refuses(row)]
        keyed = [row for row in inputs[0].rows if not self.refuses(row)]
        within, last = timedelta(minutes=self.minutes), dict[Any, Any]()
        first: list[Row] = []
        late: list[Row] = []
        for tick, rows in batch.ticks.cut(keyed):
            watermark = batch.ticks.watermark(self.spouts, tick)
            last = {key: time for key, time in last.items() if time + within > watermark}
            known = set(last)
            for row in rows:
                key, time = _identity(row, self.by), row["_time"]
                if key not in known and time < watermark:
                    late.append(row)
                elif key not in last or time >= last[key] + within:
                    first.append(row)
                    last[key] = time
        return late if self.late else first


@dataclass(frozen=True)
class Ordered(Step):
    spouts: tuple[str, ...]

    kind = "ordered"
    ends = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = clocked_streams(known)
        if not sources:
            return None
        source, spouts = chance.choice(sources)
        return cls(name, (source.name,), source.columns, None, spouts)

    def code(self) -> str:
        return f"{self.name} = {self.inputs[0]}.ordered({self.name!r})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        ticks = batch.ticks
        on_time = [row for row in inputs[0].rows if row["_time"] >= ticks.watermark(self.spouts, ticks.of(row))]
        return [row for row in on_time if row["_time"] <= ticks.watermark(self.spouts)]


@dataclass(frozen=True)
class Lookup(Step):
    """Each row with what a table had for it after the tick of the row."""

    on: tuple[tuple[str, str], ...]
    right: Columns
    how: str

    kind = "lookup"
    ends = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        clocked = {step.name: step for step, _ in clocked_streams(known)}
        pairs = [
            (stream, table)
            for stream in clocked.values()
            for table in tables(known)
            if table.key and table.kind in ("fold", "table") and table.inputs[0] in clocked
        ]
        chance.shuffle(pairs)
        for stream, table in pairs:
            on = _columns_for(chance, stream, table)
            others = tuple(column for column in table.columns if column.name not in (table.key or ()))
            made = tuple(replace(c, name=_new_name(c.name, stream.columns)) for c in others)
            if on and len({column.name for column in (*stream.columns, *made)}) == len(stream.columns) + len(made):
                how = chance.choice(["left", "inner"])
                return cls(name, (stream.name, table.name), (*stream.columns, *made), None, on, others, how)
        return None

    def code(self) -> str:
        stream, table = self.inputs
        return f"{self.name} = {stream}.lookup({self.name!r}, {table}, on={dict(self.on)!r}, how={self.how!r})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        found: list[Row] = []
        mine, theirs = zip(*self.on, strict=True)
        new = [column.name for column in self.columns[-len(self.right) :]] if self.right else []
        for tick, rows in batch.ticks.cut(inputs[0].rows):
            table = {_identity(row, theirs): row for row in batch.table_after(self.inputs[1], tick)}
            for row in rows:
                match = None if any(row[name] is None for name in mine) else table.get(_identity(row, mine))
                if match is not None or self.how == "left":
                    got = [None if match is None else match[column.name] for column in self.right]
                    found.append({**row, **dict(zip(new, got, strict=True))})
        return found


@dataclass(frozen=True)
class Everyone(Lookup):
    """Each row with every row that a table had after the tick of the row."""

    kind = "everyone"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        clocked = {step.name: step for step, _ in clocked_streams(known)}
        small = [table for table in tables(known) if table.kind in ("fold", "table") and table.inputs[0] in clocked]
        if not small:
            return None
        stream, table = chance.choice(list(clocked.values())), chance.choice(small)
        made = tuple(replace(c, name=_new_name(c.name, stream.columns)) for c in table.columns)
        if len({column.name for column in (*stream.columns, *made)}) < len(stream.columns) + len(made):
            return None
        how = chance.choice(["left", "inner"])
        return cls(name, (stream.name, table.name), (*stream.columns, *made), None, (), table.columns, how)

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        found: list[Row] = []
        new = [column.name for column in self.columns[-len(self.right) :]]
        nothing: list[Row] = [dict.fromkeys(column.name for column in self.right)] if self.how == "left" else []
        for tick, rows in batch.ticks.cut(inputs[0].rows):
            others = batch.table_after(self.inputs[1], tick) or nothing
            made = [dict(zip(new, (one[column.name] for column in self.right), strict=True)) for one in others]
            found += [{**row, **other} for row in rows for other in made]
        return found


def _columns_for(chance: Chance, stream: Step, table: Step) -> tuple[tuple[str, str], ...]:
    """A column of the stream for each of the table's key; none when there is none of its type."""
    found: list[tuple[str, str]] = []
    for theirs in table.key or ():
        taken, type_ = [mine for mine, _ in found], table.column(theirs).type
        usable = [c.name for c in stream.columns if c.exact and c.type == type_ and c.name not in taken]
        if not usable:
            return ()
        found.append((theirs if theirs in usable and chance.random() < 0.7 else chance.choice(usable), theirs))
    return tuple(found)


def _new_name(name: str, taken: Columns) -> str:
    return f"{name}_right" if name in [column.name for column in taken] else name


# Processes of the scripts. A case that has one begins with it.
PROCESSES = """
from dataclasses import dataclass


@dataclass
class Counted:
    counted: int = 0


class Running(hs.Process):
    state = Counted
    returns = "n BIGINT, late BOOLEAN, time TIMESTAMP"

    def on_event(self, key, event, state, timers):
        state.counted += 1
        yield {"n": state.counted, "late": event.is_late, "time": event._time}


class Silence(hs.Process):
    state = Counted
    returns = "n BIGINT, late BOOLEAN, time TIMESTAMP"

    def on_event(self, key, event, state, timers):
        state.counted += 1
        timers.set("silence", event._time + datetime.timedelta(minutes=30))

    def on_timer(self, key, timer, state, timers):
        yield {"n": state.counted, "late": False, "time": timer.time}
        state.counted = 0
"""


@dataclass(frozen=True)
class Processed(Step):
    """One of two processes: a running number, or how many came until nothing did for 30 minutes."""

    by: tuple[str, ...]
    using: str
    spouts: tuple[str, ...]

    kind = "process"
    ends = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = [pair for pair in clocked_streams(known) if not any("." in c.name for c in pair[0].columns)]
        if not sources:
            return None
        source, spouts = chance.choice(sources)
        by = draw_key(chance, source, known, [1, 1, 2])
        columns = (Column("n", BIGINT), Column("late", BOOLEAN), Column("time", Type("timestamp")))
        using = chance.choice(["Running", "Silence"])
        return cls(name, (source.name,), columns, None, by, using, spouts) if by else None

    def code(self) -> str:
        return f"{self.name} = {self.inputs[0]}.process({self.name!r}, by={_listed(self.by)}, using={self.using})"

    def refuses(self, row: Row) -> bool:
        return any(row[name] is None for name in self.by)

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        batch.letters += [Letter(self.name, row) for row in inputs[0].rows if self.refuses(row)]
        keyed = [row for row in inputs[0].rows if not self.refuses(row)]
        return self._running(keyed, batch) if self.using == "Running" else self._silent(keyed, batch)

    def _running(self, rows: Sequence[Row], batch: Batch) -> list[Row]:
        counts: dict[Any, int] = defaultdict(int)
        found = []
        for tick, more in batch.ticks.cut(rows):
            watermark = batch.ticks.watermark(self.spouts, tick)
            for row in more:
                key = _identity(row, self.by)
                counts[key] += 1
                found.append({"n": counts[key], "late": row["_time"] < watermark, "time": row["_time"]})
        return found

    def _silent(self, rows: Sequence[Row], batch: Batch) -> list[Row]:
        waiting: dict[Any, tuple[int, Any]] = {}  # how many, and until when
        found: list[Row] = []

        def fire(watermark: Any) -> None:
            for key in [key for key, (_, until) in waiting.items() if until <= watermark]:
                count, until = waiting.pop(key)
                found.append({"n": count, "late": False, "time": until})

        for tick, more in batch.ticks.cut(rows):
            fire(batch.ticks.watermark(self.spouts, tick))
            for row in more:
                key = _identity(row, self.by)
                count, _ = waiting.get(key, (0, BEGINNING))
                waiting[key] = (count + 1, row["_time"] + timedelta(minutes=30))
        fire(batch.ticks.watermark(self.spouts))
        return found

    def over(self, sources: Sequence[Step]) -> Step | None:
        return None if any("." in column.name for column in sources[0].columns) else self


KINDS: tuple[tuple[type[Step], int], ...] = (
    (Expiring, 2),
    (Distinct, 2),
    (Ordered, 1),
    (Lookup, 2),
    (Everyone, 2),
    (Processed, 2),
)
