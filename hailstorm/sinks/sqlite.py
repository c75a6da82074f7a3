"""A table in an SQLite file, written in one transaction with the cursor.

SQLite knows integers, reals, text and bytes: decimals become exact text, timestamps ISO 8601 text in UTC, nested
values JSON text (sinks/values.py). The file is in WAL mode, so that others can read it while it is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks.files import full_disk, wrong_place
from hailstorm.sinks.rejecting import write_acceptable
from hailstorm.sinks.sink import Parcel
from hailstorm.sinks.table_file import OpenTable, TableFile, run
from hailstorm.sinks.tables import Target, check_columns, quoted
from hailstorm.sinks.values import plain_values

_WAIT_FOR_LOCK = 5.0  # seconds; after that, delivery waits and tries again
_OF_A_ROW = ("SQLITE_CONSTRAINT", "SQLITE_TOOBIG", "SQLITE_MISMATCH")


@dataclass(frozen=True)
class Sqlite(TableFile[sqlite3.Connection]):
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended."""

    kind: ClassVar[str] = "sqlite"
    begin: ClassVar[str] = "BEGIN IMMEDIATE"

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=_WAIT_FOR_LOCK, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except BaseException:
            connection.close()
            raise
        return connection

    def _create(self, connection: sqlite3.Connection, wanted: Target) -> None:
        needed = {column.name: _sql_type(column.type) for column in wanted.columns}
        name = quoted(self.table)
        found = {row[1]: _affinity(row[2]) for row in run(connection, f"PRAGMA table_info({name})")}
        if found:
            check_columns(self._place, needed, found)
        else:
            columns = ", ".join(f"{quoted(column)} {kind}" for column, kind in needed.items())
            run(connection, f"CREATE TABLE {name} ({columns})")
        if wanted.upsert and wanted.key:
            # An index and no primary key: a single INTEGER primary key would turn a null key into a made-up number.
            index = quoted(f"hailstorm_key_of_{self.table}")
            key = ", ".join(map(quoted, wanted.key))
            run(connection, f"CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {name} ({key})")

    def _exists(self, connection: sqlite3.Connection) -> bool:
        return bool(run(connection, f"PRAGMA table_info({quoted(self.table)})"))

    def _write(self, connection: sqlite3.Connection, wanted: Target, parcel: Parcel) -> int:
        grown = 0
        for rows in parcel.pieces():
            self._write_piece(connection, wanted, rows, parcel.whole)
            grown += wanted.growth(rows)
        return grown

    def _write_piece(self, connection: sqlite3.Connection, wanted: Target, rows: pa.Table, whole: bool) -> None:
        name = quoted(self.table)
        if wanted.upsert and rows.num_rows and not whole:
            # IS instead of =, because a key may be null.
            same_key = " AND ".join(f"{quoted(column)} IS ?" for column in wanted.key) or "true"
            removed = _parameters(wanted.removed(rows)) if wanted.key else [()]
            connection.executemany(f"DELETE FROM {name} WHERE {same_key}", removed)
        columns = wanted.columns.names
        places = ", ".join("?" for _ in columns)
        insert = f"INSERT INTO {name} ({', '.join(map(quoted, columns))}) VALUES ({places})"
        connection.executemany(insert, _parameters(wanted.added(rows)))

    def _deliver_acceptable(self, session: OpenTable[sqlite3.Connection], parcel: Parcel) -> None:
        """With a savepoint for each attempt, until the bad rows are alone."""

        def write(connection: sqlite3.Connection, wanted: Target, parcel: Parcel) -> int:
            grown = 0

            def attempt(rows: pa.Table) -> str | None:
                nonlocal grown
                connection.execute("SAVEPOINT attempt")
                try:
                    self._write_piece(connection, wanted, rows, parcel.whole)
                except Exception as error:
                    reason = self._row_reason(error)
                    if reason is None or not connection.in_transaction:  # a trigger may end the whole transaction
                        raise
                    connection.execute("ROLLBACK TO attempt")
                    return reason
                connection.execute("RELEASE attempt")
                grown += wanted.growth(rows)
                return None

            write_acceptable(parcel, session.delivery, attempt)
            return grown

        self._transact(session, parcel, write)

    def _row_reason(self, error: Exception) -> str | None:
        name = getattr(error, "sqlite_errorname", None) or ""
        return str(error) if name.startswith(_OF_A_ROW) else None

    def _sink_error(self, error: Exception) -> SinkError | None:
        if not isinstance(error, sqlite3.Error):
            return None
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
            return TransientSinkError(6, f"{self._place} is locked by another program", hint="It is tried again.")
        if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
            return full_disk(self._place, error)
        if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_NOTADB", "SQLITE_CORRUPT")):
            return wrong_place(self._place, error)
        return SinkError(11, f"{self._place} does not take the rows: {error}")


def _parameters(rows: pa.Table) -> Iterator[Sequence[Any]]:
    return zip(*(plain_values(column) for column in rows.columns), strict=True)


def _sql_type(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_duration(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "BLOB"
    return "TEXT"


def _affinity(declared: str) -> str:
    """What SQLite makes of a declared type (its own rules), so that VARCHAR(20) passes for TEXT."""
    declared = declared.upper()
    for kind, words in {
        "INTEGER": ("INT", "BOOL"),
        "TEXT": ("CHAR", "CLOB", "TEXT"),
        "BLOB": ("BLOB",),
        "REAL": ("REAL", "FLOA", "DOUB"),
    }.items():
        if any(word in declared for word in words):
            return kind
    return declared or "BLOB"
