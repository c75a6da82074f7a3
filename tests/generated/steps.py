"""The kinds of steps. Each is one class: how one is drawn, how it is declared in Python, and what it means as a batch.

Windows and sessions are in steps_of_time.py; tables of records, joins of tables and tops in steps_of_tables.py; what
depends on the cut into ticks in steps_of_ticks.py; joins of streams and look-ups of the past in steps_of_joins.py; what
reads those in steps_of_ends.py. A new kind is added by its class and a line in the KINDS of its file; nothing else
knows the kinds. `code` is both what runs and what the script of a failure shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar

from tests.generated import functions
from tests.generated.batch import HIDDEN_NAMES, Batch, Input, Letter, Row, rows_of
from tests.generated.expressions import Column, Columns, Expressions
from tests.generated.monoids import Drawn, draw_monoid
from tests.generated.targets import TARGETS
from tests.generated.values import (
    BIGINT,
    INT,
    ODD_NAMES,
    PLAIN_NAMES,
    STRING,
    TIMES_OF_A_DAY,
    TIMES_OF_YEARS,
    Array,
    Chance,
    Struct,
    Type,
    draw_type,
    quoted,
)


@dataclass(frozen=True)
class Step:
    name: str
    inputs: tuple[str, ...]
    columns: Columns
    key: tuple[str, ...] | None  # of a table; None for a stream

    kind: ClassVar[str]
    keeps_state: ClassVar[bool] = False  # then it has a state to compare, and need not be read by anything
    ends: ClassVar[bool] = False  # a stream with a state of its own: read by sinks and by steps_of_ends.py
    reads_ends: ClassVar[bool] = False
    reads_letters: ClassVar[bool] = False  # its input is not what a step gives, but what it refuses

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        """A step that reads some of the known ones; None when none of them fits."""
        raise NotImplementedError

    def code(self) -> str:
        """The statements that declare it. They leave a handle in a variable of its name."""
        raise NotImplementedError

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        """Its rows, given all rows of its inputs."""
        raise NotImplementedError

    def rows_of_letters(self, rows: list[Row], source: Columns, batch: Batch) -> list[Row]:
        """What it makes of rows that it had refused, when they get their second chance."""
        return self.rows([Input(source, None, rows)], batch)

    def refuses(self, row: Row) -> bool:
        """Whether a row of a stream is a dead letter of this step by its key."""
        return False

    def over(self, sources: Sequence[Step]) -> Step | None:
        """The same step where what it reads has other columns than before (column_edits.py); None where that would
        change more of it than its columns."""
        return None

    @property
    def ddl(self) -> str:
        return ", ".join(column.ddl for column in self.columns)

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)


def streams(known: Sequence[Step]) -> list[Step]:
    return [step for step in known if step.key is None]


def tables(known: Sequence[Step]) -> list[Step]:
    return [step for step in known if step.key is not None]


def draw_key(chance: Chance, source: Step, known: Sequence[Step], sizes: Sequence[int]) -> tuple[str, ...]:
    """Columns for a key: often those of another table, so that the two can be joined."""
    usable = [column for column in source.columns if column.exact and column.type.orderable]
    shared = [step.key for step in tables(known) if step.key and all(step.column(k) in usable for k in step.key)]
    if shared and chance.random() < 0.6:
        return chance.choice(shared)
    return tuple(chance.sample([c.name for c in usable], min(len(usable), chance.choice(sizes))))


def draw_names(chance: Chance, count: int, taken: Sequence[str] = (), odd: float = 0.2) -> list[str]:
    names: list[str] = []
    while len(names) < count:
        name = chance.choice(ODD_NAMES if chance.random() < odd else PLAIN_NAMES)
        if name not in names and name not in taken:
            names.append(name)
    return names


def draw_columns(chance: Chance, known: Columns, names: Sequence[str]) -> tuple[tuple[Column, str], ...]:
    """New columns, each with an expression: often a column as it is."""
    expressions, usable = Expressions(chance, known), [column for column in known if column.exact]
    made = []
    for name in names:
        if usable and chance.random() < 0.4:
            source = chance.choice(usable)
            made.append((Column(name, source.type), quoted(source.name)))
        else:
            type_ = chance.choice(usable).type if usable and chance.random() < 0.5 else draw_type(chance, 1)
            made.append((Column(name, type_), expressions.draw(type_)))
    return tuple(made)


def keywords(pairs: Sequence[tuple[str, str]]) -> str:
    """Columns by keyword; those that Python cannot spell, or that are arguments themselves, in a dict."""
    plain = [f"{name}={value}" for name, value in pairs if name.isidentifier() and name not in _TAKEN]
    others = [f"{name!r}: {value}" for name, value in pairs if not name.isidentifier() or name in _TAKEN]
    return ", ".join([*plain, *([f"columns={{{', '.join(others)}}}"] if others else [])])


_TAKEN = ("name", "by", "ttl", "columns", "self")


@dataclass(frozen=True)
class Spout(Step):
    event_time: str | None
    lateness: bool
    times: tuple[datetime, ...] | None = None  # what its event times are drawn from; None: anything of their type

    kind = "spout"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        names = draw_names(chance, chance.randint(2, 5), odd=chance.choice([0.0, 0.0, 0.5]))
        columns = tuple(Column(column, draw_type(chance)) for column in names)
        lateness = chance.random() < 0.5
        if chance.random() < 0.5:
            time = Column(columns[-1].name, Type(chance.choice(["timestamp", "timestamp", "timestamp_ntz"])))
            columns, drawn = (*columns[:-1], time), chance.choice([TIMES_OF_A_DAY, TIMES_OF_YEARS])
            return cls(name, (), columns, None, time.name, lateness, drawn)
        times = [column.name for column in columns if column.type.text in ("timestamp", "timestamp_ntz", "date")]
        event_time = chance.choice(times) if times and chance.random() < 0.5 else None
        return cls(name, (), columns, None, event_time, lateness)

    def code(self) -> str:
        time = f", event_time={self.event_time!r}" if self.event_time else ""
        time += ", lateness='10 minutes'" if self.lateness else ""
        return f"{self.name} = storm.spout({self.name!r}, hs.Log('x'), schema={self.ddl!r}{time})"

    def draw_row(self, chance: Chance) -> Row:
        row = {column.name: column.type.draw(chance) for column in self.columns}
        if self.times is not None and self.event_time is not None and row[self.event_time] is not None:
            time = chance.choice(self.times)
            has_zone = self.column(self.event_time).type.text == "timestamp"
            row[self.event_time] = time if has_zone else time.replace(tzinfo=None)
        return row

    def time_of(self, row: Row, record: datetime) -> datetime | None:
        """The event time of a row; None when no watermark can follow it: then the record is a dead letter."""
        if self.event_time is None:
            return record
        time = row[self.event_time]
        if time is None or time.year == 9999 or (self.lateness and time.year == 1):
            return None
        moment = time if isinstance(time, datetime) else datetime(time.year, time.month, time.day)
        return moment.replace(tzinfo=UTC)

    def json(self, row: Row) -> str:
        """A record. It may lack columns: it was drawn for another version of the spout."""
        there = [column for column in self.columns if column.name in row]
        return Struct.holding(tuple((column.name, column.type) for column in there)).json(row)


@dataclass(frozen=True)
class Where(Step):
    predicate: str

    kind = "where"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        source = chance.choice(known)
        return cls(name, (source.name,), source.columns, source.key, Expressions(chance, source.columns).predicate())

    def code(self) -> str:
        return f"{self.name} = {self.inputs[0]}.where({self.name!r}, {self.predicate!r})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        (source,) = inputs
        kept = batch.select(numbered(source), {}, where=self.predicate, carried=[NUMBER.name])
        return [source.rows[row[NUMBER.name]] for row in kept]

    def over(self, sources: Sequence[Step]) -> Step | None:
        return replace(self, columns=sources[0].columns)


NUMBER = Column("_number", Type("bigint"))


def numbered(source: Input) -> Input:
    """The rows with their place, so that a query can say which ones it means."""
    rows = [{**row, NUMBER.name: number} for number, row in enumerate(source.rows)]
    return Input((*source.columns, NUMBER), source.key, rows)


@dataclass(frozen=True)
class Select(Step):
    expressions: tuple[tuple[str, str], ...]

    kind = "select"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        source = chance.choice(known)
        key = source.key or ()
        made = draw_columns(chance, source.columns, draw_names(chance, chance.randint(1, 4), key, odd=0.1))
        shown = [column for column in source.columns if not column.exact and chance.random() < 0.5]
        made += tuple((column, quoted(column.name)) for column in shown if column.name not in [c.name for c, _ in made])
        columns = (*(source.column(column) for column in key), *(column for column, _ in made))
        return cls(name, (source.name,), columns, source.key, tuple((c.name, text) for c, text in made))

    def code(self) -> str:
        expressions = keywords([(name, repr(text)) for name, text in self.expressions])
        return f"{self.name} = {self.inputs[0]}.select({self.name!r}, {expressions})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        (source,) = inputs
        carried = HIDDEN_NAMES if source.key is None else source.key
        exact = {c.name for c in self.columns if c.exact}
        computed = {name: text for name, text in self.expressions if name in exact}
        rows = batch.select(source, computed, carried=carried)
        if len(exact) < len(self.columns):  # what is only near is not asked of Spark: it comes as it is
            names = {name: text.strip("`") for name, text in self.expressions if name not in exact}
            rows = [
                {**row, **{n: old[t] for n, t in names.items()}} for row, old in zip(rows, source.rows, strict=True)
            ]
        return rows

    def over(self, sources: Sequence[Step]) -> Step | None:
        return self


@dataclass(frozen=True)
class Sql(Step):
    query: str

    kind = "sql"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = streams(known)
        if not sources:
            return None
        source = chance.choice(sources)
        made = draw_columns(chance, source.columns, draw_names(chance, chance.randint(1, 3), odd=0.1))
        chosen = [f"{text} AS {quoted(column.name)}" for column, text in made]
        columns = [column for column, _ in made]
        arrays = [c for c in source.columns if isinstance(c.type, Array) and c.exact]
        (new,) = draw_names(chance, 1, [column.name for column in columns], odd=0)
        if arrays and chance.random() < 0.5:
            array = chance.choice(arrays)
            assert isinstance(array.type, Array)
            chosen.append(f"{chance.choice(['explode', 'explode_outer'])}({quoted(array.name)}) AS {quoted(new)}")
            columns.append(Column(new, array.type.of))
        where = f" WHERE {Expressions(chance, source.columns).predicate()}" if chance.random() < 0.4 else ""
        return cls(name, (source.name,), tuple(columns), None, f"SELECT {', '.join(chosen)} FROM {source.name}{where}")

    def code(self) -> str:
        return f"{self.name} = {self.inputs[0]}.sql({self.name!r}, {self.query!r})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        batch.frame(inputs[0]).createOrReplaceTempView(self.inputs[0])
        select, from_, rest = self.query.rpartition(f" FROM {self.inputs[0]}")
        return rows_of(batch.spark.sql(f"{select}, {', '.join(HIDDEN_NAMES)}{from_}{rest}"))

    def over(self, sources: Sequence[Step]) -> Step | None:
        return self


@dataclass(frozen=True)
class Bolt(Step):
    function: functions.RowFunction
    grouping: str | None

    kind = "bolt"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = streams(known)
        if not sources:
            return None
        source = chance.choice(sources)
        function = functions.draw_row_function(chance, source.columns)
        grouping = chance.choice([None, None, None, "hs.shuffle(2)", "hs.one()", "hs.everyone(2)", "fields"])
        if grouping == "fields":
            grouping = f"hs.fields({chance.choice(source.columns).name!r})"
        return cls(name, (source.name,), function.returns, None, function, grouping)

    def code(self) -> str:
        grouping = f", grouping={self.grouping}" if self.grouping else ""
        declared = (
            f"{self.name} = {self.inputs[0]}.bolt({self.name}, name={self.name!r}, returns={self.ddl!r}{grouping})"
        )
        return f"{self.function.source(self.name)}\n{declared}"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        times = 2 if self.grouping and self.grouping.startswith("hs.everyone") else 1
        return self._made(inputs[0].rows, inputs[0].columns, batch, times)

    def rows_of_letters(self, rows: list[Row], source: Columns, batch: Batch) -> list[Row]:
        return self._made(rows, source, batch, 1)  # with `everyone`, every copy had a letter of its own

    def _made(self, rows: list[Row], source: Columns, batch: Batch, times: int) -> list[Row]:
        call = self.function.compiled(self.name)
        made: list[Row] = []
        for row in rows:
            hidden = {name: row[name] for name in HIDDEN_NAMES}
            try:
                given = functions.called(call, {column.name: row[column.name] for column in source})
            except Exception:
                batch.letters += [Letter(self.name, row)] * times
                continue
            made += [{**item, **hidden} for item in given] * times
        return made

    def over(self, sources: Sequence[Step]) -> Step | None:
        return self

    def repaired(self) -> Bolt:
        """The same bolt with a function that refuses nothing."""
        return replace(self, function=self.function.repaired())


@dataclass(frozen=True)
class Arrow(Step):
    function: functions.BatchFunction

    kind = "arrow"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = streams(known)
        if not sources:
            return None
        source = chance.choice(sources)
        function = functions.draw_batch_function(chance, source.columns)
        return cls(name, (source.name,), function.returns, None, function)

    def code(self) -> str:
        declared = f"{self.name} = {self.inputs[0]}.arrow({self.name!r}, {self.name}, returns={self.ddl!r})"
        return f"{self.function.source(self.name)}\n{declared}"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        return self.function.rows(inputs[0].rows)

    def over(self, sources: Sequence[Step]) -> Step | None:
        return self


@dataclass(frozen=True)
class Union(Step):
    kind = "union"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = streams(known)
        if not sources:
            return None
        first = chance.choice(sources)
        # A diamond, too: a stream and what a filter left of it have the same columns.
        alike = [step for step in sources if step.columns == first.columns and step is not first]
        if not alike:
            return None
        others = chance.sample(alike, chance.randint(1, len(alike)))
        return cls(name, (first.name, *(step.name for step in others)), first.columns, None)

    def code(self) -> str:
        return f"{self.name} = {self.inputs[0]}.union({self.name!r}, {', '.join(self.inputs[1:])})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        return [row for source in inputs for row in source.rows]

    def over(self, sources: Sequence[Step]) -> Step | None:
        first = sources[0].columns
        return replace(self, columns=first) if all(source.columns == first for source in sources) else None


@dataclass(frozen=True)
class Errors(Step):
    """What a spout or a bolt refuses, as a stream. Why, and the record itself, are the business of other tests."""

    kind = "errors"
    reads_letters = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        source = chance.choice([step for step in known if step.kind in ("spout", "bolt")])
        return cls(name, (source.name,), _OF_LETTERS, None)

    def code(self) -> str:
        columns = keywords([(column.name, repr(f"`{column.name}`")) for column in self.columns])
        return f"{self.name} = {self.inputs[0]}.errors.select({self.name!r}, {columns})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        return [
            {
                "spout": row["_spout"],
                "partition": row["_partition"],
                "offset": row["_offset"],
                "step": self.inputs[0],
                **{name: row[name] for name in HIDDEN_NAMES},
            }
            for row in inputs[0].rows
        ]

    def over(self, sources: Sequence[Step]) -> Step | None:
        return self


_OF_LETTERS = (Column("spout", STRING), Column("partition", INT), Column("offset", BIGINT), Column("step", STRING))


@dataclass(frozen=True)
class Fold(Step):
    monoids: tuple[Drawn, ...]

    kind = "fold"
    keeps_state = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        source = chance.choice(known)
        # A key has few values, or every group has one row.
        key = draw_key(chance, source, known, [0, 1, 1, 1, 2])
        monoids = draw_monoids(chance, source, key)
        columns = (*(source.column(column) for column in key), *(monoid.column for monoid in monoids))
        return cls(name, (source.name,), columns, key, monoids)

    @property
    def by(self) -> tuple[str, ...]:
        assert self.key is not None
        return self.key

    @property
    def cut(self) -> str:
        """The call between the input and `.fold`, of windows."""
        return ""

    @property
    def arguments(self) -> str:
        """Of `fold`, beside the key and the monoids."""
        return ""

    def code(self) -> str:
        by = f"by={list(self.by)!r}, " if len(self.by) > 1 else f"by={self.by[0]!r}, " if self.by else ""
        monoids = keywords([(monoid.column.name, monoid.code) for monoid in self.monoids])
        return f"{self.name} = {self.inputs[0]}{self.cut}.fold({self.name!r}, {by}{self.arguments}{monoids})"

    def refuses(self, row: Row) -> bool:
        return any(row[name] is None for name in self.by)

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        (source,) = inputs
        lost = [row for row in source.rows if self.refuses(row)]
        batch.letters += [Letter(self.name, row if source.key is None else None) for row in lost]
        return self.folded(replace(source, rows=[row for row in source.rows if not self.refuses(row)]), batch)

    def folded(self, source: Input, batch: Batch) -> list[Row]:
        """The rows of the table, given rows that all have a key."""
        assert self.key is not None
        if not source.rows:
            return []
        rows = batch.aggregate(source, self.key, {m.column.name: m.aggregate for m in self.monoids})
        for monoid in self.monoids:
            if monoid.compute is not None:
                for row in rows:
                    row[monoid.column.name] = monoid.compute(row[monoid.column.name])
        return rows

    def over(self, sources: Sequence[Step]) -> Step | None:
        return self


def draw_monoids(chance: Chance, source: Step, key: Sequence[str]) -> tuple[Drawn, ...]:
    names = draw_names(chance, chance.randint(1, 3), key, odd=0.1)
    return tuple(draw_monoid(chance, column, source.columns, source.key is not None) for column in names)


@dataclass(frozen=True)
class Sink(Step):
    target: str

    kind = "sink"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        return cls.of(name, chance.choice(known), chance.choice(list(TARGETS)))

    @classmethod
    def of(cls, name: str, source: Step, target: str) -> Sink:
        return cls(name, (source.name,), source.columns, source.key, target)

    def code(self) -> str:
        return f"{self.inputs[0]}.sink({self.name!r}, {TARGETS[self.target].code(self.name)})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        return inputs[0].rows

    def over(self, sources: Sequence[Step]) -> Step | None:
        return replace(self, columns=sources[0].columns)


@dataclass(frozen=True)
class Changes(Step):
    """SQL, or a bolt, over the changes of a table. How many there are depends on the cut: its oracle are the changes
    themselves, which are compared with the table by their own."""

    by_bolt: bool

    kind = "changes"

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = tables(known)
        if not sources:
            return None
        source = chance.choice(sources)
        columns = tuple(column for column in source.columns if column.name != "kind")
        return cls(name, (source.name,), (*columns, Column("kind", STRING)), None, chance.random() < 0.5)

    def code(self) -> str:
        shown = [column.name for column in self.columns[:-1]]
        if self.by_bolt:
            copied = ", ".join(f"{name!r}: given[{name!r}]" for name in shown)
            function = f"def {self.name}(row):\n    given = row.asdict()\n    return {{{copied}, 'kind': row._kind}}"
            return f"{function}\n{self.name} = {self.inputs[0]}.bolt({self.name}, returns={self.ddl!r})"
        query = f"SELECT {', '.join(map(quoted, shown))}, _kind AS kind FROM {self.inputs[0]}"
        return f"{self.name} = {self.inputs[0]}.sql({self.name!r}, {query!r})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        return []

    def of_changes(self, changes: Sequence[Row]) -> list[Row]:
        return [{**change, "kind": change["_kind"]} for change in changes]


KINDS: tuple[tuple[type[Step], int], ...] = (
    (Where, 2),
    (Select, 2),
    (Sql, 2),
    (Bolt, 2),
    (Arrow, 1),
    (Union, 2),
    (Errors, 3),
    (Fold, 6),
    (Sink, 2),
    (Changes, 1),
)
