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
                    session.connection.execute(_CURSORS)
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
            if session.target is None:
                session.target = self._prepare(session, changes=KIND in rows.column_names)
            self._write(session.connection, session.target, rows)
            _store_cursor(session, commit, is_new=stored is None)
            faults.fault("during-delivery")

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
        with _registered(session.connection, "hailstorm_rows", wanted.columns.empty_table()) as run:
            needed = {row[0]: row[1] for row in run.execute("DESCRIBE hailstorm_rows").fetchall()}
            found = run.execute(
                "SELECT column_name, data_type FROM duckdb_columns() "
                "WHERE table_name = ? AND schema_name = current_schema() AND database_name = current_database() "
                "ORDER BY column_index",
                [self.table],
            ).fetchall()
            if found:
                check_columns(f"table '{self.table}' in {self.path}", needed, dict(found))
            else:
                run.execute(f"CREATE TABLE {quoted(self.table)} AS SELECT * FROM hailstorm_rows")
        return wanted

    def _write(self, connection: DuckDBPyConnection, wanted: Target, rows: pa.Table) -> None:
        name = quoted(self.table)
        if wanted.upsert and rows.num_rows:
            with _registered(connection, "hailstorm_rows", wanted.removed(rows)) as run:
                # IS NOT DISTINCT FROM instead of =, because a key may be null.
                same = (f"old.{quoted(column)} IS NOT DISTINCT FROM new.{quoted(column)}" for column in wanted.key)
                if wanted.key:
                    run.execute(f"DELETE FROM {name} AS old USING hailstorm_rows AS new WHERE {' AND '.join(same)}")
                else:
                    run.execute(f"DELETE FROM {name}")
        with _registered(connection, "hailstorm_rows", wanted.added(rows)) as run:
            run.execute(f"INSERT INTO {name} BY NAME SELECT * FROM hailstorm_rows")

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


def _cursor(session: _Open) -> int | None:
    row = session.connection.execute(
        "SELECT max(commit_number) FROM hailstorm_cursors WHERE topology = ? AND sink = ?",
        [session.delivery.topology, session.delivery.sink],
    ).fetchone()
    return None if row is None or row[0] is None else int(row[0])


def _store_cursor(session: _Open, commit: int, is_new: bool) -> None:
    names = [session.delivery.topology, session.delivery.sink]
    if is_new:
        session.connection.execute("INSERT INTO hailstorm_cursors VALUES (?, ?, ?)", [*names, commit])
    else:
        session.connection.execute(
            "UPDATE hailstorm_cursors SET commit_number = ? WHERE topology = ? AND sink = ?", [commit, *names]
        )


@contextmanager
def _transaction(connection: DuckDBPyConnection) -> Iterator[None]:
    connection.execute("BEGIN TRANSACTION")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def _registered(connection: DuckDBPyConnection, name: str, rows: pa.Table) -> Iterator[DuckDBPyConnection]:
    """The Arrow table under a name that SQL sees; nothing is copied."""
    connection.register(name, rows)
    try:
        yield connection
    finally:
        connection.unregister(name)


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
