"""A table in a DuckDB file, written from Arrow in one transaction with the cursor.

DuckDB has all the types that rows can have; it maps them itself. One process at a time can write to a DuckDB file:
while another one has it open, delivery waits. Needs the extra `duckdb`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks.files import full_disk, wrong_place
from hailstorm.sinks.rejecting import rejected_rows
from hailstorm.sinks.sink import Parcel, Rejected
from hailstorm.sinks.table_file import OpenTable, TableFile, Undo, run
from hailstorm.sinks.tables import Target, check_columns, quoted

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_TRANSIENT = (
    "TransactionException",
    "ConnectionException",
    "InterruptException",
    "FatalException",
    "InternalException",
)
_OF_A_ROW = ("ConstraintException", "ConversionException", "OutOfRangeException")
_FULL = ("no space left", "file too large", "disk full", "quota")
_WRONG_PLACE = ("not a valid duckdb", "permission denied", "read-only", "is a directory", "not a directory")


@dataclass(frozen=True)
class DuckDB(TableFile["DuckDBPyConnection"]):
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended."""

    kind: ClassVar[str] = "duckdb"
    begin: ClassVar[str] = "BEGIN TRANSACTION"

    def _connect(self) -> DuckDBPyConnection:
        try:
            import duckdb
        except ImportError as error:
            raise SinkError(
                2, "the DuckDB sink needs a package that is missing", hint="pip install 'hailstorm[duckdb]'"
            ) from error
        connection = duckdb.connect(str(self.path))
        # Otherwise it draws a bar into our own output when a statement takes longer than two seconds.
        connection.execute("SET enable_progress_bar = false")
        return connection

    def _create(self, connection: DuckDBPyConnection, wanted: Target) -> None:
        with _registered(connection, wanted.columns.empty_table()):
            needed = {row[0]: row[1] for row in run(connection, "DESCRIBE hailstorm_rows")}
            found = self._columns(connection)
            if found:
                check_columns(self._place, needed, found)
            else:
                run(connection, f"CREATE TABLE {quoted(self.table)} AS SELECT * FROM hailstorm_rows")

    def _columns(self, connection: DuckDBPyConnection) -> dict[str, str]:
        found = run(
            connection,
            "SELECT column_name, data_type FROM duckdb_columns() "
            "WHERE table_name = ? AND schema_name = current_schema() AND database_name = current_database() "
            "ORDER BY column_index",
            self.table,
        )
        return {row[0]: row[1] for row in found}

    def _exists(self, connection: DuckDBPyConnection) -> bool:
        return bool(self._columns(connection))

    def _write(self, connection: DuckDBPyConnection, wanted: Target, parcel: Parcel) -> int:
        grown = 0
        for rows in parcel.pieces():
            self._write_piece(connection, wanted, rows, parcel.whole)
            grown += wanted.growth(rows)
        return grown

    def _write_piece(self, connection: DuckDBPyConnection, wanted: Target, rows: pa.Table, whole: bool) -> None:
        name = quoted(self.table)
        if wanted.upsert and rows.num_rows and not whole:
            # IS NOT DISTINCT FROM instead of =, because a key may be null. No key at all: the only row goes.
            same = [f"old.{quoted(column)} IS NOT DISTINCT FROM new.{quoted(column)}" for column in wanted.key]
            with _registered(connection, wanted.removed(rows) if same else rows):
                where = " AND ".join(same) or "true"
                run(connection, f"DELETE FROM {name} AS old USING hailstorm_rows AS new WHERE {where}")
        with _registered(connection, wanted.added(rows)):
            run(connection, f"INSERT INTO {name} BY NAME SELECT * FROM hailstorm_rows")

    def _deliver_acceptable(self, session: OpenTable[DuckDBPyConnection], parcel: Parcel) -> None:
        """DuckDB has no savepoints, so every attempt is a transaction of its own that is undone.

        The rows of the parcel are in memory for that: which of them go together is known only in the end.
        """
        rows = pa.concat_tables(parcel.pieces())
        most = session.delivery.most_rejected(parcel.commit, rows.num_rows)
        numbers = np.arange(rows.num_rows)  # of the rows that may be good
        refused: dict[int, str] = {}

        def leave_out(found: list[Rejected]) -> None:
            nonlocal numbers
            refused.update((int(numbers[one.row]), one.reason) for one in found)
            numbers = np.delete(numbers, [one.row for one in found])

        def tried(some: Any) -> str | None:
            return self._trial(session, Parcel.of(parcel.commit, rows.take(some), parcel.whole))

        leave_out(rejected_rows(rows.num_rows, lambda start, stop: tried(numbers[start:stop]), most))
        if len(refused) <= most and tried(numbers) is not None:
            taken: list[int] = []  # each would be taken alone, but not all of them together

            def after_others(start: int, stop: int) -> str | None:
                reason = tried([*taken, *numbers[start:stop]])
                if reason is None:
                    taken.extend(numbers[start:stop])
                return reason

            leave_out(rejected_rows(len(numbers), after_others, most - len(refused)))
        if refused:
            found = [Rejected(row, reason) for row, reason in sorted(refused.items())]
            session.delivery.reject(parcel.commit, found)
        self._transact(session, Parcel.of(parcel.commit, rows.take(numbers), parcel.whole), self._write)

    def _trial(self, session: OpenTable[DuckDBPyConnection], parcel: Parcel) -> str | None:
        """Why the table does not take these rows; None when it does."""
        try:
            self._transact(session, parcel, self._write, settle=False)
        except Undo:
            return None
        except Exception as error:
            reason = self._row_reason(error)
            if reason is None:
                raise
            return reason
        return None

    def _row_reason(self, error: Exception) -> str | None:
        return str(error) if type(error).__name__ in _OF_A_ROW else None

    def _sink_error(self, error: Exception) -> SinkError | None:
        # duckdb may not be installed, so its errors are known by their module and name.
        if not type(error).__module__.lstrip("_").startswith("duckdb"):
            return None
        text, name = str(error).lower(), type(error).__name__
        if any(word in text for word in _FULL):
            return full_disk(self._place, error)
        if "lock" in text and name == "IOException":
            return TransientSinkError(
                6, f"{self._place} is open in another program", hint=f"It is tried again. {error}"
            )
        if any(word in text for word in _WRONG_PLACE):
            return wrong_place(self._place, error)
        if name in ("IOException", *_TRANSIENT):
            return TransientSinkError(6, f"cannot write to {self._place} now: {error}")
        return SinkError(11, f"{self._place} does not take the rows: {error}")


@contextmanager
def _registered(connection: DuckDBPyConnection, rows: pa.Table) -> Iterator[None]:
    """The Arrow table under a name that SQL sees; nothing is copied."""
    connection.register("hailstorm_rows", rows)
    yield
    # Not after an error: in an aborted transaction this would fail, too, and hide the reason.
    connection.unregister("hailstorm_rows")
