"""The store: the few file operations that a ledger needs, each durable when it returns.

A ledger asks for one special thing only, put-if-absent; the rest is reading, writing and listing whole files.
This is the local folder. Names are relative to the ledger and made by us; they are checked all the same.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path

from hailstorm.errors import LedgerError


class LocalStore:
    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, name: str) -> Path:
        path = (self.root / name).resolve()
        if not path.is_relative_to(self.root.resolve()):
            raise LedgerError(1, f"'{name}' is outside of the ledger")
        return path

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the file, or give False when it exists. Atomic: of two callers exactly one gets True."""
        target = self.path(name)
        temporary = _write_temporary(target, lambda path: path.write_bytes(data))
        try:
            os.link(temporary, target)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        _sync_folder(target.parent)
        return True

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the file; a reader sees the old or the new one, never a part."""
        self.write(name, lambda path: path.write_bytes(data))

    def write(self, name: str, writer: Callable[[Path], object]) -> int:
        """Let `writer` fill a temporary file and give it its name. The size in bytes."""
        target = self.path(name)
        temporary = _write_temporary(target, writer)
        size = temporary.stat().st_size
        temporary.rename(target)
        _sync_folder(target.parent)
        return size

    def link(self, name: str, other: str) -> None:
        """Give a file, which never changes, a second name. It may have that already."""
        target = self.path(other)
        target.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(self.path(name), target)

    def get(self, name: str) -> bytes | None:
        try:
            return self.path(name).read_bytes()
        except FileNotFoundError:
            return None

    def exists(self, name: str) -> bool:
        return self.path(name).exists()

    def list(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted; temporary ones left out."""
        try:
            with os.scandir(self.path(folder)) as entries:
                return sorted(entry.name for entry in entries if not entry.name.startswith("."))
        except FileNotFoundError:
            return []

    def delete(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)


def _write_temporary(target: Path, writer: Callable[[Path], object]) -> Path:
    temporary = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}"
    try:
        try:
            writer(temporary)
        except FileNotFoundError:
            _make_folder(target.parent)
            writer(temporary)
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _make_folder(folder: Path) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in missing:
        _sync_folder(one.parent)


def _sync_folder(folder: Path) -> None:
    # Without this the file's name may be lost in a power cut, although its content is on disk.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
