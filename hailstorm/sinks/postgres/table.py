"""One table in PostgreSQL: made or checked once, then written to commit by commit inside the caller's transaction.

Upserts go through a temporary table (COPY, then INSERT ... ON CONFLICT and DELETE by key); what is only appended is
copied straight into the table. The Postgres sink is the only caller; it owns the transaction and the errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import GONE, KIND
from hailstorm.sinks.postgres.copy import copied_type, copy_data, sql_type
from hailstorm.sinks.tables import Target, check_columns, quoted

if TYPE_CHECKING:
    from psycopg import Connection

_COLUMNS = """SELECT attname, format_type(atttypid, atttypmod), atthasdef OR attidentity <> '' FROM pg_attribute
    WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum"""
# The columns of each unique index that ON CONFLICT may rely on, where nulls are equal or cannot be.
_UNIQUE = """SELECT array_agg(attname::text)
    FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY (indkey)
    WHERE indrelid = to_regclass(%s) AND indisunique AND indisvalid AND indimmediate
        AND indpred IS NULL AND indexprs IS NULL AND indnatts = indnkeyatts
    GROUP BY indexrelid, indnullsnotdistinct HAVING indnullsnotdistinct OR bool_and(attnotnull)"""


@dataclass(frozen=True)
class PostgresTable:
    """`staging` is the temporary table's name, or None when rows are copied straight into the table."""

    name: str
    wanted: Target
    staging: str | None

    @staticmethod
    def prepare(connection: Connection[Any], name: str, wanted: Target, number: int) -> PostgresTable:
        """Create the table when it is missing, otherwise check that it fits; make its temporary table."""
        needed = {column.name: sql_type(column.type) for column in wanted.columns}
        rows = connection.execute(_COLUMNS, [quoted(name)]).fetchall()
        if rows:
            # What fills itself (a serial number, a default) is the user's own and may stay.
            found = {
                column: _accepted(kind, needed.get(column)) for column, kind, own in rows if column in needed or not own
            }
            check_columns(f"table '{name}'", needed, found)
        else:
            connection.execute(f"CREATE TABLE {quoted(name)} ({_declared(needed)})")
        if wanted.upsert and wanted.key:
            _ensure_unique(connection, name, wanted.key)
        copied = {column.name: copied_type(column.type) for column in wanted.columns}
        if not wanted.upsert and copied == needed:
            return PostgresTable(name, wanted, None)
        staging = f"hailstorm_rows_{number}"
        declared = _declared(copied | {GONE: "boolean"})
        connection.execute(f"CREATE TEMPORARY TABLE {staging} ({declared}) ON COMMIT DELETE ROWS")
        return PostgresTable(name, wanted, staging)

    def write(self, connection: Connection[Any], rows: pa.Table) -> None:
        """Apply the rows, which have at most one change per key. The temporary table must be empty."""
        if not rows.num_rows:
            return
        if self.staging is None:
            _copy(connection, quoted(self.name), self.wanted.added(rows))
            return
        gone = pc.equal(rows[KIND], "delete") if self.wanted.upsert else pa.repeat(False, rows.num_rows)
        staged = rows.select(self.wanted.columns.names).append_column(GONE, gone)
        _copy(connection, self.staging, staged)
        if self.wanted.upsert:
            self._remove(connection, staged.filter(gone))
        connection.execute(self._insert(self.staging))

    def is_empty(self, connection: Connection[Any]) -> bool:
        return not self.wanted.upsert or is_empty(connection, self.name)

    def empty(self, connection: Connection[Any]) -> None:
        """Before the whole table comes. What is only appended to keeps what it has."""
        if self.wanted.upsert:
            connection.execute(f"DELETE FROM {quoted(self.name)}")

    def clear(self, connection: Connection[Any]) -> None:
        """Empty the temporary table, to write again in the same transaction. Its end does so by itself."""
        if self.staging is not None:
            connection.execute(f"TRUNCATE {self.staging}")

    def _insert(self, staging: str) -> str:
        columns = self.wanted.columns
        names = ", ".join(map(quoted, columns.names))
        values = ", ".join(f"{quoted(column.name)}::{sql_type(column.type)}" for column in columns)
        insert = f"INSERT INTO {quoted(self.name)} ({names}) SELECT {values} FROM {staging} WHERE NOT {GONE}"
        if not self.wanted.upsert or not self.wanted.key:
            return insert
        changed = [quoted(name) for name in columns.names if name not in self.wanted.key]
        update = ", ".join(f"{name} = EXCLUDED.{name}" for name in changed)
        conflict = f"ON CONFLICT ({', '.join(map(quoted, self.wanted.key))})"
        return f"{insert} {conflict} DO " + (f"UPDATE SET {update}" if changed else "NOTHING")

    def _remove(self, connection: Connection[Any], gone: pa.Table) -> None:
        if not self.wanted.key:
            connection.execute(f"DELETE FROM {quoted(self.name)}")  # a global fold: its only row is replaced
            return
        kinds = [sql_type(self.wanted.columns.field(name).type) for name in self.wanted.key]
        for nulls in _null_patterns(gone.select(self.wanted.key)):
            # IS NOT DISTINCT FROM would be shorter, but no index serves it.
            same = " AND ".join(
                f"old.{name} IS NULL AND new.{name} IS NULL" if is_null else f"old.{name} = new.{name}::{kind}"
                for name, kind, is_null in zip(map(quoted, self.wanted.key), kinds, nulls, strict=True)
            )
            connection.execute(
                f"DELETE FROM {quoted(self.name)} AS old USING {self.staging} AS new WHERE new.{GONE} AND {same}"
            )


def exists(connection: Connection[Any], name: str) -> bool:
    return connection.execute("SELECT to_regclass(%s)", [quoted(name)]).fetchone() != (None,)


def is_empty(connection: Connection[Any], name: str) -> bool:
    return connection.execute(f"SELECT 1 FROM {quoted(name)} LIMIT 1").fetchone() is None


def _copy(connection: Connection[Any], into: str, rows: pa.Table) -> None:
    names = ", ".join(map(quoted, rows.column_names))
    with connection.cursor() as cursor, cursor.copy(f"COPY {into} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
        for data in copy_data(rows):
            copy.write(data)


def _null_patterns(keys: pa.Table) -> list[list[bool]]:
    """Which combinations of key columns are null in the rows: usually one, that none is."""
    if not keys.num_rows:
        return []
    if not any(column.null_count for column in keys.columns):
        return [[False] * keys.num_columns]
    nulls = np.stack([column.is_null().to_numpy() for column in keys.columns], axis=1)
    patterns: list[list[bool]] = np.unique(nulls, axis=0).tolist()
    return patterns


def _ensure_unique(connection: Connection[Any], name: str, key: tuple[str, ...]) -> None:
    indexes = connection.execute(_UNIQUE, [quoted(name)]).fetchall()
    if any(set(columns) == set(key) for (columns,) in indexes):
        return
    connection.execute(f"CREATE UNIQUE INDEX ON {quoted(name)} ({', '.join(map(quoted, key))}) NULLS NOT DISTINCT")


def _declared(columns: dict[str, str]) -> str:
    return ", ".join(f"{quoted(name)} {kind}" for name, kind in columns.items())


def _accepted(found: str, needed: str | None) -> str:
    """A column that holds all that the needed type holds passes for it; what is too long is refused row by row."""
    if needed == "text" and found.startswith("character varying"):
        return needed
    if needed is not None and needed.startswith("numeric") and found == "numeric":
        return needed
    return found
