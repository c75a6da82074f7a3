"""Where a ledger's files are: one small protocol (store.py), and what implements it.

An address is a folder, or `s3://bucket/path`, `gs://bucket/path`, `az://container/path`. Nobody else tells them apart.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from functools import lru_cache
from pathlib import Path

from hailstorm.ledger.stores.local import LocalStore
from hailstorm.ledger.stores.store import Store

_OBJECTS = re.compile(r"(s3|gs|az)://[^/?#@\s]+(/[^?#]*)?")


def is_folder(address: str | Path) -> bool:
    """Whether an address is a folder of this machine, or of whoever is asked."""
    return "://" not in str(address)


def is_in_objects(address: str | Path) -> bool:
    """Whether an address is one of an object store, without a name or a password in it."""
    return _OBJECTS.fullmatch(str(address)) is not None


def open_store(address: str | Path) -> Store:
    """The store behind an address. A folder need not exist yet."""
    return LocalStore(Path(address)) if is_folder(address) else _opened(str(address).rstrip("/"), os.getpid())


def cache_folder(address: str | Path, copies: str) -> Path:
    """Where this machine keeps its copies of what is in a ledger: beside it, or where the user keeps such things.

    Every machine has its own. Two ledgers never share one, also when one is a copy of the other. `copies` is the
    ledger's id, and after an erasure something more (`Ledger.copies`): no machine believes copies from before it.
    """
    if is_folder(address):
        return Path(address) / ".cache"
    named = os.environ.get("HAILSTORM_CACHE")
    place = Path(named) if named else _caches_of_user() / "hailstorm"
    return place / f"{copies}-{hashlib.sha256(str(address).encode()).hexdigest()[:8]}"


def remove_older_copies(address: str | Path, copies: str) -> None:
    """Delete what this machine has copied before the last erasure: it may hold what was erased. In a folder, who erases
    does so."""
    ledger_id, erased, _ = copies.partition(".")
    if erased and not is_folder(address):
        newest = cache_folder(address, copies)
        for folder in newest.parent.glob(f"{ledger_id}*-{newest.name.rpartition('-')[2]}"):
            if folder != newest:
                shutil.rmtree(folder, ignore_errors=True)


def below(address: str | Path, name: str) -> str:
    """The address of a place in a ledger."""
    return str(Path(address).resolve() / name) if is_folder(address) else f"{str(address).rstrip('/')}/{name}"


@lru_cache(64)  # each tick of a cluster has a place for its scratch files, which is not needed again
def _opened(address: str, process: int) -> Store:
    """One for each process, because it has connections: a fork must not use those of its parent."""
    from hailstorm.ledger.stores.objects import ObjectStore

    return ObjectStore.at(address)


def _caches_of_user() -> Path:
    named = os.environ.get("XDG_CACHE_HOME")
    if named and Path(named).is_absolute():
        return Path(named)
    try:
        place = Path.home() / ".cache"
        place.mkdir(parents=True, exist_ok=True)
        if os.access(place, os.W_OK):
            return place
    except (OSError, RuntimeError):  # a service without a home
        pass
    return Path(tempfile.gettempdir()) / f"cache-{os.getuid()}"
