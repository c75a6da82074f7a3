"""A Delta table, local or in an object store, whose log holds the cursor as an application transaction.

A commit of ours is one version of the table: rows and cursor (`txn` with the sink's name and our commit's number)
appear together or not at all. Tables are merged by key, streams appended. Needs the extra `delta`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pyarrow as pa

from hailstorm.environment import concealed, revealed_all, secrets_in
from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.ledger import faults
from hailstorm.sinks.files import full_disk, prepare_folder, wrong_place
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import KIND, OLD, Delivery
from hailstorm.sinks.tables import Mode, Target, check_columns, check_mode, quoted, target

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_FULL = ("no space left", "file too large", "disk full", "quota")
_NO_RIGHT = ("permission denied", "access denied", "forbidden", "unauthorized", "credential")


@dataclass
class _Open:
    delivery: Delivery
    options: dict[str, str]
    secrets: frozenset[str]
    table: DeltaTable | None = None  # there at the latest when the first rows come
    target: Target | None = None

    @property
    def application(self) -> str:
        return f"hailstorm/{self.delivery.topology}/{self.delivery.sink}"


@dataclass(frozen=True)
class Delta:
    """`mode` is upsert (one row per key) or append; without it, tables are upserted and streams appended.

    `storage_options` are those of the object store; secrets stand in them as `${env:NAME}`.
    """

    path: str | Path
    mode: Mode | None = None
    storage_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    keeps_cursor: ClassVar[bool] = True
    _session: Session[_Open] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def open(self, delivery: Delivery) -> None:
        try:
            import deltalake
        except ImportError as error:
            raise SinkError(
                2, "the Delta sink needs a package that is missing", hint="pip install hailstorm[delta]"
            ) from error
        if "://" not in str(self.path):
            prepare_folder(Path(self.path))
        options = {name: str(value) for name, value in revealed_all(self.storage_options).items()}
        session = _Open(delivery, options, secrets_in(*self.storage_options.values()))
        with self._clear_errors(session.secrets):
            if deltalake.DeltaTable.is_deltatable(str(self.path), options):
                session.table = deltalake.DeltaTable(str(self.path), storage_options=options)
            if delivery.key:
                self._prepare(session, changes=True)
        self._session.begin(session)

    def cursor(self) -> int | None:
        session = self._session.get()
        if session.table is None:
            return None
        with self._clear_errors(session.secrets):
            return session.table.transaction_version(session.application)

    def deliver(self, commit: int, rows: pa.Table) -> None:
        from deltalake import CommitProperties, Transaction

        session = self._session.get()
        with self._clear_errors(session.secrets):
            table, wanted = self._prepare(session, changes=KIND in rows.column_names)
            table.update_incremental()  # another driver may have written
            if (table.transaction_version(session.application) or 0) >= commit:
                return
            properties = CommitProperties(
                app_transactions=[Transaction(session.application, commit)],
                max_commit_retries=0,  # a retry would not look at the cursor again; delivery does
            )
            faults.fault("during-delivery")
            _write(table, wanted, rows, properties)

    def close(self) -> None:
        self._session.end()

    def resolve(self, folder: Path) -> Delta:
        return self if "://" in str(self.path) else replace(self, path=folder / self.path)

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "delta", "path": str(self.path), "mode": self.mode}

    def _prepare(self, session: _Open, changes: bool) -> tuple[DeltaTable, Target]:
        """Create the table when it is missing; otherwise check, once, that it fits."""
        from deltalake import DeltaTable

        if session.table is not None and session.target is not None:
            return session.table, session.target
        wanted = target(session.delivery, self.mode, changes)
        if session.table is None:
            path, options = str(self.path), session.options
            session.table = DeltaTable.create(path, wanted.columns, mode="ignore", storage_options=options)
        check_columns(f"the Delta table {self.path}", _types(wanted.columns), _types(session.table.schema()))
        session.target = wanted
        return session.table, wanted

    @contextmanager
    def _clear_errors(self, secrets: frozenset[str]) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            # deltalake may not be installed, so its errors are known by their module, which has this name.
            if not isinstance(error, OSError) and type(error).__module__ != "_internal":
                raise
            raise _sink_error(error, f"the Delta table {self.path}", concealed(str(error), secrets)) from error


def _write(table: DeltaTable, wanted: Target, rows: pa.Table, properties: CommitProperties) -> None:
    from deltalake import write_deltalake

    if not wanted.upsert or not wanted.key or not rows.num_rows:
        # The table of a global fold has one row, which is replaced. A commit without rows moves the cursor.
        how: Literal["append", "overwrite"] = "overwrite" if wanted.upsert and rows.num_rows else "append"
        write_deltalake(table, wanted.added(rows), mode=how, commit_properties=properties)
        return
    columns = {quoted(name): f"new.{quoted(name)}" for name in wanted.columns.names}
    # IS NOT DISTINCT FROM instead of =, because a key may be null.
    same = " AND ".join(f"old.{name} IS NOT DISTINCT FROM new.{name}" for name in map(quoted, wanted.key))
    changes = rows.drop_columns([OLD]) if OLD in rows.column_names else rows
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
