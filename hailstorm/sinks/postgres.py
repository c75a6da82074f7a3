"""Tables in PostgreSQL, written in one transaction with the cursor.

The cursor's row is locked for the length of the transaction, so of two drivers (one of them a zombie) one waits for the
other and then finds the commit delivered already. A row that the server does not take, because of a constraint, a
trigger or a value that no column can hold, becomes a dead letter; the others are written. Needs the extra `postgres`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.environment import revealed_all, secrets_in
from hailstorm.errors import Location, SinkError
from hailstorm.ledger import faults
from hailstorm.sinks.addresses import check_address, public_address, whole_address
from hailstorm.sinks.postgres_errors import UnknownTable, row_reason, sink_error
from hailstorm.sinks.postgres_table import PostgresTable
from hailstorm.sinks.rejecting import rejected_rows
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import KIND, Delivery
from hailstorm.sinks.tables import Mode, Target, check_mode, target

if TYPE_CHECKING:
    from psycopg import Connection

_CURSORS = """CREATE TABLE IF NOT EXISTS hailstorm_cursors
    (topology text NOT NULL, sink text NOT NULL, commit_number bigint NOT NULL, PRIMARY KEY (topology, sink))"""
_ROW = "WHERE topology = %s AND sink = %s"
# The row is there before the first delivery, because only a row that exists can be locked.
_FIRST_CURSOR = "INSERT INTO hailstorm_cursors VALUES (%s, %s, 0) ON CONFLICT DO NOTHING"
_STORE_CURSOR = """INSERT INTO hailstorm_cursors VALUES (%s, %s, %s)
    ON CONFLICT (topology, sink) DO UPDATE SET commit_number = EXCLUDED.commit_number"""
# One at a time: CREATE ... IF NOT EXISTS is not safe against another one at the same moment.
_CREATING = "SELECT pg_advisory_xact_lock(hashtext('hailstorm'))"
# A zombie that sleeps in the middle of a transaction must not hold its locks for ever, nor we wait for it for ever.
_SETTINGS = """SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s';
    SET client_min_messages = 'warning'; SET TimeZone = 'UTC'"""
_SCHEMES = ("postgresql", "postgres")
_OLDEST = 150000
_CONNECT = {"connect_timeout": "10", "tcp_user_timeout": "60000", "keepalives_idle": "30"}


@dataclass
class _Open:
    connection: Connection[Any]
    delivery: Delivery
    secrets: frozenset[str]
    tables: Tables = ()  # known at the latest when the first rows come


Tables = tuple[PostgresTable, ...]
Write = Callable[[_Open, Tables, int, pa.Table], None]


@dataclass(frozen=True)
class Postgres:
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended.

    Instead of `table` and `mode`, `tables` names several with their modes, all written in the same transaction: each
    gets every row, or, with `route`, the rows that have its name in that column.
    """

    url: str = field(repr=False)
    table: str | None = None
    mode: Mode | None = None
    tables: Mapping[str, Mode | None] | None = None
    route: str | None = None
    keeps_cursor: ClassVar[bool] = True
    _session: Session[_Open] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_address(self.url, *_SCHEMES)
        if (self.table is None) == (not self.tables) or (self.tables and self.mode):
            raise SinkError(
                4,
                "a Postgres sink needs either table= (and mode=) or tables=",
                at=Location.of_caller(),
                hint='hs.Postgres(url, table="now") or hs.Postgres(url, tables={"now": "upsert", "log": "append"})',
            )
        for mode in self._modes().values():
            check_mode(mode)

    def open(self, delivery: Delivery) -> None:
        with self._clear_errors(secrets_in(self.url)):
            connection, secrets = _connect(self.url, f"hailstorm {delivery.topology}/{delivery.sink}")
        with self._clear_errors(secrets):
            try:
                _check_version(connection.info.server_version)
                session = _Open(connection, delivery, secrets)
                connection.execute(_SETTINGS)
                with connection.transaction():
                    connection.execute(_CREATING)
                    if connection.execute("SELECT to_regclass('hailstorm_cursors')").fetchone() == (None,):
                        connection.execute(_CURSORS)
                    connection.execute(_FIRST_CURSOR, [delivery.topology, delivery.sink])
                    if delivery.key:
                        session.tables = self._prepare(session, changes=True)
            except BaseException:
                connection.close()
                raise
        self._session.begin(session)

    def cursor(self) -> int | None:
        session = self._session.get()
        with self._clear_errors(session.secrets):
            return _cursor(session) or None

    def deliver(self, commit: int, rows: pa.Table) -> None:
        session = self._session.get()
        with self._clear_errors(session.secrets):
            try:
                self._transact(session, commit, rows, self._write)
            except Exception as error:
                if row_reason(error) is None:
                    raise
                # Nothing of it is there. Now with a savepoint for each attempt, until the bad rows are alone.
                self._transact(session, commit, rows, self._write_acceptable)

    def close(self) -> None:
        session = self._session.end()
        if session is not None:
            session.connection.close()

    def resolve(self, folder: Path) -> Postgres:
        return self

    def describe(self) -> Mapping[str, Any]:
        address = public_address(self.url)
        return {"sink": "postgres", "url": address, "tables": dict(self._modes()), "route": self.route}

    def _modes(self) -> Mapping[str, Mode | None]:
        return self.tables or {self.table or "": self.mode}

    def _transact(self, session: _Open, commit: int, rows: pa.Table, write: Write) -> None:
        connection, delivery = session.connection, session.delivery
        with connection.transaction():
            if (_cursor(session, "FOR UPDATE") or 0) >= commit:
                return
            tables = session.tables or self._prepare(session, changes=KIND in rows.column_names)
            write(session, tables, commit, rows)
            connection.execute(_STORE_CURSOR, [delivery.topology, delivery.sink, commit])
            faults.fault("during-delivery")
        session.tables = tables  # not before: a rollback takes new tables away again

    def _prepare(self, session: _Open, changes: bool) -> Tables:
        delivery = session.delivery
        if self.route is not None:
            self._check_route(delivery, changes)
        targets = {name: target(delivery, mode, changes) for name, mode in self._modes().items()}
        return tuple(
            PostgresTable.prepare(session.connection, name, self._routed(wanted), number)
            for number, (name, wanted) in enumerate(targets.items())
        )

    def _write(self, session: _Open, tables: Tables, commit: int, rows: pa.Table) -> None:
        connection = session.connection
        if self.route is None:
            for table in tables:
                table.write(connection, rows)
            return
        routes = rows[self.route]
        known = pc.is_in(routes, pa.array([table.name for table in tables]))
        if not pc.all(known).as_py():
            stranger = routes.filter(pc.invert(known))[0].as_py()
            raise UnknownTable(f"column '{self.route}' is {stranger!r}, which is none of the sink's tables")
        for table in tables:
            table.write(connection, rows.filter(pc.equal(routes, table.name)))

    def _write_acceptable(self, session: _Open, tables: Tables, commit: int, rows: pa.Table) -> None:
        """Write the rows that the server takes, and make dead letters of the others before the transaction ends."""
        connection = session.connection
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # else some would speak up only at the end

        def attempt(start: int, stop: int) -> str | None:
            try:
                with connection.transaction():
                    self._write(session, tables, commit, rows.slice(start, stop - start))
                    for table in tables:
                        table.clear(connection)
            except Exception as error:
                reason = row_reason(error)
                if reason is None:
                    raise
                return reason
            return None

        delivery = session.delivery
        rejected = rejected_rows(rows.num_rows, attempt, delivery.most_rejected(commit, rows.num_rows))
        if rejected:
            delivery.reject(commit, rejected)

    def _check_route(self, delivery: Delivery, changes: bool) -> None:
        # The change of a row that moves to another table would leave the old one behind, and a delete has no values.
        usable = delivery.key if changes else delivery.schema.names
        if self.route not in usable or delivery.schema.field(self.route).type != pa.string():
            raise SinkError(
                4,
                f"sink '{delivery.sink}' has route='{self.route}', which is no STRING column of its "
                f"{'key' if changes else 'input'}",
                hint=f"It has: {', '.join(usable) or 'none'}.",
            )

    def _routed(self, wanted: Target) -> Target:
        """Without the column that names the table: it would say the same in every row."""
        if self.route is None:
            return wanted
        columns = pa.schema([column for column in wanted.columns if column.name != self.route])
        return Target(columns, wanted.upsert, tuple(name for name in wanted.key if name != self.route))

    @contextmanager
    def _clear_errors(self, secrets: frozenset[str]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # psycopg may not be installed, so its errors are known by their module.
            if not type(error).__module__.startswith("psycopg"):
                raise
            place = f"table '{', '.join(self._modes())}' in {public_address(self.url)}"
            raise sink_error(error, place, secrets) from error


def _connect(url: str, name: str) -> tuple[Connection[Any], frozenset[str]]:
    """A connection, and what no message of it may show."""
    try:
        import psycopg
        from psycopg.conninfo import conninfo_to_dict
    except ImportError as error:
        raise SinkError(
            2, "the Postgres sink needs a package that is missing", hint="pip install hailstorm[postgres]"
        ) from error
    # Taken apart first, revealed then: a password may hold letters that mean something in an address.
    options = {**_CONNECT, "application_name": name, **revealed_all(conninfo_to_dict(whole_address(url, *_SCHEMES)))}
    secrets = secrets_in(url) | {str(options.get("password") or "")}
    try:
        # Its keywords are typed one by one, and ours come out of an address.
        return psycopg.connect(**options, autocommit=True), secrets  # type: ignore[arg-type]
    except psycopg.Error as error:
        raise sink_error(error, public_address(url), secrets) from error


def _check_version(version: int) -> None:
    if version < _OLDEST:
        raise SinkError(
            21,
            f"this is PostgreSQL {version // 10000}, and the sink needs {_OLDEST // 10000} or newer",
            hint="Null keys cannot be unique before (NULLS NOT DISTINCT).",
        )


def _cursor(session: _Open, lock: str = "") -> int | None:
    delivery = session.delivery
    found = session.connection.execute(
        f"SELECT commit_number FROM hailstorm_cursors {_ROW} {lock}", [delivery.topology, delivery.sink]
    ).fetchone()
    return None if found is None else int(found[0])
