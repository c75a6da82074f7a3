"""The matrix that every sink passes: each type in a stream, in a table, as a key, under odd names, after a restart, and
over a target of another version. To add a sink: write a target (targets.py), and subclass `SinkMatrix`.

What arrives must be what was sent, or a dead letter that the documentation names. Every commit is delivered by a
sink of its own, as after a restart.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hailstorm.columns import KIND, OLD
from hailstorm.engine.delivery.outbox import fitting
from hailstorm.errors import SinkError
from hailstorm.sinks.sink import Delivery, Parcel, Rejected
from hailstorm.topology.arrow_types import arrow_schema
from tests.connectors.matrix.kinds import KINDS, ODD_NAMES, exact, is_key
from tests.connectors.matrix.targets import Change, Key, SentRow, Target

Columns = dict[str, str]  # name -> type


@dataclass
class Told:
    """What was sent to a target, and what should be there: the oracle."""

    target: Target
    name: str
    columns: Columns
    key: Key
    rows: dict[Any, SentRow] = field(default_factory=dict)
    refused: int = 0  # rows that the target should refuse
    rejected: int = 0  # rows that it did refuse
    commit: int = 0
    schema: pa.Schema = field(init=False)

    def __post_init__(self) -> None:
        self.schema = arrow_schema(self.columns.items())

    def deliver(self, *changes: Change) -> None:
        self.commit += 1
        for kind, row in changes:
            self._expect(kind, row)
        sink = self.target.make(self.name, self.key)
        sink.open(self.delivery())
        try:
            sink.deliver(Parcel.of(self.commit, self._outbox(changes)))
        finally:
            sink.close()

    def is_refused(self) -> bool:
        """Whether the target has no such columns. Then opening the sink must say so."""
        if not any(map(self.target.lacks, self.columns.values())):
            return False
        with pytest.raises(SinkError, match="HS-SNK-024"):
            self.target.make(self.name, self.key).open(self.delivery())
        return True

    def delivery(self) -> Delivery:
        def reject(commit: int, rows: Sequence[Rejected]) -> None:
            self.rejected += len(rows)

        is_table, key = self.key is not None, self.key or ()
        return Delivery(self.target.topology, self.name, "ledger", self.schema, key, is_table, reject=reject)

    def check(self) -> None:
        schema = self.schema
        expected = [
            {name: self.target.held(schema.field(name).type, value) for name, value in row.items()}
            for row in self.rows.values()
        ]
        found, wanted = _counted(self.target.rows(self.name, schema, self.key)), _counted(expected)
        assert (found - wanted, wanted - found) == (Counter(), Counter())
        assert self.rejected == self.refused

    def _expect(self, kind: str, row: SentRow) -> None:
        given = {name: value for name, value in row.items() if kind != "delete" or name in (self.key or ())}
        if any(self.target.refuses(self.schema.field(name).type, value) for name, value in given.items()):
            self.refused += 1
            return
        identity = len(self.rows) if self.key is None else repr([row[name] for name in self.key])
        self.rows.pop(identity, None)
        if kind != "delete":
            self.rows[identity] = row

    def _outbox(self, changes: Sequence[Change]) -> pa.Table:
        """The rows as delivery reads them: out of a Parquet file, with the columns that the sink was opened for."""
        rows = pa.Table.from_pylist([row for _, row in changes], schema=self.schema)
        if self.key is not None:
            # Before an update there was the same: a value that cannot be shown must do no harm there, either.
            old = pa.table(rows.columns, schema=self.schema).to_struct_array().combine_chunks()
            inserted = pa.array([kind == "insert" for kind, _ in changes])
            old = pa.StructArray.from_arrays(old.flatten(), fields=list(self.schema), mask=inserted)
            rows = rows.append_column(KIND, pa.array([kind for kind, _ in changes])).append_column(OLD, old)
        file = io.BytesIO()
        pq.write_table(rows, file)
        return fitting(pq.ParquetFile(file).read(), self.schema)


def _counted(rows: list[SentRow]) -> Counter[str]:
    return Counter(repr(exact(row)) for row in rows)


def stream(target: Target, name: str, columns: Columns, rows: list[SentRow]) -> None:
    """Rows of a stream, in two commits."""
    told = Told(target, name, columns, None)
    if told.is_refused():
        return
    half = len(rows) // 2
    told.deliver(*(("insert", row) for row in rows[:half]))
    told.deliver(*(("insert", row) for row in rows[half:]))
    told.check()


def table(target: Target, name: str, columns: Columns, key: tuple[str, ...], rows: list[SentRow]) -> None:
    """Insert all; update each to the values of the next, and delete every third; insert one of these again."""
    told = Told(target, name, columns, key)
    if told.is_refused():
        return
    told.deliver(*(("insert", row) for row in rows))
    changes: list[Change] = []
    for number, (row, following) in enumerate(zip(rows, [*rows[1:], rows[0]], strict=True)):
        same = {name: row[name] for name in key}
        is_gone = number % 3 == 0
        changes.append(("delete", dict.fromkeys(columns) | same) if is_gone else ("update", following | same))
    told.deliver(*changes)
    told.deliver(("insert", rows[0]))
    told.check()


def wide(kinds: list[str]) -> tuple[Columns, list[SentRow]]:
    """All kinds in one row: row by row the next value of each."""
    columns = {"id": "int"} | {f"c{number}": kind for number, kind in enumerate(kinds)}
    rows = []
    for number in range(max(len(KINDS[kind]) for kind in kinds)):
        values = [KINDS[kind][min(number, len(KINDS[kind]) - 1)] for kind in kinds]
        rows.append(dict(zip(columns, [number, *values], strict=True)))
    return columns, rows


class WideMatrix:
    """All types in one row. A class has one target for all of its cells, which have names of their own."""

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls) -> Target:
        raise NotImplementedError("each sink gives its own")

    def test_all_types_at_once_in_a_stream(self, target: Target) -> None:
        stream(target, "wide stream", *wide([kind for kind in KINDS if not target.lacks(kind)]))

    def test_all_types_at_once_in_a_table(self, target: Target) -> None:
        columns, rows = wide([kind for kind in KINDS if not target.lacks(kind)])
        table(target, "wide table", columns, ("id",), rows)

    def test_many_types_at_once_as_keys(self, target: Target) -> None:
        columns, rows = wide([kind for kind in KINDS if is_key(kind)][:12])
        table(target, "wide keys", columns, tuple(columns), rows)

    def test_any_name_of_a_column_of_a_field_and_of_a_target_is_taken(self, target: Target) -> None:
        fields = ",".join(f"`{name.replace('`', '``')}`:string" for name in ODD_NAMES)
        columns = dict.fromkeys(ODD_NAMES, "string") | {"nested": f"array<struct<{fields}>>"}
        rows = [
            {name: f"{name} {number}" for name in ODD_NAMES}
            | {"nested": [{name: f"{name} in {number}" for name in ODD_NAMES}, None]}
            for number in range(4)
        ]
        table(target, "odd \"names\" 'in' `it`", columns, tuple(ODD_NAMES[:3]), rows)
        stream(target, "odd names; of a stream -- x", columns, rows)

    BEFORE: ClassVar[Columns] = {"word": "string", "n": "bigint", "tags": "array<string>", "by": "map<string,int>"}
    ROW: ClassVar[SentRow] = {"word": "a", "n": 1, "tags": ["x"], "by": [("k", 1)]}

    @pytest.mark.parametrize("key", [None, ("word",)], ids=["stream", "table"])
    @pytest.mark.parametrize("change", ["a column more", "a column less", "another type"])
    def test_a_target_of_another_version_is_taken_or_refused_by_name(
        self, target: Target, key: Key, change: str
    ) -> None:
        told = Told(target, f"{change} {key}", self.BEFORE, key)
        told.deliver(("insert", self.ROW))
        row: SentRow = {**self.ROW, "word": "b"}
        columns = dict(self.BEFORE)
        match change:
            case "a column more":
                columns["extra"], row["extra"], wrong = "int", 7, "missing: extra"
            case "a column less":
                del columns["tags"], row["tags"]
                wrong = "not in the topology: tags"
            case _:
                columns["n"], row["n"], wrong = "string", "two", "different: n"
        newer = Told(target, told.name, columns, key, commit=1)
        if not target.checks_columns:
            newer.deliver(("insert", row))
            return
        sink = target.make(told.name, key)
        with pytest.raises(SinkError, match="HS-SNK-003") as caught:
            sink.open(newer.delivery())
        sink.close()
        assert wrong in caught.value.hint
        told.check()


class TypeMatrix:
    """Each type alone."""

    @pytest.fixture(scope="class")
    @classmethod
    def target(cls) -> Target:
        raise NotImplementedError("each sink gives its own")

    @pytest.mark.parametrize("kind", KINDS)
    def test_rows_of_a_stream_arrive_exactly(self, target: Target, kind: str) -> None:
        rows = [{"id": number, "value": value} for number, value in enumerate(KINDS[kind])]
        stream(target, f"stream of {kind}", {"id": "int", "value": kind}, rows)

    @pytest.mark.parametrize("kind", KINDS)
    def test_changes_of_a_table_are_applied_exactly(self, target: Target, kind: str) -> None:
        rows = [{"a": number, "b": str(number), "value": value} for number, value in enumerate(KINDS[kind])]
        table(target, f"table of {kind}", {"a": "int", "b": "string", "value": kind}, ("a", "b"), rows)

    @pytest.mark.parametrize("kind", [kind for kind in KINDS if is_key(kind)])
    def test_it_can_be_the_key_of_a_table(self, target: Target, kind: str) -> None:
        rows = [{"key": value, "n": number} for number, value in enumerate(KINDS[kind])]
        table(target, f"table by {kind}", {"key": kind, "n": "bigint"}, ("key",), rows)


class SinkMatrix(WideMatrix, TypeMatrix):
    """All types in one row, and each type alone."""
