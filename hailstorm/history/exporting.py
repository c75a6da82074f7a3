"""Exports: a snapshot as one file (tar), or as a folder, that opens elsewhere with state, clock and cursors.

An export is a small ledger: one pack with the snapshot's commit (and the commits before it that a sink still waits
for), the files that these name, the open dead letters, the cursors, and which keys were erased. `export.json`, written
last, names every file with its size and SHA-256: without it, or when one byte differs, the export is refused.

A folder is a ledger as it is. Whatever comes of an export is another ledger, with an id of its own, because the first
one goes on: a sink that has rows of the first one must refuse those of the second (design section 7, identity).
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import tarfile
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import msgspec
import pyarrow as pa

from hailstorm.errors import LedgerError, UsageError
from hailstorm.faults import fault
from hailstorm.history.moments import no_snapshot
from hailstorm.ledger.commit import FORMAT, Commit, encode
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.ledger import ERASED, Ledger, Origin, new_description
from hailstorm.ledger.letters import REJECTED
from hailstorm.ledger.packs import Pack, pack_bytes
from hailstorm.ledger.pins import Snapshot, read_snapshot, snapshot_file
from hailstorm.ledger.record import HISTORY, History
from hailstorm.ledger.squashing import is_waiting, thinned, without_delivered
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import missing_file
from hailstorm.ledger.sums import sums_of
from hailstorm.ledger.vacuum import files_of, outboxes_done_with, passed_by_sinks

TABLE_OF_CONTENTS = "export.json"
_CHUNK = 1 << 20

Progress = Callable[[int, int], None]  # bytes done, of how many


class Content(msgspec.Struct, frozen=True):
    bytes: int
    sha256: str


class Contents(msgspec.Struct, frozen=True, kw_only=True):
    """`export.json`."""

    export: int = 1  # the form of an export
    format: int = FORMAT  # of the ledger in it
    snapshot: str
    commit: int
    at: str
    ledger: str  # the id of the ledger that it comes from
    files: dict[str, Content] = {}


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Target(Protocol):
    """Where an export goes, file by file."""

    def add(self, name: str, size: int, source: Readable) -> None: ...


@dataclass
class Hashed:
    """A file that is read once, and what it was."""

    source: Readable | pa.NativeFile
    count: int = 0
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)

    def read(self, size: int = -1, /) -> bytes:
        data = bytes(self.source.read() if size < 0 else self.source.read(size))
        self.count += len(data)
        self.digest.update(data)
        return data

    @property
    def content(self) -> Content:
        return Content(self.count, self.digest.hexdigest())


def export_snapshot(ledger: Ledger, name: str, to: str | Path, progress: Progress = lambda done, of: None) -> Contents:
    """Write the snapshot to a file that ends in `.tar`, or else to a new folder. All or nothing."""
    to = on_this_machine(to)
    snapshot = read_snapshot(ledger.store, name)
    if snapshot is None:
        raise no_snapshot(ledger.store, name)
    _refuse_taken(to)
    with contextlib.ExitStack() as pins:
        commits = _commits(ledger, snapshot.commit)
        for commit in commits:
            pins.enter_context(ledger.pinned(commit.commit))
        base = ledger.before(commits[0])
        live = base
        files: dict[str, None] = {}
        for commit in commits:
            live = live.after(commit)
            files |= dict.fromkeys(files_of(live.runs, (letter.path for letter in live.dead_letters)))
            files |= dict.fromkeys(file.path for some in commit.outbox.values() for file in some)
        for sink, number in _rejected(ledger, live.retried, snapshot.commit):
            files[f"{REJECTED}/{sink}/{number:020d}.parquet"] = None
        packed, pack = Pack(1, snapshot.commit).name, pack_bytes(base, commits)
        small = {
            packed: pack,
            HISTORY: encode(History(packed=snapshot.commit, first=commits[0].commit, sums={packed: sums_of(pack)})),
            snapshot_file(name): encode(snapshot),
            **dict(_cursors(ledger, snapshot)),
            **dict(_erasures(ledger)),
        }
        contents = Contents(snapshot=name, commit=live.commit, at=live.at, ledger=ledger.id)
        with _target(to) as target:
            return _written(ledger, target, contents, list(files), small, progress)


def on_this_machine(place: str | Path) -> Path:
    """A path. Raises UsageError for the address of an object store: an export is a file or a folder here."""
    if "://" in str(place):
        raise UsageError(
            96, f"'{place}' is not on this machine", hint="Name a folder here, and bring it there with: hailstorm copy"
        )
    return Path(place)


def _written(
    ledger: Ledger, target: Target, contents: Contents, names: list[str], small: dict[str, bytes], progress: Progress
) -> Contents:
    sizes = {name: ledger.store.size(name) for name in names}
    total, done = sum(size or 0 for size in sizes.values()), 0
    found = {}
    for name, size in sizes.items():
        if size is None:
            raise missing_file(name)
        with ledger.store.open(name) as source:
            hashed = Hashed(source)
            target.add(name, size, hashed)
        found[name] = hashed.content
        done += size
        progress(done, total)
        fault("during-export")
    for name, data in small.items():
        hashed = Hashed(io.BytesIO(data))
        target.add(name, len(data), hashed)
        found[name] = hashed.content
    whole = msgspec.structs.replace(contents, files=found)
    data = msgspec.json.format(msgspec.json.encode(whole), indent=1)
    target.add(TABLE_OF_CONTENTS, len(data), io.BytesIO(data))
    return whole


def _commits(ledger: Ledger, number: int) -> list[Commit]:
    """The snapshot's commit, and those before it that a sink waits for; between them nothing is kept."""
    passed = outboxes_done_with(ledger, ledger.newest())
    lowest = min([number - 1, *passed.values()])
    commits = [without_delivered(one, passed) for one in ledger.commits(after=lowest) if one.commit <= number]
    waiting = {one.commit for one in commits if is_waiting(one, passed)}
    first = next(place for place, one in enumerate(commits) if one.commit in {*waiting, number})
    return thinned(commits[first:], waiting | {number})[0]


