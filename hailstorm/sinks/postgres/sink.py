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

from hailstorm import faults
from hailstorm.environment import revealed_all, secrets_in
from hailstorm.errors import Location, SinkError
from hailstorm.sinks.addresses import check_address, public_address, whole_address
from hailstorm.sinks.postgres.errors import UnknownTable, row_reason, sink_error
from hailstorm.sinks.postgres.names import check_length, check_table, use_schema
from hailstorm.sinks.postgres.table import PostgresTable, exists, is_empty
from hailstorm.sinks.rejecting import write_acceptable
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, old_cursor
from hailstorm.sinks.tables import Mode, Target, check_mode, target

if TYPE_CHECKING:
    from psycopg import Connection

# `row_count` is at most the number of rows that the sink's first upserted table must have (see table_file.py).
_CURSORS = """CREATE TABLE hailstorm_cursors
    (topology text NOT NULL, sink text NOT NULL, ledger text NOT NULL, commit_number bigint NOT NULL,
    row_count bigint NOT NULL, PRIMARY KEY (topology, sink))"""
_TABLES = "CREATE TABLE hailstorm_tables (name text PRIMARY KEY, owner text NOT NULL)"
_ROW = "WHERE topology = %s AND sink = %s"
# The row is there before the first delivery, because only a row that exists can be locked. It has commit 0.
_FIRST_CURSOR = "INSERT INTO hailstorm_cursors VALUES (%s, %s, %s, 0, 0) ON CONFLICT DO NOTHING"
_STORE_CURSOR = f"UPDATE hailstorm_cursors SET ledger = %s, commit_number = %s, row_count = %s {_ROW}"
_CLAIM = "INSERT INTO hailstorm_tables VALUES (%s, %s) ON CONFLICT (name) DO UPDATE SET owner = EXCLUDED.owner"
# One at a time: CREATE ... IF NOT EXISTS is not safe against another one at the same moment.
_CREATING = "SELECT pg_advisory_xact_lock(hashtext('hailstorm'))"
# A zombie that sleeps in the middle of a transaction must not hold its locks for ever, nor we wait for it for ever.
_SETTINGS = """SET lock_timeout = '10s'; SET idle_in_transaction_session_timeout = '60s';
    SET client_min_messages = 'warning'; SET TimeZone = 'UTC'"""
_HAS_LEDGER = """SELECT 1 FROM pg_attribute
    WHERE attrelid = to_regclass('hailstorm_cursors') AND attname = 'ledger' AND NOT attisdropped"""
_SCHEMES = ("postgresql", "postgres")
_OLDEST = 150000
_CONNECT = {"connect_timeout": "10", "tcp_user_timeout": "60000", "keepalives_idle": "30"}


@dataclass
class _Open:
    connection: Connection[Any]
    delivery: Delivery
    secrets: frozenset[str]
    tables: Tables = ()


Tables = tuple[PostgresTable, ...]
Write = Callable[[_Open, Parcel], int]  # how many rows the table has more, at least


