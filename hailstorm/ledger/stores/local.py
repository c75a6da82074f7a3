"""The store in a local folder.

Every file is written under a temporary name that begins with a dot, synced, and then given its name: by a hard link
where it must not exist yet, else by renaming. Names are ours; that they stay in the folder is checked all the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from hailstorm.ledger.stores.store import StoredFile, outside

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor


class LocalStore:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._inside: set[str] = set()  # folders that were found to be in the ledger

    @cached_property
    def address(self) -> str:
        return str(self._root.resolve())

    def put_if_absent(self, name: str, data: bytes, unsynced: Sequence[str] = ()) -> bool:
        target = self._path(name)
        temporary = _write_temporary(target, lambda path: path.write_bytes(data), synced=not unsynced)
        try:
            if unsynced:
                files = [self._path(one) for one in unsynced]
                _sync_all([temporary, *files, *dict.fromkeys(file.parent for file in files)])
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        _sync(target.parent)
        return True

    def put(self, name: str, data: bytes) -> None:
        self._replace(name, lambda path: path.write_bytes(data))

    def write(self, name: str, fill: Callable[[pa.NativeFile], object], synced: bool = True) -> int:
        def filled(path: Path) -> None:
            with pa.OSFile(str(path), "wb") as sink:
                fill(sink)

        return self._replace(name, filled, synced)

    def get(self, name: str) -> bytes | None:
        try:
            return self._path(name).read_bytes()
        except FileNotFoundError:
            return None

    def open(self, name: str, whole: bool = False) -> pa.NativeFile:
        return pa.OSFile(str(self._path(name)), "rb")

    def exists(self, name: str) -> bool:
        return self._path(name).exists()

    def size(self, name: str) -> int | None:
        try:
            return self._path(name).stat().st_size
        except FileNotFoundError:
            return None

    def identity(self, name: str) -> object:
        try:
            found = os.stat(self._path(name))
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        return {name: self.size(name) for name in names}

    def list(self, folder: str) -> list[str]:
        try:
            with os.scandir(self._path(folder)) as entries:
                return sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except FileNotFoundError:
            return []

    def files(self, folder: str) -> Iterator[StoredFile]:
        try:
            with os.scandir(self._path(folder)) as entries:
                for entry in entries:
                    name = f"{folder}/{entry.name}" if folder else entry.name
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        yield from self.files(name)
                        continue
                    with contextlib.suppress(FileNotFoundError):
                        about = entry.stat()
                        yield StoredFile(name, about.st_size, about.st_mtime)
        except FileNotFoundError:
            return

    def delete(self, name: str) -> None:
        self._path(name).unlink(missing_ok=True)

    def discard_unfinished(self, folder: str, before: float) -> int:
        count = 0
        for path in self._path(folder).rglob(".*.????????"):
            with contextlib.suppress(FileNotFoundError):
                if path.is_file() and path.stat().st_mtime < before:
                    path.unlink()
                    count += 1
        return count

    def delete_folder(self, folder: str) -> None:
        shutil.rmtree(self._path(folder), ignore_errors=True)

    def link(self, name: str, other: str, durable: bool = False) -> None:
        target = self._path(other)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(self._path(name), target)
        if durable:
            _sync(target.parent)

    def _replace(self, name: str, writer: Callable[[Path], object], synced: bool = True) -> int:
        target = self._path(name)
        temporary = _write_temporary(target, writer, synced)
        size = temporary.stat().st_size
        temporary.rename(target)
        if synced:
            _sync(target.parent)
        return size

    def _path(self, name: str) -> Path:
        folder, _, last = name.rpartition("/")
        if folder not in self._inside or last == "..":
            if not (self._root / name).resolve().is_relative_to(self._root.resolve()):
                raise outside(name)
            self._inside.add(folder)
        return self._root / name


def _write_temporary(target: Path, writer: Callable[[Path], object], synced: bool = True) -> Path:
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}"
    try:
        try:
            writer(temporary)
        except FileNotFoundError:
            _make_folder(target.parent)
            writer(temporary)
        if synced:
            _sync(temporary)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _make_folder(folder: Path) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        _sync(one.parent)


def _sync(path: Path) -> None:
    """A file's content, or a folder's names: without the latter a power cut may take the name of a synced file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_all(paths: Sequence[Path]) -> None:
    """All at once: a journal that is written for one of them is written for the others, too."""
    first, *others = paths
    beside = [_syncing().submit(_sync, path) for path in others]
    try:
        _sync(first)
    finally:
        for future in beside:
            future.result()


@cache
def _syncing() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # readers need none

    return ThreadPoolExecutor(16, thread_name_prefix="sync")
