"""The log of a Delta table: the actions that we write, the newest version, and checkpoints.

This is the part of the Delta protocol that a writer needs who never reads anybody else's table: files come and go
with their deletion vectors, and a transaction says which commit of the ledger a version is. Other writers are not
expected here; whoever finds the next version taken stops. `publishing.py` and `moments.py` are the callers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.ledger.delta.deletion_vectors import DeletionVector
from hailstorm.ledger.delta.types import delta_features
from hailstorm.ledger.stores.store import Store, read_table

LOG = "_delta_log"
_APPLICATION = "hailstorm"
_CHECKPOINT = ".checkpoint.parquet"


class _Struct(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    pass


class Protocol(_Struct, frozen=True):
    min_reader_version: int
    min_writer_version: int
    reader_features: tuple[str, ...]
    writer_features: tuple[str, ...]


class Format(_Struct, frozen=True):
    provider: str
    options: dict[str, str]


class Metadata(_Struct, frozen=True):
    id: str
    format: Format
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    created_time: int


class Add(_Struct, frozen=True):
    path: str
    partition_values: dict[str, str]
    size: int
    modification_time: int
    data_change: bool
    stats: str
    deletion_vector: DeletionVector | None = None


class Remove(_Struct, frozen=True):
    path: str
    deletion_timestamp: int
    data_change: bool
    extended_file_metadata: bool
    partition_values: dict[str, str]
    size: int
    deletion_vector: DeletionVector | None = None


class Transaction(_Struct, frozen=True):
    app_id: str
    version: int
    last_updated: int


class Action(_Struct, frozen=True):
    """One line of the log: exactly one of these."""

    protocol: Protocol | None = None
    metadata: Metadata | None = msgspec.field(name="metaData", default=None)
    add: Add | None = None
    remove: Remove | None = None
    transaction: Transaction | None = msgspec.field(name="txn", default=None)
    commit_info: dict[str, Any] | None = None


@dataclass(frozen=True)
class Version:
    """A table at one version of its log. `commit` is the ledger's commit that it shows; files are by path."""

    number: int
    commit: int
    protocol: Protocol
    metadata: Metadata
    files: Mapping[str, Add]

    @property
    def needed(self) -> set[str]:
        """The files beside the log that it is made of."""
        vectors = [add.deletion_vector.file for add in self.files.values() if add.deletion_vector is not None]
        return {*self.files, *vectors}


def metadata_of(schema: str, old: Metadata | None, now: int) -> Metadata:
    """The description of a table with this schema; the same table as before, if there was one."""
    return Metadata(
        id=str(uuid.uuid4()) if old is None else old.id,
        format=Format(provider="parquet", options={}),
        schema_string=schema,
        partition_columns=(),
        configuration={"delta.enableDeletionVectors": "true"},
        created_time=now if old is None else old.created_time,
    )


def protocol_of(columns: pa.Schema) -> Protocol:
    """What a reader of these columns must know."""
    features = ("deletionVectors", *delta_features(columns))
    return Protocol(
        min_reader_version=3,
        min_writer_version=7,
        reader_features=features,
        writer_features=features,
    )


def add_of(path: str, size: int, rows: int, vector: DeletionVector | None, now: int) -> Add:
    return Add(
        path=path,
        partition_values={},
        size=size,
        modification_time=now,
        data_change=True,
        stats=msgspec.json.encode({"numRecords": rows, "tightBounds": False}).decode(),
        deletion_vector=vector,
    )


def changes(old: Version | None, new: Version, now: int) -> list[Action]:
    """The actions that make the new version out of the old one."""
    known = {} if old is None else old.files
    info = {"timestamp": now, "operation": "WRITE", "engineInfo": _APPLICATION, "hailstormCommit": new.commit}
    actions = [Action(commit_info=info)]
    if old is None or old.protocol != new.protocol:
        actions.append(Action(protocol=new.protocol))
    if old is None or old.metadata != new.metadata:
        actions.append(Action(metadata=new.metadata))
    actions.append(_transaction(new, now))
    actions += [Action(remove=_remove_of(add, now)) for path, add in known.items() if new.files.get(path) != add]
    actions += [Action(add=add) for path, add in new.files.items() if known.get(path) != add]
    return actions


def _transaction(version: Version, now: int) -> Action:
    return Action(transaction=Transaction(app_id=_APPLICATION, version=version.commit, last_updated=now))


def _remove_of(add: Add, now: int) -> Remove:
    return Remove(
        path=add.path,
        deletion_timestamp=now,
        data_change=True,
        extended_file_metadata=True,
        partition_values={},
        size=add.size,
        deletion_vector=add.deletion_vector,
    )


def read_version(store: Store, folder: str) -> Version | None:
    """The newest version; None when there is no table. Raises ValueError for a log that we did not write."""
    names = store.list(f"{folder}/{LOG}")
    checkpoint = max((name for name in names if name.endswith(_CHECKPOINT)), default=None)
    after = -1 if checkpoint is None else int(checkpoint.removesuffix(_CHECKPOINT))
    actions = [] if checkpoint is None else _of_checkpoint(store, folder, after)
    while (data := store.get(f"{folder}/{_log_name(after + 1)}")) is not None:
        after += 1
        actions += [msgspec.json.decode(line, type=Action) for line in data.splitlines()]
    if not actions:
        return None
    return _replayed(after, actions)


def _of_checkpoint(store: Store, folder: str, number: int) -> list[Action]:
    rows = read_table(store, f"{folder}/{LOG}/{number:020d}{_CHECKPOINT}").to_pylist(maps_as_pydicts="strict")
    return [msgspec.convert(_without_nulls(row), Action) for row in rows]