@dataclass(frozen=True)
class Postgres:
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended.

    Instead of `table` and `mode`, `tables` names several with their modes, all written in the same transaction: each
    gets every row, or, with `route`, the rows that have its name in that column. `schema` is PostgreSQL's, in which the
    tables are, and those that Hailstorm keeps beside them; without it, the first one of the user's search path.
    """

    url: str = field(repr=False)
    table: str | None = None
    mode: Mode | None = None
    tables: Mapping[str, Mode | None] | None = None
    route: str | None = None
    schema: str | None = None
    keeps_cursor: ClassVar[bool] = True
    forgets: ClassVar[bool] = False
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
        for name, mode in self._modes().items():
            check_mode(mode)
            check_table(name)

    def open(self, delivery: Delivery) -> None:
        for column in delivery.schema.names:
            check_length("column", column)
        with self._clear_errors(secrets_in(self.url)):
            connection, secrets = _connect(self.url, f"hailstorm {delivery.topology}/{delivery.sink}")
        with self._clear_errors(secrets):
            try:
                _check_version(connection.info.server_version)
                session = _Open(connection, delivery, secrets)
                connection.execute(_SETTINGS)
                if self.schema is not None:
                    use_schema(connection, self.schema)
                with connection.transaction():
                    connection.execute(_CREATING)
                    self._prepare(session)
            except BaseException:
                connection.close()
                raise
        self._session.begin(session)

    def cursor(self) -> Cursor | None:
        session = self._session.get()
        with self._clear_errors(session.secrets):
            cursor, _ = _stored(session)
            return cursor

    def deliver(self, parcel: Parcel) -> None:
        session = self._session.get()
        with self._clear_errors(session.secrets):
            try:
                self._transact(session, parcel, self._write)
            except Exception as error:
                if row_reason(error) is None:
                    raise
                # Nothing of it is there. Now with a savepoint for each attempt, until the bad rows are alone.
                self._transact(session, parcel, self._write_acceptable)

    def close(self) -> None:
        session = self._session.end()
        if session is not None:
            session.connection.close()

    def resolve(self, folder: Path) -> Postgres:
        return self

    def describe(self) -> Mapping[str, Any]:
        address = public_address(self.url)
        schema = {} if self.schema is None else {"schema": self.schema}
        return {"sink": "postgres", "url": address, "tables": dict(self._modes()), "route": self.route, **schema}

    def _modes(self) -> Mapping[str, Mode | None]:
        return self.tables or {self.table or "": self.mode}

    def _transact(self, session: _Open, parcel: Parcel, write: Write) -> None:
        connection, delivery = session.connection, session.delivery
        with connection.transaction():
            cursor, row_count = _stored(session, "FOR UPDATE")
            if delivery.has_got(cursor, parcel):
                return
            self._refuse_other_owners(session)
            if parcel.whole:
                row_count = 0
                for table in session.tables:
                    if cursor is None and not delivery.takes_over and not table.is_empty(connection):
                        raise delivery.foreign_rows(f"table '{table.name}'")
                    table.empty(connection)
            row_count += write(session, parcel)
            for table in session.tables:
                connection.execute(_CLAIM, [table.name, delivery.owner])
            values = [delivery.ledger, parcel.commit, row_count, delivery.topology, delivery.known_as]
            connection.execute(_STORE_CURSOR, values)
            faults.fault("during-delivery")

    def _prepare(self, session: _Open) -> None:
        connection, delivery = session.connection, session.delivery
        for name, create in {"hailstorm_cursors": _CURSORS, "hailstorm_tables": _TABLES}.items():
            if not exists(connection, name):  # who has no right to create needs none where all is there
                connection.execute(create)
        if not connection.execute(_HAS_LEDGER).fetchall():
            raise old_cursor(public_address(self.url))
        connection.execute(_FIRST_CURSOR, [delivery.topology, delivery.known_as, delivery.ledger])
        self._refuse_other_owners(session)
        if self.route is not None:
            self._check_route(delivery)
        targets = {name: self._routed(target(delivery, mode)) for name, mode in self._modes().items()}
        cursor, row_count = _stored(session)
        if cursor is not None and not delivery.takes_over:
            upserted = [name for name, wanted in targets.items() if wanted.upsert]
            for name in upserted:
                if not exists(connection, name):
                    raise delivery.lost_rows(f"table '{name}'", "is gone")
            if row_count > 0 and upserted and all(is_empty(connection, name) for name in upserted):
                raise delivery.lost_rows(f"table '{', '.join(upserted)}'", "is empty")
        session.tables = tuple(
            PostgresTable.prepare(connection, name, wanted, number)
            for number, (name, wanted) in enumerate(targets.items())
        )

    def _refuse_other_owners(self, session: _Open) -> None:
        owners = "SELECT name, owner FROM hailstorm_tables WHERE name = ANY (%s)"
        for name, owner in session.connection.execute(owners, [list(self._modes())]).fetchall():
            session.delivery.refuse_other_owner(owner, f"table '{name}'")

    def _write(self, session: _Open, parcel: Parcel) -> int:
        grown = 0
        for number, rows in enumerate(parcel.pieces()):
            if number:
                self._clear(session)
            grown += self._write_rows(session, rows)
        return grown

    def _clear(self, session: _Open) -> None:
        for table in session.tables:
            table.clear(session.connection)

    def _write_rows(self, session: _Open, rows: pa.Table) -> int:
        connection, tables = session.connection, session.tables
        if self.route is None:
            for table in tables:
                table.write(connection, rows)
        else:
            routes = rows[self.route]
            known = pc.is_in(routes, pa.array([table.name for table in tables]))
            if not pc.all(known).as_py():
                stranger = routes.filter(pc.invert(known))[0].as_py()
                raise UnknownTable(f"column '{self.route}' is {stranger!r}, which is none of the sink's tables")
            for table in tables:
                table.write(connection, rows.filter(pc.equal(routes, table.name)))
        return max((table.wanted.growth(rows) for table in tables if table.wanted.upsert), default=0)

    def _write_acceptable(self, session: _Open, parcel: Parcel) -> int:
        """Write the rows that the server takes, and make dead letters of the others before the transaction ends."""
        connection, delivery = session.connection, session.delivery
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")  # else some would speak up only at the end
        grown = 0

        def attempt(rows: pa.Table) -> str | None:
            nonlocal grown
            try:
                with connection.transaction():
                    more = self._write_rows(session, rows)
                    self._clear(session)
            except Exception as error:
                reason = row_reason(error)
                if reason is None:
                    raise
                return reason
            grown += more
            return None

        write_acceptable(parcel, delivery, attempt)
        return grown

    def _check_route(self, delivery: Delivery) -> None:
        # The change of a row that moves to another table would leave the old one behind, and a delete has no values.
        usable = delivery.key if delivery.is_table else delivery.schema.names
        if self.route not in usable or delivery.schema.field(self.route).type != pa.string():
            raise SinkError(
                4,
                f"sink '{delivery.sink}' has route='{self.route}', which is no STRING column of its "
                f"{'key' if delivery.is_table else 'input'}",
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
            2, "the Postgres sink needs a package that is missing", hint="pip install 'hailstorm[postgres]'"
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


def _stored(session: _Open, lock: str = "") -> tuple[Cursor | None, int]:
    """The cursor, and how many rows the table must have at least."""
    delivery = session.delivery
    found = session.connection.execute(
        f"SELECT ledger, commit_number, row_count FROM hailstorm_cursors {_ROW} {lock}",
        [delivery.topology, delivery.known_as],
    ).fetchone()
    if found is None or found[1] == 0:
        return None, 0
    return Cursor(found[0], int(found[1])), int(found[2])
