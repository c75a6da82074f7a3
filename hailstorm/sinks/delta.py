"""A Delta table, local or in an object store, whose log holds the cursor as an application transaction.

A commit of ours is one version of the table: rows and cursor (`txn` with the names of sink and ledger, and our commit's
number) appear together or not at all. Tables are merged by key, streams appended. How many rows a table must have is
another `txn`, because the log keeps those, and not what else a version says. Whose table it is, is one of its
properties. Needs the extra `delta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from hailstorm import faults
from hailstorm.columns import KIND
from hailstorm.environment import concealed, revealed_all, secrets_in
from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks.files import full_disk, prepare_folder, wrong_place
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, old_cursor
from hailstorm.sinks.tables import Mode, Target, check_columns, check_mode, quoted, target

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_OWNER = "hailstorm.owner"
_FULL = ("no space left", "file too large", "disk full", "quota")
_NO_RIGHT = ("permission denied", "access denied", "forbidden", "unauthorized", "credential")


@dataclass
class _Open:
    delivery: Delivery
    options: dict[str, str]
    secrets: frozenset[str]
    table: DeltaTable
    target: Target

    @property
    def owner(self) -> str:
        return f"{self.delivery.owner}/{self.delivery.ledger}"

    @property
    def application(self) -> str:
        return f"hailstorm/{self.owner}"

    @property
    def row_count(self) -> int | None:
        """How many rows the table must have, at least; None where no delivery has counted them yet."""
        return self.table.transaction_version(self.counting)

    @property
    def counting(self) -> str:
        return f"{self.application}/rows"


@dataclass(frozen=True)
class Delta:
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended.

    `storage_options` are those of the object store; secrets stand in them as `${env:NAME}`.
    """

    path: str | Path
    mode: Mode | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    keeps_cursor: ClassVar[bool] = True
    forgets: ClassVar[bool] = False
    _session: Session[_Open] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def open(self, delivery: Delivery) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise SinkError(
                2, "the Delta sink needs a package that is missing", hint="pip install 'hailstorm[delta]'"
            ) from error
        if "://" not in str(self.path):
            prepare_folder(Path(self.path))
        options = {name: str(value) for name, value in revealed_all(self.storage_options).items()}
        secrets = secrets_in(*self.storage_options.values())
        wanted = target(delivery, self.mode)
        self._refuse_types(wanted.columns)
        with self._clear_errors(secrets):
            place = str(self.path)
            if deltalake.DeltaTable.is_deltatable(place, options):
                table = deltalake.DeltaTable(place, storage_options=options)
            else:
                table = deltalake.DeltaTable.create(place, wanted.columns, mode="ignore", storage_options=options)
            check_columns(self._place, _types(wanted.columns), _types(table.schema()))
        session = _Open(delivery, options, secrets, table, wanted)
        with self._clear_errors(secrets):
            if table.transaction_version(f"hailstorm/{delivery.owner}") is not None:
                raise old_cursor(self._place)
            if not delivery.takes_over:
                self._refuse_others(session)
                if wanted.upsert and session.row_count and _is_empty(table):
                    raise delivery.lost_rows(self._place, "is empty")
        self._session.begin(session)

    def cursor(self) -> Cursor | None:
        session = self._session.get()
        with self._clear_errors(session.secrets):
            commit = session.table.transaction_version(session.application)
            return None if commit is None else Cursor(session.delivery.ledger, commit)

    def deliver(self, parcel: Parcel) -> None:
        from deltalake import CommitProperties, Transaction

        session = self._session.get()
        delivery, table, wanted = session.delivery, session.table, session.target
        with self._clear_errors(session.secrets):
            table.update_incremental()  # another driver may have written
            if delivery.has_got(self.cursor(), parcel):
                return
            if not (parcel.whole and delivery.takes_over):
                self._refuse_others(session)
                if parcel.whole and wanted.upsert and self.cursor() is None and table.count():
                    raise delivery.foreign_rows(self._place)
            if _owner(table) != session.owner:
                # Before the rows: a crash in between leaves a table that is ours and has no cursor yet.
                table.alter.set_table_properties({_OWNER: session.owner}, raise_if_not_exists=False)
            properties = CommitProperties(
                app_transactions=[
                    Transaction(session.application, parcel.commit),
                    *([Transaction(session.counting, _rows_after(session, parcel))] if wanted.upsert else []),
                ],
                max_commit_retries=0,  # a retry would not look at the cursor again; delivery does
            )
            faults.fault("during-delivery")
            _write(table, wanted, parcel, properties)

    def close(self) -> None:
        self._session.end()

    def resolve(self, folder: Path) -> Delta:
        return self if "://" in str(self.path) else replace(self, path=folder / self.path)

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "delta", "path": str(self.path), "mode": self.mode}

    @property
    def _place(self) -> str:
        return f"the Delta table {self.path}"

    def _refuse_types(self, columns: pa.Schema) -> None:
        """delta-rs would make a table that nobody can read, itself included."""
        for column in columns:
            if _has_local_times_in_a_map(column.type):
                raise SinkError(
                    24,
                    f"{self._place} cannot hold column '{column.name}': it has a MAP with TIMESTAMP_NTZ in it",
                    hint="Give the sink another type, with a select before it: a MAP with TIMESTAMP, or an ARRAY.",
                )

    def _refuse_others(self, session: _Open) -> None:
        """A table belongs to one sink and one ledger."""
        owner, _, ledger = _owner(session.table).rpartition("/")
        if owner:
            session.delivery.refuse_other_owner(owner, self._place)
            commit = session.table.transaction_version(f"hailstorm/{owner}/{ledger}") or 0
            session.delivery.refuse_other_ledger(Cursor(ledger, commit))

    @contextmanager
    def _clear_errors(self, secrets: frozenset[str]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # deltalake may not be installed, so its errors are known by their module, which has this name.
            if not isinstance(error, OSError) and type(error).__module__ != "_internal":
                raise
            raise _sink_error(error, self._place, concealed(str(error), secrets)) from error


def _has_local_times_in_a_map(kind: pa.DataType, in_map: bool = False) -> bool:
    in_map = in_map or pa.types.is_map(kind)
    if pa.types.is_nested(kind):
        return any(_has_local_times_in_a_map(kind.field(number).type, in_map) for number in range(kind.num_fields))
    return in_map and pa.types.is_timestamp(kind) and kind.tz is None


def _is_empty(table: DeltaTable) -> bool:
    """Whether it certainly has no rows: how many a file has need not be said."""
    counts = table.get_add_actions().column("num_records").to_pylist()
    return not any(count is None or count for count in counts)


def _rows_after(session: _Open, parcel: Parcel) -> int:
    if parcel.whole:
        return parcel.rows
    before = session.table.count() if session.row_count is None else session.row_count
    return max(0, before + sum(session.target.growth(rows) for rows in parcel.pieces()))


def _owner(table: DeltaTable) -> str:
    return table.metadata().configuration.get(_OWNER) or ""


def _write(table: DeltaTable, wanted: Target, parcel: Parcel, properties: CommitProperties) -> None:
    from deltalake import write_deltalake

    if parcel.whole or not wanted.upsert or not wanted.key or not parcel.rows:
        # The table of a global fold has one row, which is replaced. A commit without rows moves the cursor.
        replaces = wanted.upsert and (parcel.whole or parcel.rows)
        how: Literal["append", "overwrite"] = "overwrite" if replaces else "append"
        batches = (batch for rows in parcel.pieces() for batch in wanted.added(rows).to_batches())
        reader = pa.RecordBatchReader.from_batches(wanted.columns, batches)
        write_deltalake(table, reader, mode=how, commit_properties=properties)
        return
    columns = {quoted(name): f"new.{quoted(name)}" for name in wanted.columns.names}
    # IS NOT DISTINCT FROM instead of =, because a key may be null.
    # In parentheses, because DataFusion takes AND before it.
    same = " AND ".join(f"(old.{name} IS NOT DISTINCT FROM new.{name})" for name in map(quoted, wanted.key))
    changed = pa.schema([*wanted.columns, (KIND, pa.string())])
    batches = (batch for rows in parcel.pieces() for batch in rows.select(changed.names).cast(changed).to_batches())
    changes = pa.RecordBatchReader.from_batches(changed, batches)
    merge = table.merge(changes, same, source_alias="new", target_alias="old", commit_properties=properties)
    (
        merge.when_matched_delete(f"new.{KIND} = 'delete'")
        .when_matched_update(columns)
        .when_not_matched_insert(columns, f"new.{KIND} <> 'delete'")
        .execute()
    )


def _types(schema: Any) -> dict[str, str]:
    """The columns as Delta calls them; takes an Arrow schema or a Delta one."""
    from deltalake import Schema

    known = schema if isinstance(schema, Schema) else Schema.from_arrow(schema)
    return {column.name: column.type.to_json().strip('"') for column in known.fields}


def _sink_error(error: Exception, place: str, text: str) -> SinkError:
    words = text.lower()
    if any(word in words for word in _FULL):
        return full_disk(place, text)
    if any(word in words for word in _NO_RIGHT):
        return wrong_place(place, text, "Check the path, its rights and the storage options.")
    if isinstance(error, OSError) or type(error).__name__ == "CommitFailedError":
        return TransientSinkError(6, f"cannot write to {place} now: {text}", hint="It is tried again.")
    return SinkError(11, f"{place} does not take the rows: {text}")
