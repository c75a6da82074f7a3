"""Where the files of an advance go: into the ledger that it starts from, into another one, or nowhere.

Nowhere is a folder that is deleted when the advance is done, because a later wave reads what an earlier one wrote.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.stores import below, is_folder, open_store

SCRATCH = "scratch"


@dataclass(frozen=True)
class Place:
    """A place laid out as a ledger, by its address, and this machine's folder for copies of its runs."""

    address: str
    cache: Path


@contextmanager
def nowhere(ledger: Ledger) -> Iterator[Place]:
    """A place whose files are gone afterwards. Beside the ledger's own scratch files, which are as short-lived."""
    name = f"{SCRATCH}/nowhere-{uuid.uuid4().hex}"
    folder = ledger.cache.folder / name
    # Tasks may be on other machines, where a ledger in a folder is a folder, too, and everything else is not.
    address = below(ledger.cache.folder if is_folder(ledger.address) else ledger.address, name)
    try:
        yield Place(address, folder / ".cache")
    finally:
        with suppress(OSError):
            open_store(address).delete_folder("")
        shutil.rmtree(folder, ignore_errors=True)
