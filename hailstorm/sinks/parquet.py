"""A folder of Parquet files, one per commit: `<20 digits of the commit>.parquet`.

A file appears whole or not at all (temporary file, fsync, rename), and its name is the cursor: a commit whose file
is there has been delivered. So the newest file must stay in the folder; older ones may be moved away. What comes
from a table is a changelog, with `_kind` beside the columns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.errors import SinkError
from hailstorm.ledger import faults
from hailstorm.sinks.files import check_local, clear_file_errors, prepare_folder
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import KIND, Delivery
from hailstorm.sinks.tables import check_columns

_FILE_NAME = re.compile(r"(\d{20})\.parquet")
_OWNER = b"hailstorm.sink"  # in the file's metadata: two sinks in one folder would take each other's files for theirs


@dataclass(frozen=True)
class Parquet:
    """Files that any Parquet reader can read while the topology runs: `select * from 'path/*.parquet'`."""

    path: str | Path
    keeps_cursor: ClassVar[bool] = True
    _session: Session[Delivery] = field(default_factory=Session, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_local(self.path)

    def open(self, delivery: Delivery) -> None:
        folder = Path(self.path)
        prepare_folder(folder)
        with clear_file_errors(str(folder)):
            probe = folder / f".{delivery.sink}.tmp"
            probe.touch()
            probe.unlink()
        self._session.begin(delivery)
        newest = self.cursor()
        if newest is not None:
            self._check_owner(self._file(newest), check_schema=True)

    def cursor(self) -> int | None:
        with clear_file_errors(str(self.path)):
            names = [_FILE_NAME.fullmatch(name) for name in os.listdir(self.path)]
        return max((int(name[1]) for name in names if name), default=None)

    def deliver(self, commit: int, rows: pa.Table) -> None:
        delivery = self._session.get()
        file = self._file(commit)
        with clear_file_errors(str(file)):
            if file.exists():
                self._check_owner(file, check_schema=False)
                return
            columns = [*delivery.schema.names, *([KIND] if KIND in rows.column_names else [])]
            table = rows.select(columns).replace_schema_metadata({_OWNER: _owner(delivery)})
            # The same name at every attempt: what a killed process left is overwritten by the next one.
            temporary = file.with_name(f".{file.stem}.tmp")
            try:
                with open(temporary, "wb") as stream:
                    pq.write_table(table, stream)
                    stream.flush()
                    os.fsync(stream.fileno())
                faults.fault("during-delivery")
                os.rename(temporary, file)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            _sync_folder(file.parent)

    def close(self) -> None:
        self._session.end()

    def resolve(self, folder: Path) -> Parquet:
        return replace(self, path=folder / self.path)

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "parquet", "path": str(self.path)}

    def _file(self, commit: int) -> Path:
        return Path(self.path) / f"{commit:020d}.parquet"

    def _check_owner(self, file: Path, check_schema: bool) -> None:
        delivery = self._session.get()
        try:
            schema = pq.read_schema(file)
        except pa.ArrowInvalid as error:
            raise SinkError(1, f"{file} is not a Parquet file: {error}", hint="Move it out of the folder.") from error
        owner = (schema.metadata or {}).get(_OWNER, b"another program")
        if owner != _owner(delivery):
            raise SinkError(
                8,
                f"sink '{delivery.sink}' cannot write to {self.path}: it holds the files of {owner.decode()}",
                hint="Each sink needs a folder of its own.",
            )
        if check_schema:
            found = {column.name: str(column.type) for column in schema if column.name != KIND}
            needed = {column.name: str(column.type) for column in delivery.schema}
            check_columns(f"folder {self.path}", needed, found)


def _owner(delivery: Delivery) -> bytes:
    return f"{delivery.topology}/{delivery.sink}".encode()


def _sync_folder(folder: Path) -> None:
    """A rename is only safe from a power cut once the folder is on disk, too."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
