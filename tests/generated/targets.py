"""Where sinks deliver to, and what is found there afterwards: a function, SQLite, DuckDB, Parquet files.

A new target is one class: the code that makes the sink, what it holds in the end, and what a value looks like there.
`folder` and `delivered` are variables of the script.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.generated.batch import Row
from tests.generated.compare import plain
from tests.generated.expressions import Columns
from tests.generated.values import Array, Map, Struct, Type

Key = tuple[str, ...] | None


@dataclass(frozen=True)
class World:
    """What a script has made."""

    folder: Path
    delivered: Mapping[str, Any]  # what a function was called with, by idempotency key


class Target:
    takes_other_columns = False  # those of a step that was edited; else it refuses them, and the user must see to it

    def code(self, sink: str) -> str:
        """The sink, as Python."""
        raise NotImplementedError

    def look(self, sink: str) -> str:
        """What is there, as Python that a script ends with."""
        raise NotImplementedError

    def found(self, sink: str, key: Key, world: World) -> list[Row]:
        """The rows of a stream, or those of a table as they are in the end."""
        raise NotImplementedError

    def shown(self, columns: Columns, rows: Sequence[Row]) -> tuple[Columns, list[Row]]:
        """The columns that can be compared, and the rows as this target has them."""
        return columns, list(rows)


class Call(Target):
    takes_other_columns = True

    def code(self, sink: str) -> str:
        return "hs.Call(lambda rows: delivered.update((row.key, row) for row in rows))"

    def look(self, sink: str) -> str:
        return "delivered.items()"

    def found(self, sink: str, key: Key, world: World) -> list[Row]:
        rows = [row for place, row in world.delivered.items() if place.split("/")[1] == sink]
        return [dict(row) for row in rows] if key is None else _applied(key, [(row.kind, dict(row)) for row in rows])

    def shown(self, columns: Columns, rows: Sequence[Row]) -> tuple[Columns, list[Row]]:
        return columns, [{**row, **{c.name: _with_dicts(c.type, row[c.name]) for c in columns}} for row in rows]


class Parquet(Target):
    def code(self, sink: str) -> str:
        return f"hs.Parquet(folder / {sink!r})"

    def look(self, sink: str) -> str:
        return f"__import__('pyarrow.parquet').parquet.read_table(folder / {sink!r}).to_pylist()"

    def found(self, sink: str, key: Key, world: World) -> list[Row]:
        files = sorted((world.folder / sink).glob("*.parquet"))
        rows = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
        return rows if key is None else _applied(key, [(row["_kind"], row) for row in rows])


class Sqlite(Target):
    def code(self, sink: str) -> str:
        return f"hs.Sqlite(folder / 'out.db', {_table(sink)!r})"

    def look(self, sink: str) -> str:
        return f"__import__('sqlite3').connect(folder / 'out.db').execute('SELECT * FROM {_table(sink)}')"

    def found(self, sink: str, key: Key, world: World) -> list[Row]:
        with sqlite3.connect(world.folder / "out.db") as connection:
            cursor = connection.execute(f'SELECT * FROM "{_table(sink)}"')
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        connection.close()
        return rows

    def shown(self, columns: Columns, rows: Sequence[Row]) -> tuple[Columns, list[Row]]:
        # Nested values are JSON there: their text is the business of the matrix of sinks.
        flat = tuple(column for column in columns if "<" not in column.type.text and column.exact)
        return flat, [{column.name: _sqlite(row[column.name]) for column in flat} for row in rows]


class DuckDB(Target):
    def code(self, sink: str) -> str:
        return f"hs.DuckDB(folder / 'out.duckdb', {_table(sink)!r})"

    def look(self, sink: str) -> str:
        return f"__import__('duckdb').connect(folder / 'out.duckdb').execute('SELECT * FROM {_table(sink)}').fetchall()"

    def found(self, sink: str, key: Key, world: World) -> list[Row]:
        import duckdb

        with duckdb.connect(world.folder / "out.duckdb") as connection:
            connection.execute("SET TimeZone = 'UTC'")
            table: Any = connection.sql(f'SELECT * FROM "{_table(sink)}"').to_arrow_table()
        return list(table.to_pylist())


TARGETS: dict[str, Target] = {"call": Call(), "parquet": Parquet(), "sqlite": Sqlite(), "duckdb": DuckDB()}


def _table(sink: str) -> str:
    return sink.replace("-", "_")


def _applied(key: Sequence[str], changes: Sequence[tuple[str, Row]]) -> list[Row]:
    table: dict[Any, Row] = {}
    for kind, row in changes:
        identity = tuple(plain(row[name], False) for name in key)
        if kind == "delete":
            table.pop(identity, None)
        else:
            table[identity] = row
    return list(table.values())


def _sqlite(value: Any) -> Any:
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0  # SQLite keeps no sign of zero
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if value.tzinfo else text
    return value.isoformat() if isinstance(value, date) else value


def _with_dicts(type_: Type, value: Any) -> Any:
    """Maps as dicts, at any depth."""
    if value is None or hasattr(value, "fits"):
        return value
    if isinstance(type_, Map):
        return {key: _with_dicts(type_.value, item) for key, item in value}
    if isinstance(type_, Array):
        return [_with_dicts(type_.of, item) for item in value]
    if isinstance(type_, Struct):
        return {name: _with_dicts(part, value[name]) for name, part in type_.fields}
    return value
