"""A table in a DuckDB file, written from Arrow in one transaction with the cursor.

DuckDB has all the types that rows can have; it maps them itself. One process at a time can write to a DuckDB file:
while another one has it open, delivery waits. Needs the extra `duckdb`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.ledger import faults
from hailstorm.sinks.files import check_local, full_disk, prepare_file, wrong_place
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import KIND, Delivery
from hailstorm.sinks.tables import Mode, Target, check_columns, check_mode, quoted, target

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_CURSORS = """CREATE TABLE IF NOT EXISTS hailstorm_cursors
    (topology VARCHAR NOT NULL, sink VARCHAR NOT NULL, commit_number BIGINT NOT NULL)"""
_TRANSIENT = (
    "TransactionException",
    "ConnectionException",
    "InterruptException",
    "FatalException",
    "InternalException",
)
_FULL = ("no space left", "file too large", "disk full", "quota")
_WRONG_PLACE = ("not a valid duckdb", "permission denied", "read-only", "is a directory", "not a directory")


@dataclass
class _Open:
    connection: DuckDBPyConnection
    delivery: Delivery
    target: Target | None = None  # known at the latest when the first rows come


@dataclass(frozen=True)
class DuckDB:
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
            session = _Open(_connect(path), delivery)
            try:
                with _transaction(session.connection):
                    _run(session.connection, _CURSORS)
                    if delivery.key:
                        session.target = self._prepare(session, changes=True)
            except BaseException:
                session.connection.close()
                raise
        self._session.begin(session)

    def cursor(self) -> int | None:
        with self._clear_errors():
            return _cursor(self._session.get())

    def deliver(self, commit: int, rows: pa.Table) -> None:
        session = self._session.get()
        with self._clear_errors(), _transaction(session.connection):
            stored = _cursor(session)
            if (stored or 0) >= commit:
                return
            wanted = session.target or self._prepare(session, changes=KIND in rows.column_names)
            self._write(session.connection, wanted, rows)
            _store_cursor(session, commit, is_new=stored is None)
            faults.fault("during-delivery")
        session.target = wanted  # not before: a rollback takes a new table away again

    def close(self) -> None:
        session = self._session.end()
        if session is not None:
            session.connection.close()

    def resolve(self, folder: Path) -> DuckDB:
        return replace(self, path=folder / self.path)

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "duckdb", "path": str(self.path), "table": self.table, "mode": self.mode}

    def _prepare(self, session: _Open, changes: bool) -> Target:
        """Create the table when it is missing; otherwise check that it fits."""
        wanted = target(session.delivery, self.mode, changes)
        connection = session.connection
        with _registered(connection, wanted.columns.empty_table()):
            needed = {row[0]: row[1] for row in _run(connection, "DESCRIBE hailstorm_rows")}
            found = _run(
                connection,
                "SELECT column_name, data_type FROM duckdb_columns() "
                "WHERE table_name = ? AND schema_name = current_schema() AND database_name = current_database() "
                "ORDER BY column_index",
                self.table,
            )
            if found:
                check_columns(f"table '{self.table}' in {self.path}", needed, {row[0]: row[1] for row in found})
            else:
                _run(connection, f"CREATE TABLE {quoted(self.table)} AS SELECT * FROM hailstorm_rows")
        return wanted

    def _write(self, connection: DuckDBPyConnection, wanted: Target, rows: pa.Table) -> None:
        name = quoted(self.table)
        if wanted.upsert and rows.num_rows:
            # IS NOT DISTINCT FROM instead of =, because a key may be null. No key at all: the only row goes.
            same = [f"old.{quoted(column)} IS NOT DISTINCT FROM new.{quoted(column)}" for column in wanted.key]
            with _registered(connection, wanted.removed(rows) if same else rows):
                where = " AND ".join(same) or "true"
                _run(connection, f"DELETE FROM {name} AS old USING hailstorm_rows AS new WHERE {where}")
        with _registered(connection, wanted.added(rows)):
            _run(connection, f"INSERT INTO {name} BY NAME SELECT * FROM hailstorm_rows")

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # duckdb may not be installed, so its errors are known by their module and name.
            if not type(error).__module__.lstrip("_").startswith("duckdb"):
                raise
            raise _sink_error(error, f"table '{self.table}' in {self.path}") from error


def _connect(path: Path) -> DuckDBPyConnection:
    try:
        import duckdb
    except ImportError as error:
        raise SinkError(
            2, "the DuckDB sink needs a package that is missing", hint="pip install hailstorm[duckdb]"
        ) from error
    return duckdb.connect(str(path))


def _run(connection: DuckDBPyConnection, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Run it to its end: DuckDB refuses other work while a result is half read."""
    return connection.execute(statement, parameters).fetchall()


def _cursor(session: _Open) -> int | None:
    stored = "SELECT max(commit_number) FROM hailstorm_cursors WHERE topology = ? AND sink = ?"
    ((commit,),) = _run(session.connection, stored, session.delivery.topology, session.delivery.sink)
    return None if commit is None else int(commit)


def _store_cursor(session: _Open, commit: int, is_new: bool) -> None:
    if is_new:
        store = "INSERT INTO hailstorm_cursors (commit_number, topology, sink) VALUES (?, ?, ?)"
    else:
        store = "UPDATE hailstorm_cursors SET commit_number = ? WHERE topology = ? AND sink = ?"
    _run(session.connection, store, commit, session.delivery.topology, session.delivery.sink)


@contextmanager
def _transaction(connection: DuckDBPyConnection) -> Iterator[None]:
    connection.begin()
    try:
        yield
    except BaseException:
        connection.rollback()
        raise
    connection.commit()


@contextmanager
def _registered(connection: DuckDBPyConnection, rows: pa.Table) -> Iterator[None]:
    """The Arrow table under a name that SQL sees; nothing is copied."""
    connection.register("hailstorm_rows", rows)
    yield
    # Not after an error: in an aborted transaction this would fail, too, and hide the reason.
    connection.unregister("hailstorm_rows")


def _sink_error(error: Exception, place: str) -> SinkError:
    text, name = str(error).lower(), type(error).__name__
    if any(word in text for word in _FULL):
        return full_disk(place, error)
    if "lock" in text and name == "IOException":
        return TransientSinkError(6, f"{place} is open in another program", hint=f"It is tried again. {error}")
    if any(word in text for word in _WRONG_PLACE):
        return wrong_place(place, error)
    if name in ("IOException", *_TRANSIENT):
        return TransientSinkError(6, f"cannot write to {place} now: {error}")
    return SinkError(11, f"{place} does not take the rows: {error}")