def _rejected(ledger: Ledger, retried: dict[str, int], until: int) -> Iterator[tuple[str, int]]:
    for sink in ledger.store.list(REJECTED):
        for name in ledger.store.list(f"{REJECTED}/{sink}"):
            if retried.get(sink, 0) < int(name[:20]) <= until:
                yield sink, int(name[:20])


def _cursors(ledger: Ledger, snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    """How far each sink was at the commit, at most: what came later is not in the export."""
    for sink, commit in passed_by_sinks(ledger).items():
        number = min(commit, snapshot.commit)
        yield f"cursors/{sink}/{number:020d}.json", encode(SinkRecord(commit=number))


def _erasures(ledger: Ledger) -> Iterator[tuple[str, bytes]]:
    """That keys were erased, also where that is not finished: an audit, and who finishes it, must know."""
    for name in (f"{ERASED}/{one}" for one in ledger.store.list(ERASED)):
        data = ledger.store.get(name)
        if data is not None:
            yield name, data


@dataclass(frozen=True)
class _Tar:
    file: tarfile.TarFile

    def add(self, name: str, size: int, source: Readable) -> None:
        about = tarfile.TarInfo(name)
        about.size, about.mode = size, 0o644
        self.file.addfile(about, source)


class _Folder:
    def __init__(self, root: Path) -> None:
        self._store = open_store(root)

    def add(self, name: str, size: int, source: Readable) -> None:
        self._store.write(name, lambda sink: copied(source, sink))


@contextlib.contextmanager
def _target(to: Path) -> Iterator[Target]:
    """Under a hidden name beside it; it gets its own when all is there."""
    to.parent.mkdir(parents=True, exist_ok=True)
    hidden = to.parent / f".{to.name}.{uuid.uuid4().hex[:8]}"
    try:
        if to.suffix == ".tar":
            with hidden.open("wb") as raw:
                with tarfile.open(fileobj=raw, mode="w", format=tarfile.GNU_FORMAT) as tar:
                    yield _Tar(tar)
                raw.flush()
                os.fsync(raw.fileno())
        else:
            yield _Folder(hidden)
            _describe(hidden)
        hidden.rename(to)
    except BaseException:
        open_store(hidden).delete_folder("") if hidden.is_dir() else hidden.unlink(missing_ok=True)
        raise


def _describe(folder: Path) -> None:
    store = open_store(folder)
    data = store.get(TABLE_OF_CONTENTS)
    assert data is not None
    contents = msgspec.json.decode(data, type=Contents)
    store.put("hailstorm.json", encode(new_description(Origin(contents.ledger, contents.commit, contents.snapshot))))


def _refuse_taken(to: Path) -> None:
    if to.exists():
        raise LedgerError(48, f"'{to}' is there already", hint="Nothing was changed. Name a new file or folder.")


def copied(source: Readable, sink: pa.NativeFile) -> None:
    while data := source.read(_CHUNK):
        sink.write(data)