def _replayed(number: int, actions: Iterable[Action]) -> Version:
    files: dict[str, Add] = {}
    commit, protocol, metadata = None, None, None
    for action in actions:
        if action.remove is not None:
            del files[action.remove.path]
        if action.add is not None:
            files[action.add.path] = action.add
        if action.transaction is not None and action.transaction.app_id == _APPLICATION:
            commit = action.transaction.version
        protocol, metadata = action.protocol or protocol, action.metadata or metadata
    if commit is None or protocol is None or metadata is None:
        raise ValueError("this log has no beginning, or is not ours")
    return Version(number, commit, protocol, metadata, files)


def is_there(store: Store, folder: str, number: int) -> bool:
    return store.exists(f"{folder}/{_log_name(number)}")


def write_version(store: Store, folder: str, number: int, actions: Iterable[Action]) -> bool:
    """Make it so, atomically. False when somebody else has made a version of that number."""
    return store.put_if_absent(f"{folder}/{_log_name(number)}", _lines(actions))


def _lines(actions: Iterable[Action]) -> bytes:
    return b"".join(msgspec.json.encode(action) + b"\n" for action in actions)


def write_checkpoint(store: Store, folder: str, version: Version, now: int) -> int:
    """All of a version in one file, so that nobody needs the log before it. How many actions it has."""
    actions = [
        Action(protocol=version.protocol),
        Action(metadata=version.metadata),
        _transaction(version, now),
        *(Action(add=add) for add in version.files.values()),
    ]
    table = pa.Table.from_pylist([_for_arrow(msgspec.to_builtins(action)) for action in actions], _CHECKPOINT_SCHEMA)
    name = f"{version.number:020d}{_CHECKPOINT}"
    store.write(f"{folder}/{LOG}/{name}", lambda sink: pq.write_table(table, sink))
    return len(actions)


def write_last_checkpoint(store: Store, folder: str, number: int, size: int) -> None:
    """Tell readers where to begin, so that they need not list all of the log."""
    about = {"version": number, "size": size}
    store.put(f"{folder}/{LOG}/_last_checkpoint", msgspec.json.encode(about))


# Versions that stand alone: each is a checkpoint, and needs no other one. There may be gaps between their numbers, and
# a reader that asks for a number in a gap is told that there is none.


def write_alone(store: Store, folder: str, version: Version, now: int) -> None:
    """A version that needs no other. The checkpoint comes first: an entry of the log alone would be read on top of the
    version before it. The entry is for readers that show a table's history, or want one for every version."""
    write_checkpoint(store, folder, version, now)
    store.put(f"{folder}/{_log_name(version.number)}", _lines(changes(None, version, now)))


def read_alone(store: Store, folder: str, number: int) -> Version | None:
    """None when there is no such version. Raises ValueError for one that we did not write."""
    if not is_there(store, folder, number):
        return None
    return _replayed(number, _of_checkpoint(store, folder, number))


def files_alone(folder: str, number: int) -> tuple[str, str]:
    """The files of a version, in the order in which they must go: the other way round than they are written."""
    return f"{folder}/{_log_name(number)}", f"{folder}/{LOG}/{number:020d}{_CHECKPOINT}"


def delete_alone(store: Store, folder: str, number: int) -> None:
    for name in files_alone(folder, number):
        store.delete(name)


def numbers_alone(store: Store, folder: str) -> set[int]:
    """The versions of which there is anything."""
    return {int(name[:20]) for name in store.list(f"{folder}/{LOG}") if name[:20].isdigit()}


def before_checkpoint(store: Store, folder: str, checkpoint: int) -> list[str]:
    """The files of the log that a reader does not need who begins at this checkpoint."""
    names = [name for name in store.list(f"{folder}/{LOG}") if name[:20].isdigit()]
    return [
        f"{folder}/{LOG}/{name}"
        for name in names
        if int(name[:20]) < checkpoint or (int(name[:20]) == checkpoint and name.endswith(".json"))
    ]


def _log_name(number: int) -> str:
    return f"{LOG}/{number:020d}.json"


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value


def _for_arrow(value: Any) -> Any:
    """Maps as pairs, which is how Arrow takes them."""
    if not isinstance(value, dict):
        return value
    return {
        name: list(item.items()) if name in ("partitionValues", "configuration", "options") else _for_arrow(item)
        for name, item in value.items()
    }


_TEXTS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    {
        "storageType": pa.string(),
        "pathOrInlineDv": pa.string(),
        "offset": pa.int32(),
        "sizeInBytes": pa.int32(),
        "cardinality": pa.int64(),
    }
)
_FILE = {"path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64()}
_CHECKPOINT_SCHEMA = pa.schema(
    {
        "txn": pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()}),
        "add": pa.struct(
            {
                **_FILE,
                "modificationTime": pa.int64(),
                "dataChange": pa.bool_(),
                "stats": pa.string(),
                "deletionVector": _VECTOR,
            }
        ),
        "remove": pa.struct(
            {
                **_FILE,
                "deletionTimestamp": pa.int64(),
                "dataChange": pa.bool_(),
                "extendedFileMetadata": pa.bool_(),
                "deletionVector": _VECTOR,
            }
        ),
        "metaData": pa.struct(
            {
                "id": pa.string(),
                "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
                "schemaString": pa.string(),
                "partitionColumns": pa.list_(pa.string()),
                "configuration": _TEXTS,
                "createdTime": pa.int64(),
            }
        ),
        "protocol": pa.struct(
            {
                "minReaderVersion": pa.int32(),
                "minWriterVersion": pa.int32(),
                "readerFeatures": pa.list_(pa.string()),
                "writerFeatures": pa.list_(pa.string()),
            }
        ),
    }
)
