"""Every sink passes the contract; each has a harness that reads back what a consumer would see."""

from __future__ import annotations

import json
import pickle
import sqlite3
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console as Terminal

from hailstorm.columns import KIND
from hailstorm.errors import SinkError
from hailstorm.sinks.call import Call, Row
from hailstorm.sinks.console import Console
from hailstorm.sinks.duckdb import DuckDB
from hailstorm.sinks.parquet import Parquet
from hailstorm.sinks.sink import Parcel
from hailstorm.sinks.sqlite import Sqlite
from tests.connectors.sink_contract import (
    Harness,
    Json,
    SinkContract,
    after_changes,
    as_json,
    changes,
    counts_delivery,
)


def file_name(target: str) -> str:
    return f"{zlib.crc32(target.encode()):x}"


@dataclass
class SqliteHarness:
    folder: Path
    forgets: bool = False

    def make(self, target: str, mode: Any = None) -> Sqlite:
        return Sqlite(self.folder / "all.db", target, mode)

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        connection = sqlite3.connect(self.folder / "all.db")
        connection.row_factory = sqlite3.Row
        name = target.replace('"', '""')
        rows = [dict(row) for row in connection.execute(f'SELECT * FROM "{name}"')]
        connection.close()
        for row in rows:
            for column in schema:
                if pa.types.is_nested(column.type) and row[column.name] is not None:
                    row[column.name] = json.loads(row[column.name])
        return [as_json(row) for row in rows]


@dataclass
class DuckDBHarness:
    folder: Path
    forgets: bool = False

    def make(self, target: str, mode: Any = None) -> DuckDB:
        return DuckDB(self.folder / "all.duckdb", target, mode)

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        name = target.replace('"', '""')
        with duckdb.connect(str(self.folder / "all.duckdb")) as connection:
            table = connection.sql(f'SELECT * FROM "{name}"').to_arrow_table()
        return [as_json(row) for row in table.to_pylist(maps_as_pydicts="strict")]


@dataclass
class ParquetHarness:
    folder: Path
    forgets: bool = False

    def make(self, target: str, mode: Any = None) -> Parquet:
        return Parquet(self.folder / file_name(target))

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        files = sorted((self.folder / file_name(target)).glob("*.parquet"))
        rows = [as_json(row) for file in files for row in pq.read_table(file).to_pylist(maps_as_pydicts="strict")]
        return after_changes([(row.pop(KIND, "insert"), row) for row in rows], key)


@dataclass(frozen=True)
class Receiver:
    """A service that ignores what it has got already, as an idempotency key lets it do."""

    file: Path

    def __call__(self, rows: list[Row]) -> None:
        with open(self.file, "ab") as stream:
            for row in rows:
                pickle.dump((row.key, row.kind, dict(row)), stream)


@dataclass
class CallHarness:
    folder: Path
    forgets: bool = False

    def make(self, target: str, mode: Any = None) -> Call:
        return Call(Receiver(self.folder / file_name(target)))

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        seen: dict[str, tuple[str, Json]] = {}
        with open(self.folder / file_name(target), "rb") as stream:
            while stream.peek(1):
                idempotency_key, kind, row = pickle.load(stream)
                seen.setdefault(idempotency_key, (kind, as_json(row)))
        return after_changes(seen.values(), key)


@dataclass
class Pipe:
    """What stands at the other end of the standard output: a file, opened for each line."""

    file: Path

    def write(self, text: str) -> None:
        with open(self.file, "a", encoding="utf-8") as stream:
            stream.write(text)

    def flush(self) -> None: ...


class Piped(Terminal):
    """Not a terminal; and a screen does not travel with a pickled sink."""

    def __reduce__(self) -> tuple[type[Terminal], tuple[()]]:
        return Terminal, ()


@dataclass
class ConsoleHarness:
    folder: Path
    forgets: bool = True

    def make(self, target: str, mode: Any = None) -> Console:
        pipe = cast(IO[str], Pipe(self.folder / file_name(target)))
        return Console(terminal=Piped(file=pipe, force_terminal=False))

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        lines = (self.folder / file_name(target)).read_text(encoding="utf-8").splitlines()
        rows = [json.loads(line) for line in lines]
        for row in rows:
            del row["_sink"], row["_commit"]
        return after_changes([(row.pop(KIND, "insert"), row) for row in rows], key)


class TestSqlite(SinkContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return SqliteHarness(tmp_path)


class TestDuckDB(SinkContract):
    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return DuckDBHarness(tmp_path)


class TestParquet(SinkContract):
    is_a_log = True
    has_generations = True

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return ParquetHarness(tmp_path)


class TestCall(SinkContract):
    is_a_log = True
    has_owner = False

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return CallHarness(tmp_path)


class TestConsole(SinkContract):
    is_a_log = True
    has_owner = False

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Harness:
        return ConsoleHarness(tmp_path)


@pytest.mark.parametrize(("wound", "what"), [("DROP TABLE board", "is gone"), ("DELETE FROM board", "is empty")])
@pytest.mark.parametrize("kind", [SqliteHarness, DuckDBHarness])
def test_a_table_that_lost_its_rows_and_not_its_cursor_is_noticed(
    tmp_path: Path, kind: type[SqliteHarness | DuckDBHarness], wound: str, what: str
) -> None:
    sink = kind(tmp_path).make("board")
    sink.open(counts_delivery())
    sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
    sink.close()
    connect: Any = sqlite3.connect if kind is SqliteHarness else duckdb.connect
    connection = connect(str(sink.path))
    connection.execute(wound)
    connection.commit()
    connection.close()
    with pytest.raises(SinkError, match=f"table 'board' in .* {what}") as error:
        sink.open(counts_delivery())
    assert error.value.code == "HS-SNK-063"
    assert "hailstorm resend APP board" in error.value.hint
