"""A folder of Parquet files, one per commit: `<20 digits of the commit>.parquet`.

A file appears whole or not at all (temporary file, fsync, rename), and its name is the cursor: a commit whose file
is there has been delivered. So the newest file must stay in the folder; older ones may be moved away. What comes
from a table is a changelog, with `_kind` beside the columns. A whole table begins a new generation: its file is
`<20 digits>.whole.parquet`, and the files before it go to the folder `_before_<20 digits>`.
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

from hailstorm import faults
from hailstorm.columns import KIND
from hailstorm.errors import SinkError
from hailstorm.sinks.files import check_local, clear_file_errors, prepare_folder
from hailstorm.sinks.session import Session
from hailstorm.sinks.sink import Cursor, Delivery, Parcel
from hailstorm.sinks.tables import check_columns, type_name
from hailstorm.spouts.durable import sync

_FILE_NAME = re.compile(r"(\d{20})(\.whole)?\.parquet")
# In the file's metadata: two sinks in one folder would take each other's files for theirs, and so would two ledgers.
_OWNER, _LEDGER = b"hailstorm.sink", b"hailstorm.ledger"


@dataclass(frozen=True)
class Parquet:
    """Files that any Parquet reader can read while the topology runs: `select * from 'path/*.parquet'`."""

    path: str | Path
    keeps_cursor: ClassVar[bool] = True
    forgets: ClassVar[bool] = False
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
        if not delivery.takes_over:
            newest = self._newest()
            if newest is not None:
                self._check_owner(newest, check_schema=True)
        self._end_generation()

    def cursor(self) -> Cursor | None:
        newest = self._newest()
        return None if newest is None else Cursor(self._ledger_of(newest), _number(newest))

    def deliver(self, parcel: Parcel) -> None:
        delivery = self._session.get()
        file = Path(self.path) / f"{parcel.commit:020d}{'.whole' if parcel.whole else ''}.parquet"
        with clear_file_errors(str(file)):
            if file.exists() and delivery.has_got(Cursor(self._ledger_of(file), parcel.commit), parcel):
                self._check_owner(file, check_schema=False)
                return
            columns = [*delivery.schema, *([pa.field(KIND, pa.string())] if delivery.is_table else [])]
            schema = pa.schema(columns, metadata={_OWNER: delivery.owner.encode(), _LEDGER: delivery.ledger.encode()})
            # The same name at every attempt: what a killed process left is overwritten by the next one.
            temporary = file.with_name(f".{file.stem}.tmp")
            try:
                with open(temporary, "wb") as stream:
                    with pq.ParquetWriter(stream, schema) as writer:
                        for rows in parcel.pieces():
                            writer.write_table(rows.select(schema.names).cast(schema))
                    stream.flush()
                    os.fsync(stream.fileno())
                faults.fault("during-delivery")
                if parcel.whole and delivery.takes_over:
                    self._move_before(parcel.commit, of_others=True)
                os.rename(temporary, file)
            except BaseException:
                temporary.unlink(missing_ok=True)
                raise
            sync(file.parent)
        self._end_generation()

    def close(self) -> None:
        self._session.end()

    def resolve(self, folder: Path) -> Parquet:
        return replace(self, path=folder / self.path)

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "parquet", "path": str(self.path)}

    def _newest(self) -> Path | None:
        return max(self._files(), key=_number, default=None)

    def _files(self) -> list[Path]:
        with clear_file_errors(str(self.path)):
            return [Path(self.path) / name for name in os.listdir(self.path) if _FILE_NAME.fullmatch(name)]

    def _end_generation(self) -> None:
        """Move what is older than the newest whole table out of the way of readers. A crash may have come before."""
        begun = max((_number(file) for file in self._files() if ".whole" in file.suffixes), default=None)
        if begun is not None:
            self._move_before(begun)

    def _move_before(self, commit: int, of_others: bool = False) -> None:
        """Move the files of earlier commits to a folder of their own; of other ledgers and sinks, all files."""
        away = Path(self.path) / f"_before_{commit:020d}"
        for file in self._files():
            if _number(file) < commit or (of_others and self._ledger_of(file) != self._session.get().ledger):
                away.mkdir(exist_ok=True)
                os.rename(file, away / file.name)

    def _ledger_of(self, file: Path) -> str:
        metadata: dict[bytes, bytes] = _schema(file).metadata or {}
        return metadata.get(_LEDGER, b"").decode()

    def _check_owner(self, file: Path, check_schema: bool) -> None:
        delivery = self._session.get()
        schema = _schema(file)
        owner = (schema.metadata or {}).get(_OWNER, b"another program")
        delivery.refuse_other_owner(owner.decode(), f"the folder {self.path}")
        if check_schema:
            found = {column.name: type_name(column.type) for column in schema if column.name != KIND}
            needed = {column.name: type_name(column.type) for column in delivery.schema}
            check_columns(f"folder {self.path}", needed, found)


def _number(file: Path) -> int:
    return int(file.name[:20])


def _schema(file: Path) -> pa.Schema:
    try:
        return pq.read_schema(file)
    except pa.ArrowInvalid as error:
        raise SinkError(1, f"{file} is not a Parquet file: {error}", hint="Move it out of the folder.") from error
