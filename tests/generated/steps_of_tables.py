"""The kinds of steps that make tables of records and of other tables: the newest row of a key, joins, top of groups.

`lookup` is not among them: what it gives depends on the tick in which a row came, and no batch over all rows says that
(steps_of_ticks.py, steps_of_joins.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.generated.batch import Batch, Input, Letter, Row, rows_of
from tests.generated.compare import plain
from tests.generated.expressions import Column, Columns, Expressions
from tests.generated.steps import NUMBER, Spout, Step, draw_key, numbered, streams, tables
from tests.generated.values import TIMES_OF_A_DAY, WHOLE, Chance, Type, quoted


def _named(known: Sequence[Step], name: str) -> Step | None:
    return next((step for step in known if step.name == name), None)


@dataclass(frozen=True)
class Newest(Step):
    """A stream as a table."""

    deletes: str | None

    kind = "table"
    keeps_state = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        # Which of several rows of one record is the newest, nothing says.
        sources = [step for step in streams(known) if _spout_of_single_rows(step, known) is not None]
        if not sources:
            return None
        source = chance.choice(sources)
        key = draw_key(chance, source, known, [1, 1, 2])
        values = tuple(column for column in source.columns if column.name not in key)
        if not key or not values:
            return None
        spout, deletes = _spout_of_single_rows(source, known), None
        # A removed key is remembered for a day: an older record that comes after that brings it back.
        if spout is not None and spout.times == TIMES_OF_A_DAY and chance.random() < 0.5:
            deletes = Expressions(chance, source.columns).predicate()
        return cls(name, (source.name,), (*(source.column(column) for column in key), *values), key, deletes)

    def code(self) -> str:
        deletes = f", deletes={self.deletes!r}" if self.deletes is not None else ""
        return f"{self.name} = {self.inputs[0]}.table({self.name!r}, key={listed(self.key or ())}{deletes})"

    def refuses(self, row: Row) -> bool:
        return any(row[name] is None for name in self.key or ())

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        (source,) = inputs
        batch.letters += [Letter(self.name, row) for row in source.rows if self.refuses(row)]
        known = replace(source, rows=[row for row in source.rows if not self.refuses(row)])
        removed = self.removals(known, batch)
        newest: dict[Any, int] = {}
        for number, _ in sorted(enumerate(known.rows), key=lambda pair: _place(pair[1])):
            newest[_identity(known.rows[number], self.key or ())] = number
        names = [column.name for column in self.columns]
        return [
            {name: known.rows[number][name] for name in names} for number in newest.values() if number not in removed
        ]

    def removals(self, source: Input, batch: Batch) -> set[int]:
        """Which of the rows, by their number, remove their key."""
        if self.deletes is None:
            return set()
        return {row[NUMBER.name] for row in batch.select(numbered(source), {}, self.deletes, [NUMBER.name])}

    def over(self, sources: Sequence[Step]) -> Step | None:
        (source,), key = sources, self.key or ()
        values = tuple(column for column in source.columns if column.name not in key)
        return replace(self, columns=(*(source.column(column) for column in key), *values))


def _spout_of_single_rows(step: Step | None, known: Sequence[Step]) -> Spout | None:
    """The spout of a stream that has at most one row of each record."""
    while step is not None and step.kind in ("where", "select"):
        step = _named(known, step.inputs[0])
    return step if isinstance(step, Spout) else None


def _place(row: Row) -> tuple[Any, ...]:
    return row["_time"], row["_spout"], row["_partition"], row["_offset"]


def _identity(row: Row, names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(plain(row[name], False) for name in names)


def listed(names: Sequence[str]) -> str:
    return repr(names[0] if len(names) == 1 else list(names))


@dataclass(frozen=True)
class TableJoin(Step):
    """Two tables, on the keys of both or from columns of the left to the key of the right."""

    on: tuple[tuple[str, str], ...]
    right: Columns  # its columns beside those of `on`, by their names there
    how: str
    suffix: str

    kind = "join"
    keeps_state = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        pairs = [(a, b, on) for a in tables(known) for b in tables(known) for on in _draw_on(chance, a, b)]
        if chance.random() < 0.9:  # a table with itself is the rare case
            pairs = [pair for pair in pairs if pair[0] is not pair[1]]
        if not pairs:
            return None
        foreign = [pair for pair in pairs if not _is_by_key(pair[0], pair[2])]
        left, right, on = chance.choice(foreign if foreign and chance.random() < 0.5 else pairs)
        how = chance.choice(["inner", "left", "right", "full"] if _is_by_key(left, on) else ["inner", "left"])
        others = tuple(column for column in right.columns if column.name not in [theirs for _, theirs in on])
        mine, suffix = dict(on), chance.choice(["_right", "_right", "2"])
        columns = [
            replace(c, type=common_type(c.type, right.column(mine[c.name]).type) or c.type) if c.name in mine else c
            for c in left.columns
        ]
        for column in others:
            new = column.name + (suffix if column.name in [c.name for c in left.columns] else "")
            if new in [c.name for c in columns]:
                return None
            columns.append(replace(column, name=new))
        return cls(name, (left.name, right.name), tuple(columns), left.key, on, others, how, suffix)

    def code(self) -> str:
        equal = all(mine == theirs for mine, theirs in self.on)
        on = listed([mine for mine, _ in self.on]) if equal else repr(dict(self.on))
        suffix = f", suffix={self.suffix!r}" if self.suffix != "_right" else ""
        left, right = self.inputs
        return f"{self.name} = {left}.join({self.name!r}, {right}, on={on}, how={self.how!r}{suffix})"

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        left, right = inputs
        theirs = {_identity(row, [name for _, name in self.on]): row for row in right.rows if not self._null(row, 1)}
        found, matched = [], set()
        for row in left.rows:
            identity = _identity(row, [name for name, _ in self.on])
            match = None if self._null(row, 0) else theirs.get(identity)
            if match is not None:
                matched.add(identity)
            if match is not None or self.how in ("left", "full"):
                found.append(self._joined([row[column.name] for column in left.columns], match))
        if self.how in ("right", "full"):
            mine = dict(self.on)
            for row in right.rows:
                if _identity(row, [name for _, name in self.on]) not in matched:
                    filled = [row[mine[column.name]] if column.name in mine else None for column in left.columns]
                    found.append(self._joined(filled, row))
        return found

    def _null(self, row: Row, side: int) -> bool:
        return any(row[pair[side]] is None for pair in self.on)

    def _joined(self, left: Sequence[Any], right: Row | None) -> Row:
        values = [*left, *(right[column.name] if right is not None else None for column in self.right)]
        return dict(zip([column.name for column in self.columns], values, strict=True))


def _draw_on(chance: Chance, left: Step, right: Step) -> list[tuple[tuple[str, str], ...]]:
    """Ways to join: key with key, where they compare, and any columns of the left with the right's key."""
    found = []
    if left.key and right.key and len(left.key) == len(right.key):
        keys = tuple(zip(left.key, right.key, strict=True))
        if all(common_type(left.column(mine).type, right.column(theirs).type) for mine, theirs in keys):
            found.append(keys)
    columns: list[tuple[str, str]] = []
    for theirs in right.key or ():
        taken, type_ = [mine for mine, _ in columns], right.column(theirs).type
        usable = [c.name for c in left.columns if c.exact and c.name not in taken and common_type(c.type, type_)]
        columns += [(chance.choice(usable), theirs)] if usable else []
    if columns and len(columns) == len(right.key or ()):
        found.append(tuple(columns))
    return found


