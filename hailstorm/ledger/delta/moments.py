"""Moments: the state of a step at any kept commit as a Delta table, `moments/<step>`, whose version 42 is commit 42.

`publishing.py` follows the newest commit. A version of an earlier one is made here when somebody asks for it, because
most are never asked for. It needs no other version (log.py), and shares its data files with those that have the same
runs. It stays while its commit is kept; then vacuum lets it go. All of it can be made from the ledger again.

Whoever makes a version has the turn to clean up meanwhile: so no run goes away, and no key is erased.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

import msgspec
import pyarrow as pa

from hailstorm.errors import LedgerError
from hailstorm.faults import fault
from hailstorm.ledger.delta.deletion_vectors import write_vectors
from hailstorm.ledger.delta.log import (
    LOG,
    Version,
    add_of,
    delete_alone,
    files_alone,
    metadata_of,
    numbers_alone,
    protocol_of,
    read_alone,
    write_alone,
)
from hailstorm.ledger.delta.runs_as_files import RunsAsFiles, overlap, run_of
from hailstorm.ledger.delta.types import delta_schema
from hailstorm.ledger.lease import cleaning_up_alone
from hailstorm.ledger.ledger import Ledger, cannot_write
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import state_of
from hailstorm.ledger.renaming import MOMENTS, called_at
from hailstorm.ledger.stores.store import Store


@dataclass(frozen=True)
class DeltaVersion:
    """Where a Delta reader finds a state: the address of a table, and the version, which is the commit's number."""

    address: str
    version: int


def delta_version(ledger: Ledger, step: str, live: Live) -> DeltaVersion:
    """The version of the moment, which is made unless it is there. Waits while somebody else cleans up.

    Raises LedgerError when the step has no state there, or one that Delta cannot hold, or the ledger cannot be written.
    """
    then = state_of(ledger, live, step).step
    folder, number = f"{MOMENTS}/{step}", live.commit
    if not _is_there(ledger.store, folder, live, then):
        try:
            with cleaning_up_alone(ledger.store):
                ledger.at(number)  # it may have been forgotten while we waited
                if not _is_there(ledger.store, folder, live, then):
                    delete_alone(ledger.store, folder, number)  # what is left of one
                    ledger.forget_copies()  # rows are counted in them, and somebody may have erased some since
                    _make(ledger, step, then, live)
        except OSError as error:
            raise cannot_write(error) from error
    return DeltaVersion(f"{ledger.address.rstrip('/')}/{folder}", number)


def _is_there(store: Store, folder: str, live: Live, then: str) -> bool:
    """Whether the version is there, with all its files, and of this commit: one that a backup has taken away may have
    had the same number."""
    version = _read(store, folder, live.commit)
    if version is None or not _is_of(version, live, then):
        return False
    sizes = store.sizes([f"{folder}/{name}" for name in sorted(version.needed)])
    return None not in sizes.values()


def _read(store: Store, folder: str, number: int) -> Version | None:
    """None also for one that is damaged."""
    try:
        return read_alone(store, folder, number)
    except (LedgerError, ValueError, msgspec.MsgspecError):
        return None


def _is_of(version: Version, live: Live, then: str) -> bool:
    """Names of runs are made by chance, and tell."""
    return {run_of(path) for path in version.files} == {run.id for run in live.runs.get(then, ())}


def _make(ledger: Ledger, step: str, then: str, live: Live) -> None:
    folder, now = f"{MOMENTS}/{step}", time.time_ns() // 1_000_000
    runs, shape = live.runs.get(then, ()), live.steps[then]
    placing = RunsAsFiles(ledger.cache, ledger.store, then, folder)
    columns = _columns(ledger, step, then, live)
    schema = delta_schema(columns)
    if schema is None:
        raise LedgerError(
            57,
            f"Delta cannot hold the columns of '{step}'",
            hint="A name with a space or a comma in it, two names that differ only in case, or such a type. Read the\n"
            f"ledger itself: hailstorm state TARGET {step} --at {live.commit}",
        )
    outdated = {
        run.id: placing.outdated_rows(run, shape, [one for one in runs if one.seq > run.seq and overlap(one, run)])
        for run in runs
    }
    vectors = write_vectors(ledger.store, folder, outdated)
    files, already = {}, set(ledger.store.list(folder))  # of other versions: in an object store a link is a copy
    for run in runs:
        path, size = placing.placed(run, columns, already)
        files[path] = add_of(path, size, placing.count(run), vectors.get(run.id), now)
    metadata = metadata_of(schema, None, now)
    # One table for all askers, whichever of them is the first.
    metadata = msgspec.structs.replace(metadata, id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{ledger.id}/{folder}")))
    fault("during-publishing")
    made = round(datetime.fromisoformat(live.at).timestamp() * 1000)  # history shows the time of the commit
    version = Version(live.commit, live.commit, protocol_of(columns), metadata, files)
    write_alone(ledger.store, folder, version, made)


def _columns(ledger: Ledger, step: str, then: str, live: Live) -> pa.Schema:
    """The columns with their types, which runs know: those of the moment, or those of now where these lack one."""
    newest, shape = ledger.newest(), live.steps[then]
    for name, runs in ((then, live.runs.get(then, ())), (step, newest.runs.get(step, ()))):
        if runs:
            found = RunsAsFiles(ledger.cache, ledger.store, name, "").columns(shape, runs[-1])
            if found is not None:
                return found
    raise LedgerError(
        56,
        f"'{step}' has no rows at commit {live.commit} that say of which types its columns are",
        hint="A Delta table must name them. Take a later commit: hailstorm commits TARGET",
    )


def files_of_forgotten(ledger: Ledger, known: set[tuple[str, int]]) -> Iterator[str]:
    """The files that nobody needs any more, in the order in which they must go: versions whose commits are not kept,
    and then what no other version is made of. Only for who has the turn to clean up.

    `known` are versions that were found to be of their commit. That is looked at once, and they are added."""
    store, newest = ledger.store, ledger.newest()
    for step in store.list(MOMENTS):
        folder, needed = f"{MOMENTS}/{step}", {LOG}
        for number in sorted(numbers_alone(store, folder)):
            version = _read(store, folder, number) if ledger.read_commit(number) is not None else None
            if version is not None and (step, number) not in known:
                live = ledger.at(number)
                version = version if _is_of(version, live, called_at(step, live, newest)) else None
            if version is None:
                known.discard((step, number))
                yield from files_alone(folder, number)
            else:
                known.add((step, number))
                needed |= version.needed
        yield from (f"{folder}/{name}" for name in store.list(folder) if name not in needed)
