"""Imports: a ledger from an export (exporting.py), of a file or of a folder.

Everything is looked at before anything is written: names, sizes, SHA-256 of every file. The new ledger comes under
its name when it is whole, so a kill leaves a hidden folder beside it and no half ledger.
"""

from __future__ import annotations

import contextlib
import re
import tarfile
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Protocol

import msgspec

from hailstorm.errors import LedgerError
from hailstorm.faults import fault
from hailstorm.history.exporting import TABLE_OF_CONTENTS, Contents, Hashed, Progress, copied, on_this_machine
from hailstorm.ledger.commit import FORMAT, encode
from hailstorm.ledger.ledger import Ledger, Origin, new_description
from hailstorm.ledger.stores import open_store

# Where the files of an export may lie; no name has a part that begins with a dot.
_NAME = re.compile(r"(history\.json|(commits|state|outbox|errors|rejected|cursors|snapshots|erased)(/[^/.\0][^/\0]*)+)")
_CHUNK = 1 << 20


class Source(Protocol):
    def names(self) -> list[str]: ...

    def open(self, name: str) -> IO[bytes]: ...


class _Tar:
    def __init__(self, file: tarfile.TarFile) -> None:
        self._members = {member.name: member for member in file.getmembers() if member.isfile()}
        self._file = file

    def names(self) -> list[str]:
        return list(self._members)

    def open(self, name: str) -> IO[bytes]:
        found = self._file.extractfile(self._members[name])
        assert found is not None, name
        return found


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self) -> list[str]:
        return [str(path.relative_to(self._root)) for path in self._root.rglob("*") if path.is_file()]

    def open(self, name: str) -> IO[bytes]:
        return (self._root / name).open("rb")


def import_snapshot(source: str | Path, ledger: str | Path, progress: Progress = lambda done, of: None) -> Contents:
    """Make a new ledger of an export, as `hailstorm snapshot import` does. Gives what the export says of itself.

    Raises LedgerError, and leaves nothing, when it is damaged or none.
    """
    source, ledger = Path(source), on_this_machine(ledger)
    if ledger.exists() and (not ledger.is_dir() or any(ledger.iterdir())):
        raise LedgerError(
            48, f"'{ledger}' is there already", hint="Nothing was changed. Name a new or an empty folder."
        )
    with _opened(source) as found:
        contents = _contents(source, found)
        _check(source, found, contents)
        ledger.parent.mkdir(parents=True, exist_ok=True)
        hidden = ledger.parent / f".{ledger.name}.{uuid.uuid4().hex[:8]}"
        try:
            _write(source, found, contents, hidden, progress)
            Ledger(hidden).at(contents.commit)
            hidden.rename(ledger)
        except BaseException:
            open_store(hidden).delete_folder("")
            raise
    return contents


def _write(source: Path, found: Source, contents: Contents, hidden: Path, progress: Progress) -> None:
    store = open_store(hidden)
    total, done = sum(file.bytes for file in contents.files.values()), 0
    for name, wanted in contents.files.items():
        with found.open(name) as file:
            hashed = Hashed(file)
            store.write(name, partial(copied, hashed))
        if hashed.content != wanted:
            raise _damaged(source, f"{name} changed while it was read")
        done += wanted.bytes
        progress(done, total)
        fault("during-import")
    store.put("hailstorm.json", encode(new_description(Origin(contents.ledger, contents.commit, contents.snapshot))))


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[Source]:
    if source.is_dir():
        yield _Folder(source)
        return
    # What the system says of the new ledger, such as that its disk is full, says nothing of the export.
    with _open_tar(source) as tar:
        try:
            yield _Tar(tar)
        except (tarfile.TarError, EOFError) as error:
            raise _foreign(source, str(error)) from error


def _open_tar(source: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(source, "r:")
    except FileNotFoundError as error:
        raise LedgerError(46, f"there is no export '{source}'", hint="Make one: hailstorm snapshot export") from error
    except (tarfile.TarError, EOFError, OSError) as error:
        raise _foreign(source, str(error)) from error


def _contents(source: Path, found: Source) -> Contents:
    if TABLE_OF_CONTENTS not in found.names():
        raise _foreign(source, f"it has no {TABLE_OF_CONTENTS}, which is written last")
    with found.open(TABLE_OF_CONTENTS) as file:
        try:
            contents = msgspec.json.decode(file.read(), type=Contents)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _damaged(source, f"{TABLE_OF_CONTENTS}: {error}") from error
    if (contents.export, contents.format) != (1, FORMAT):
        raise LedgerError(
            2,
            f"'{source}' holds a ledger of format {contents.format}; this Hailstorm reads format {FORMAT}",
            hint="Nothing was changed. Import it with the version of Hailstorm that wrote it.",
        )
    return contents


def _check(source: Path, found: Source, contents: Contents) -> None:
    names = set(found.names())
    for name, wanted in contents.files.items():
        if not _NAME.fullmatch(name):
            raise _damaged(source, f"it names {name!r}, which is no file of a ledger")
        if name not in names:
            raise _damaged(source, f"{name} is missing")
        with found.open(name) as file:
            hashed = Hashed(file)
            while hashed.read(_CHUNK):
                pass
        if hashed.content != wanted:
            raise _damaged(source, f"{name} is not what was exported")


def _damaged(source: Path, what: str) -> LedgerError:
    return LedgerError(
        47, f"the export '{source}' is damaged: {what}", hint="Nothing was changed. Copy it again, or export it again."
    )


def _foreign(source: Path, what: str) -> LedgerError:
    return LedgerError(
        46,
        f"'{source}' is not an export of a snapshot: {what}",
        hint="Nothing was changed. An export is made by: hailstorm snapshot export TARGET NAME FILE.tar",
    )