def _is_by_key(left: Step, on: Sequence[tuple[str, str]]) -> bool:
    return {mine for mine, _ in on} == set(left.key or ())


def common_type(one: Type, two: Type) -> Type | None:
    """The type in which values of both are compared."""
    if one == two:
        return one if one.orderable else None
    return max(one, two, key=lambda type_: WHOLE.index(type_.text)) if one.is_whole and two.is_whole else None


@dataclass(frozen=True)
class Top(Step):
    n: int
    by: str
    per: tuple[str, ...]

    kind = "top"
    keeps_state = True

    @classmethod
    def draw(cls, chance: Chance, name: str, known: Sequence[Step]) -> Step | None:
        sources = [step for step in tables(known) if step.key and "rank" not in [c.name for c in step.columns]]
        if not sources:
            return None
        source = chance.choice(sources)
        usable = [column for column in source.columns if column.exact and column.type.orderable]
        column = chance.choice(usable)
        by = Expressions(chance, source.columns).draw(column.type, 1) if chance.random() < 0.2 else quoted(column.name)
        size = min(len(usable), chance.choice([0, 0, 1, 1, 2]))
        per = tuple(column.name for column in chance.sample(usable, size))
        key = (*per, *(name for name in source.key or () if name not in per))
        values = tuple(column for column in source.columns if column.name not in key)
        columns = (*(source.column(name) for name in key), *values, Column("rank", Type("int")))
        return cls(name, (source.name,), columns, key, chance.randint(1, 4), by, per)

    def code(self) -> str:
        per = f", per={listed(self.per)}" if self.per else ""
        return f"{self.name} = {self.inputs[0]}.top({self.name!r}, {self.n}, by={self.by!r}{per})"

    def refuses(self, row: Row) -> bool:
        return any(row[name] is None for name in self.per)

    def rows(self, inputs: Sequence[Input], batch: Batch) -> list[Row]:
        (source,) = inputs
        batch.letters += [Letter(self.name, None) for row in source.rows if self.refuses(row)]
        source = replace(source, rows=[row for row in source.rows if not self.refuses(row)])
        order = ", ".join([f"{self.by} DESC NULLS LAST", *(quoted(name) for name in self.key or ())])
        groups = f"PARTITION BY {', '.join(map(quoted, self.per))} " if self.per else ""
        batch.frame(numbered(source)).createOrReplaceTempView("ranked_rows")
        ranked = f"SELECT {NUMBER.name}, row_number() OVER ({groups}ORDER BY {order}) AS place FROM ranked_rows"
        found = rows_of(batch.spark.sql(f"SELECT * FROM ({ranked}) WHERE place <= {self.n}"))
        return [{**source.rows[row[NUMBER.name]], "rank": row["place"]} for row in found]


KINDS: tuple[tuple[type[Step], int], ...] = ((Newest, 3), (TableJoin, 4), (Top, 3))
