"""A table in an SQLite file, written in one transaction with the cursor.

SQLite knows integers, reals, text and bytes: decimals become exact text, timestamps ISO 8601 text in UTC, nested
values JSON text (sinks/values.py). The file is in WAL mode, so that others can read it while it is written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.ledger import faults
from hailstorm.sinks.files import check_local, full_disk, prepare_file, wrong_place
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import KIND, Delivery
from hailstorm.sinks.tables import Mode, Target, check_columns, check_mode, quoted, target
from hailstorm.sinks.values import plain_values

_WAIT_FOR_LOCK = 5.0  # seconds; after that, delivery waits and tries again
_CURSORS = """CREATE TABLE IF NOT EXISTS hailstorm_cursors
    (topology TEXT NOT NULL, sink TEXT NOT NULL, commit_number INTEGER NOT NULL, PRIMARY KEY (topology, sink))"""


@dataclass
class _Open:
    connection: sqlite3.Connection
    delivery: Delivery
    target: Target | None = None  # known at the latest when the first rows come


@dataclass(frozen=True)
class Sqlite:
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended."""

    path: str | Path
    table: str
    mode: Mode | None = None
    keeps_cursor: ClassVar[bool] = True
    _session: Session[_Open] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_local(self.path)
        check_mode(self.mode)

    def open(self, delivery: Delivery) -> None:
        path = Path(self.path)
        prepare_file(path)
        with self._clear_errors():
            connection = sqlite3.connect(path, timeout=_WAIT_FOR_LOCK, isolation_level=None)
            session = _Open(connection, delivery)
            try:
                connection.execute("PRAGMA journal_mode = WAL")
                with _transaction(connection):
                    connection.execute(_CURSORS)
                    if delivery.key:
                        session.target = self._prepare(session, changes=True)
            except BaseException:
                connection.close()
                raise
        self._session.begin(session)

    def cursor(self) -> int | None:
        with self._clear_errors():
            return _cursor(self._session.get())

    def deliver(self, commit: int, rows: pa.Table) -> None:
        session = self._session.get()
        connection, delivery = session.connection, session.delivery
        with self._clear_errors(), _transaction(connection):
            if (_cursor(session) or 0) >= commit:
                return
            wanted = session.target or self._prepare(session, changes=KIND in rows.column_names)
            self._write(connection, wanted, rows)
            connection.execute(
                "INSERT OR REPLACE INTO hailstorm_cursors VALUES (?, ?, ?)", (delivery.topology, delivery.sink, commit)
            )
            faults.fault("during-delivery")
        session.target = wanted  # not before: a rollback takes a new table away again

    def close(self) -> None:
        session = self._session.end()
        if session is not None:
            session.connection.close()

    def resolve(self, folder: Path) -> Sqlite:
        return replace(self, path=folder / self.path)

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "sqlite", "path": str(self.path), "table": self.table, "mode": self.mode}

    def _prepare(self, session: _Open, changes: bool) -> Target:
        """Create the table when it is missing; otherwise check that it fits."""
        wanted = target(session.delivery, self.mode, changes)
        needed = {column.name: _sql_type(column.type) for column in wanted.columns}
        name, run = quoted(self.table), session.connection.execute
        found = {row[1]: _affinity(row[2]) for row in run(f"PRAGMA table_info({name})")}
        if found:
            check_columns(f"table '{self.table}' in {self.path}", needed, found)
        else:
            run(f"CREATE TABLE {name} ({', '.join(f'{quoted(column)} {kind}' for column, kind in needed.items())})")
        if wanted.upsert and wanted.key:
            # An index and no primary key: a single INTEGER primary key would turn a null key into a made-up number.
            index = quoted(f"hailstorm_key_of_{self.table}")
            run(f"CREATE UNIQUE INDEX IF NOT EXISTS {index} ON {name} ({', '.join(map(quoted, wanted.key))})")
        return wanted

    def _write(self, connection: sqlite3.Connection, wanted: Target, rows: pa.Table) -> None:
        name = quoted(self.table)
        if wanted.upsert and rows.num_rows:
            # IS instead of =, because a key may be null.
            same_key = " AND ".join(f"{quoted(column)} IS ?" for column in wanted.key) or "true"
            removed = _parameters(wanted.removed(rows)) if wanted.key else [()]
            connection.executemany(f"DELETE FROM {name} WHERE {same_key}", removed)
        columns = wanted.columns.names
        places = ", ".join("?" for _ in columns)
        insert = f"INSERT INTO {name} ({', '.join(map(quoted, columns))}) VALUES ({places})"
        connection.executemany(insert, _parameters(wanted.added(rows)))

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _sink_error(error, f"table '{self.table}' in {self.path}") from error


def _cursor(session: _Open) -> int | None:
    row = session.connection.execute(
        "SELECT commit_number FROM hailstorm_cursors WHERE topology = ? AND sink = ?",
        (session.delivery.topology, session.delivery.sink),
    ).fetchone()
    return None if row is None else int(row[0])


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # Some errors (a full disk) have rolled back already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


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


def _sink_error(error: sqlite3.Error, place: str) -> SinkError:
    name = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return TransientSinkError(6, f"{place} is locked by another program", hint="It is tried again.")
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR")):
        return full_disk(place, error)
    if name.startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_NOTADB", "SQLITE_CORRUPT")):
        return wrong_place(place, error)
    return SinkError(11, f"{place} does not take the rows: {error}")
