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

from hailstorm import faults
from hailstorm.errors import SinkError
from hailstorm.sinks.files import check_local, prepare_file
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, old_cursor
from hailstorm.sinks.tables import Mode, Target, check_mode, quoted, target

# `row_count` is at most the number of rows that the sink's table must have: see `_stored`.
_CURSORS = """CREATE TABLE IF NOT EXISTS hailstorm_cursors
    (topology TEXT NOT NULL, sink TEXT NOT NULL, ledger TEXT NOT NULL, commit_number BIGINT NOT NULL,
    row_count BIGINT NOT NULL)"""
_OURS = "WHERE topology = ? AND sink = ?"
_TABLES = "CREATE TABLE IF NOT EXISTS hailstorm_tables (name TEXT NOT NULL, owner TEXT NOT NULL)"


class Connection(Protocol):
    def execute(self, statement: str, parameters: Any, /) -> Any: ...
    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Undo(Exception):
    """Ends a transaction that was only a trial."""


@dataclass
class OpenTable(Generic[C]):
    connection: C
    delivery: Delivery
    target: Target


@dataclass(frozen=True)
class TableFile(ABC, Generic[C]):
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended."""

    path: str | Path
    table: str
    mode: Mode | None = None
    keeps_cursor: ClassVar[bool] = True
    forgets: ClassVar[bool] = False
    kind: ClassVar[str]
    begin: ClassVar[str]  # how a transaction begins
    _session: Session[OpenTable[C]] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_local(self.path)
        check_mode(self.mode)

    def open(self, delivery: Delivery) -> None:
        wanted = target(delivery, self.mode)
        prepare_file(Path(self.path))
        with self._clear_errors():
            session = OpenTable(self._connect(), delivery, wanted)
            try:
                with self._transaction(session.connection):
                    self._prepare(session)
            except BaseException:
                session.connection.close()
                raise
        self._session.begin(session)

    def cursor(self) -> Cursor | None:
        with self._clear_errors():
            cursor, _ = _stored(self._session.get())
            return cursor

    def deliver(self, parcel: Parcel) -> None:
        session = self._session.get()
        with self._clear_errors():
            try:
                self._transact(session, parcel, self._write)
            except Exception as error:
                if self._row_reason(error) is None:
                    raise
                # Nothing of it is there. Now without the rows that the table does not take.
                self._deliver_acceptable(session, parcel)

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
    def _exists(self, connection: C) -> bool: ...

    @abstractmethod
    def _create(self, connection: C, wanted: Target) -> None:
        """Create the table when it is missing; otherwise check that it fits."""

    @abstractmethod
    def _write(self, connection: C, wanted: Target, parcel: Parcel) -> int:
        """Write all pieces, into a table that is empty if the parcel is whole. How many rows the table has more, at
        least."""

    @abstractmethod
    def _deliver_acceptable(self, session: OpenTable[C], parcel: Parcel) -> None:
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

    def _prepare(self, session: OpenTable[C]) -> None:
        connection, delivery = session.connection, session.delivery
        run(connection, _CURSORS)
        run(connection, _TABLES)
        if "ledger" not in {row[1] for row in run(connection, "PRAGMA table_info('hailstorm_cursors')")}:
            raise old_cursor(str(self.path))
        self._refuse_other_owner(session)
        cursor, row_count = _stored(session)
        if session.target.upsert and cursor is not None and not delivery.takes_over:
            if not self._exists(connection):
                raise delivery.lost_rows(self._place, "is gone")
            if row_count > 0 and self._is_empty(connection):
                raise delivery.lost_rows(self._place, "is empty")
        self._create(connection, session.target)

    def _refuse_other_owner(self, session: OpenTable[C]) -> None:
        for (owner,) in run(session.connection, "SELECT owner FROM hailstorm_tables WHERE name = ?", self.table):
            session.delivery.refuse_other_owner(owner, self._place)

    def _is_empty(self, connection: C) -> bool:
        return not run(connection, f"SELECT 1 FROM {quoted(self.table)} LIMIT 1")

    def _transact(
        self, session: OpenTable[C], parcel: Parcel, write: Callable[[C, Target, Parcel], int], settle: bool = True
    ) -> None:
        """Rows and cursor in one transaction, which is undone when it was only a trial (`settle` is false)."""
        connection, delivery = session.connection, session.delivery
        with self._transaction(connection):
            cursor, row_count = _stored(session)
            if delivery.has_got(cursor, parcel):
                return
            self._refuse_other_owner(session)
            if parcel.whole and session.target.upsert:
                if cursor is None and not delivery.takes_over and not self._is_empty(connection):
                    raise delivery.foreign_rows(self._place)
                run(connection, f"DELETE FROM {quoted(self.table)}")
                row_count = 0
            row_count += write(connection, session.target, parcel)
            if not settle:
                raise Undo
            run(connection, "DELETE FROM hailstorm_tables WHERE name = ?", self.table)
            run(connection, "INSERT INTO hailstorm_tables VALUES (?, ?)", self.table, delivery.owner)
            _store(session, parcel.commit, row_count, is_new=cursor is None)
            faults.fault("during-delivery")

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


def _stored(session: OpenTable[C]) -> tuple[Cursor | None, int]:
    """The cursor, and how many rows the table must have at least.

    That number counts inserts and deletes. A row that was rejected and comes later as an update makes the table larger
    than it says, and nothing makes it smaller: so a table that is empty, and should not be, has lost its rows.
    """
    wanted = f"SELECT ledger, commit_number, row_count FROM hailstorm_cursors {_OURS}"
    for ledger, commit, row_count in run(
        session.connection, wanted, session.delivery.topology, session.delivery.known_as
    ):
        return Cursor(ledger, int(commit)), int(row_count)
    return None, 0


def _store(session: OpenTable[C], commit: int, row_count: int, is_new: bool) -> None:
    if is_new:
        store = """INSERT INTO hailstorm_cursors (ledger, commit_number, row_count, topology, sink)
            VALUES (?, ?, ?, ?, ?)"""
    else:
        store = f"UPDATE hailstorm_cursors SET ledger = ?, commit_number = ?, row_count = ? {_OURS}"
    delivery = session.delivery
    run(session.connection, store, delivery.ledger, commit, row_count, delivery.topology, delivery.known_as)
