"""What the sinks share that write to a table in a database file: one transaction for the rows and the cursor.

A row that breaks a constraint of the user's table is rejected (sinks/sink.py), and the others of its commit are
written. How such rows are found depends on the database, and so do types; both are the subclass's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from hailstorm.errors import SinkError
from hailstorm.ledger import faults
from hailstorm.sinks.files import check_local, prepare_file
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import KIND, Delivery
from hailstorm.sinks.tables import Mode, Target, check_mode, target

_CURSORS = """CREATE TABLE IF NOT EXISTS hailstorm_cursors
    (topology TEXT NOT NULL, sink TEXT NOT NULL, commit_number BIGINT NOT NULL)"""
_OURS = "WHERE topology = ? AND sink = ?"


class Connection(Protocol):
    def execute(self, statement: str, parameters: Any, /) -> Any: ...
    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


@dataclass
class OpenTable(Generic[C]):
    connection: C
    delivery: Delivery
    target: Target | None = None  # known at the latest when the first rows come


@dataclass(frozen=True)
class TableFile(ABC, Generic[C]):
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended."""

    path: str | Path
    table: str
    mode: Mode | None = None
    keeps_cursor: ClassVar[bool] = True
    kind: ClassVar[str]
    begin: ClassVar[str]  # how a transaction begins
    _session: Session[OpenTable[C]] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_local(self.path)
        check_mode(self.mode)

    def open(self, delivery: Delivery) -> None:
        prepare_file(Path(self.path))
        with self._clear_errors():
            session = OpenTable(self._connect(), delivery)
            try:
                with self._transaction(session.connection):
                    run(session.connection, _CURSORS)
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
        with self._clear_errors():
            try:
                self._transact(session, commit, rows, self._write)
            except Exception as error:
                if self._row_reason(error) is None:
                    raise
                # Nothing of it is there. Now without the rows that the table does not take.
                self._deliver_acceptable(session, commit, rows)

    def close(self) -> None:
        session = self._session.end()
        if session is not None:
            session.connection.close()

    def resolve(self, folder: Path) -> Self:
        return replace(self, path=folder / self.path)

    def describe(self) -> Mapping[str, Any]:
        return {"sink": self.kind, "path": str(self.path), "table": self.table, "mode": self.mode}

    @abstractmethod
    def _connect(self) -> C: ...

    @abstractmethod
    def _create(self, connection: C, wanted: Target) -> None:
        """Create the table when it is missing; otherwise check that it fits."""

    @abstractmethod
    def _write(self, connection: C, wanted: Target, rows: pa.Table) -> None: ...

    @abstractmethod
    def _deliver_acceptable(self, session: OpenTable[C], commit: int, rows: pa.Table) -> None:
        """Deliver the rows that the table takes, and reject the others before the cursor moves."""

    @abstractmethod
    def _row_reason(self, error: Exception) -> str | None:
        """Why the table does not take a row, when that is what the error says."""

    @abstractmethod
    def _sink_error(self, error: Exception) -> SinkError | None:
        """The database's error as ours; None for any other error."""

    @property
    def _place(self) -> str:
        return f"table '{self.table}' in {self.path}"

    def _prepare(self, session: OpenTable[C], changes: bool) -> Target:
        wanted = target(session.delivery, self.mode, changes)
        self._create(session.connection, wanted)
        return wanted

    def _transact(
        self, session: OpenTable[C], commit: int, rows: pa.Table, write: Callable[[C, Target, pa.Table], None]
    ) -> None:
        with self._transaction(session.connection):
            stored = _cursor(session)
            if (stored or 0) >= commit:
                return
            wanted = session.target or self._prepare(session, changes=KIND in rows.column_names)
            write(session.connection, wanted, rows)
            _store_cursor(session, commit, is_new=stored is None)
            faults.fault("during-delivery")
        session.target = wanted  # not before: a rollback takes a new table away again

    @contextmanager
    def _transaction(self, connection: C) -> Iterator[None]:
        run(connection, self.begin)
        try:
            yield
            run(connection, "COMMIT")
        except BaseException:
            with suppress(Exception):  # some errors (a full disk) have rolled back already
                run(connection, "ROLLBACK")
            raise

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            clear = self._sink_error(error)
            if clear is None:
                raise
            raise clear from error


def run(connection: Connection, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
    """Run it to its end: DuckDB refuses other work while a result is half read."""
    rows: list[tuple[Any, ...]] = connection.execute(statement, parameters).fetchall()
    return rows


def _cursor(session: OpenTable[C]) -> int | None:
    stored = f"SELECT max(commit_number) FROM hailstorm_cursors {_OURS}"
    ((commit,),) = run(session.connection, stored, session.delivery.topology, session.delivery.sink)
    return None if commit is None else int(commit)


def _store_cursor(session: OpenTable[C], commit: int, is_new: bool) -> None:
    if is_new:
        store = "INSERT INTO hailstorm_cursors (commit_number, topology, sink) VALUES (?, ?, ?)"
    else:
        store = f"UPDATE hailstorm_cursors SET commit_number = ? {_OURS}"
    run(session.connection, store, commit, session.delivery.topology, session.delivery.sink)
