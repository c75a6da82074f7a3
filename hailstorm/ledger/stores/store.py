"""The store: the few operations on files that a ledger needs, by name. Nothing outside of this folder knows paths.

A name is relative to the ledger and made by us (`commits/00000000000000000042.json`). Files never change: they are
created, as a whole, and deleted; only cursors, the lease and the like are replaced, as a whole, too. All that is asked
of a store besides reading and writing is put-if-absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from hailstorm.errors import LedgerError
from hailstorm.ledger.sums import Reading, Sums, opened

if TYPE_CHECKING:
    import pyarrow.parquet as pq


@dataclass(frozen=True)
class StoredFile:
    """A file in a listing. `modified` is in seconds since 1970, by the store's clock."""

    name: str
    bytes: int
    modified: float


class Store(Protocol):
    """May be called from several threads, and from several processes and machines at once."""

    @property
    def address(self) -> str:
        """What `open_store` makes the same store of, on any machine that can reach it."""

    def put_if_absent(self, name: str, data: bytes, unsynced: Sequence[str] = ()) -> bool:
        """Create the file, or give False when it exists. Atomic: of two callers exactly one gets True. Durable, and so
        are by then the files that were written `unsynced`: nobody sees this file before they are."""

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the file, durably; a reader sees the old or the new one, never a part."""

    def write(self, name: str, fill: Callable[[pa.NativeFile], object], synced: bool = True) -> int:
        """Create a file from what `fill` writes, durably and as a whole. The size in bytes.

        Unless it is to be `synced`, a power cut may take it, or a part of it, back: until a `put_if_absent` on the
        same machine names it. A store may sync it all the same."""

    def get(self, name: str) -> bytes | None:
        """The whole file, or None when there is none."""

    def open(self, name: str, whole: bool = False) -> pa.NativeFile:
        """The file to read parts of; `whole` says that all of it will be read. Raises FileNotFoundError."""

    def exists(self, name: str) -> bool: ...

    def size(self, name: str) -> int | None:
        """Bytes of the file, or None when there is none."""

    def identity(self, name: str) -> object:
        """What tells the file from another that takes its place under its name; None when there is none. Where no file
        is ever replaced it may be the name, and nobody looks."""

    def sizes(self, names: Sequence[str]) -> dict[str, int | None]:
        """Bytes of many files, None where there is none. For files whose names are neighbours: in few requests."""

    def list(self, folder: str) -> list[str]:
        """The names of the files and folders in a folder, sorted; empty when there is no such folder."""

    def files(self, folder: str) -> Iterator[StoredFile]:
        """Every file in a folder and in the folders below it, by its name within the ledger, in no order. What comes
        or goes meanwhile may be among them or not."""

    def delete(self, name: str) -> None:
        """There may be none. A crash may bring it back: whoever deletes a file must be able to do so again."""

    def discard_unfinished(self, folder: str, before: float) -> int:
        """Remove what writers that died before this time left half written. How many files that were."""

    def delete_folder(self, folder: str) -> None:
        """All files in it. There may be none."""

    def link(self, name: str, other: str, durable: bool = False) -> None:
        """Give a file a second name. It may have that already. Raises FileNotFoundError when there is no such file.
        Where files have one name only, it is a copy."""


def read_table(store: Store, name: str, columns: Sequence[str] | None = None, sums: Sums | None = None) -> pa.Table:
    """The rows of a Parquet file that a commit names. A missing or damaged one is an error, and never "no rows"."""
    with open_parquet(store, name, sums, whole=columns is None) as file, Reading(name):
        return file.read(columns=None if columns is None else list(columns))


def open_parquet(
    store: Store, name: str, sums: Sums | None = None, known: pq.FileMetaData | None = None, *, whole: bool = False
) -> pq.ParquetFile:
    """A Parquet file that a commit names, to read parts of, within `Reading(name)`. `known` is its footer, if somebody
    has read and checked it before."""
    try:
        with Reading(name):
            return opened(store.open(name, whole=whole), name, sums, known)
    except FileNotFoundError as error:
        raise missing_file(name) from error


def outside(name: str) -> LedgerError:
    return LedgerError(1, f"'{name}' is outside of the ledger")


def missing_file(name: str) -> LedgerError:
    return LedgerError(
        31,
        f"{name} is missing from the ledger, although a commit names it",
        hint="Somebody has deleted it. Bring it back from a backup, or read another moment: hailstorm commits TARGET",
    )
