"""The files of an archive, in a folder or in an object store: which there are, and what is in them.

A file is its path, or its address (`s3://bucket/old/part-0.parquet`). `archive.py` and `history/archives.py` ask, on
the driver and in tasks. Nothing is written.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

import pyarrow as pa

from hailstorm.ledger.stores import is_folder, open_store
from hailstorm.ledger.stores.store import Store
from hailstorm.spouts.object_files import matches

_END = 4_096  # bytes
_WILD = re.compile(r"[*\[]")

Stamp = tuple[int, int]  # the size, and what tells a file from another of that size


def files_at(where: str) -> list[str]:
    """The file that is there, or the files of a folder and its folders, or those that a pattern names; in no order."""
    return _in_folder(Path(where).absolute()) if is_folder(where) else _in_store(where.rstrip("/"))


def stamp_of(file: str) -> Stamp:
    """Of a file here: when it was changed. A store says that of no single file: there it is a checksum of its end,
    where Parquet has its footer. Raises FileNotFoundError."""
    if is_folder(file):
        status = Path(file).stat()
        return status.st_size, status.st_mtime_ns
    with open_file(file) as source:
        size = source.size()
        source.seek(max(0, size - _END))
        return size, zlib.crc32(source.read())


def open_file(file: str) -> pa.NativeFile:
    """To read parts of."""
    if is_folder(file):
        return pa.OSFile(file, "rb")
    store, name = _place(file)
    return store.open(name)


@contextmanager
def lines_of(file: str) -> Iterator[BinaryIO]:
    """The lines of a file, plain or gz."""
    if is_folder(file):
        with gzip.open(file) if file.endswith(".gz") else Path(file).open("rb") as lines:
            yield cast(BinaryIO, lines)
        return
    store, name = _place(file)
    content = store.get(name)
    if content is None:
        raise FileNotFoundError(2, "No such file", file)
    yield io.BytesIO(gzip.decompress(content) if file.endswith(".gz") else content)


def _in_folder(path: Path) -> list[str]:
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        found = (one for one in path.rglob("*") if not _is_hidden(one.relative_to(path).parts))
    else:
        found = Path(path.anchor).glob(str(path.relative_to(path.anchor)))
    return [str(one) for one in found if one.is_file()]


def _in_store(where: str) -> list[str]:
    scheme, _, rest = where.partition("://")
    parts = rest.split("/")
    fixed = next((place for place, part in enumerate(parts) if _WILD.search(part)), len(parts))
    root, pattern = f"{scheme}://{'/'.join(parts[:fixed])}", parts[fixed:]
    names = [file.name for file in open_store(root).files("")]
    if pattern:
        return [f"{root}/{name}" for name in names if matches(name.split("/"), pattern)]
    if names or fixed == 1:
        return [f"{root}/{name}" for name in names if not _is_hidden(PurePosixPath(name).parts)]
    store, name = _place(root)
    return [root] if store.exists(name) else []


def _place(file: str) -> tuple[Store, str]:
    """The store of the folder that a file is in, and its name there."""
    folder, _, name = file.rpartition("/")
    return open_store(folder), name


def _is_hidden(parts: tuple[str, ...]) -> bool:
    return any(part.startswith((".", "_")) and "=" not in part for part in parts)
