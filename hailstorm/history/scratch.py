"""A ledger for a while: it begins where another one was at some commit, goes on from there, and is gone afterwards.

Files never change, so its first ones are links to those of the other ledger: nothing is copied, and once they are there
it does not matter what retention removes. It is a whole ledger: whatever reads one reads this one, too. Reruns commit
to it, so that the ledger that people trust is only read.
"""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hailstorm.engine.place import SCRATCH
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.renaming import Names, called_now, under_names_of_now
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores import below, is_folder
from hailstorm.ledger.stores.store import missing_file

SECOND_RUNS = "backfill"  # in a ledger: the inner ledgers of second runs (second_run.py)
_FOLDER = "history"  # in the cache
_ABANDONED_SECONDS = 24 * 3600.0


@contextlib.contextmanager
def scratch_ledger(ledger: Ledger, base: Live) -> Iterator[Ledger]:
    """A ledger whose head is `base`. It is meant for one process, and has none of the outboxes and dead letters.

    Steps have the names that they have in the ledger now, also where they had others then: that is what the code of now
    calls them.
    """
    names = ledger.newest().called_then(base.commit) if base.commit else {}
    name = f"{_FOLDER}/{uuid.uuid4().hex}" if is_folder(ledger.address) else f"{SCRATCH}/{uuid.uuid4().hex}"
    # In a folder it is in the cache, which is on the same disk. Tasks on other machines see the ledger's store only.
    within = f"{ledger.cache.folder.name}/{name}" if is_folder(ledger.address) else name
    address = below(ledger.address, within)
    _remove_abandoned(ledger.cache.folder / _FOLDER)
    try:
        scratch = Ledger(address, create=True)
        with ledger.pinned(base.commit):
            begin_as(ledger, scratch, within, msgspec.structs.replace(base, dead_letters=()), names)
        yield scratch
    finally:
        with contextlib.suppress(OSError):
            ledger.store.delete_folder(within)


def begin_as(ledger: Ledger, other: Ledger, within: str, base: Live, names: Names | None = None) -> None:
    """Let another ledger, which is `within` this one and has no commit, begin with what was live at a commit of this
    one. `names` are those of steps then that have others now."""
    names = names or {}
    files = {file.path: file.path for file in base.dead_letters}
    for table, runs in base.runs.items():
        files |= {run_name(table, run.id): run_name(called_now(table, names), run.id) for run in runs}
    for file, again in files.items():
        try:
            ledger.store.link(file, f"{within}/{again}")
        except FileNotFoundError as error:
            raise missing_file(file) from error
    other.write_manifest(under_names_of_now(base, names))
    other.head = other.newest()
    other.epoch = other.head.epoch + 1


def _remove_abandoned(place: Path) -> None:
    """What a process left that was killed."""
    for folder in place.glob("*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _ABANDONED_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
