"""Snapshots: commits with a name, which are kept until they are released.

`snapshots/<name>.json` holds the commit, as a reader's pin does (ledger/pins.py), so retention, squashing and vacuum
leave it and its files alone. Nothing is copied: a snapshot costs what the state has changed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from hailstorm.errors import LedgerError
from hailstorm.faults import fault
from hailstorm.history.moments import When, kept_moment, no_snapshot
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.pins import SNAPSHOT_NAME, Snapshot, put_snapshot, read_snapshot, snapshot_file, snapshot_names


@dataclass(frozen=True)
class NamedCommit:
    """A snapshot as it is listed. `bytes` is all of its state; `alone` is what the newest commit does not share."""

    name: str
    commit: int
    at: str  # of the commit
    made: str
    clock: dict[str, dict[str, int]]
    bytes: int
    alone: int


def make_snapshot(ledger: Ledger, name: str, when: When = None) -> Snapshot:
    """Give a kept commit a name. Raises LedgerError when the name is taken or none, or the commit is not there."""
    check_name(name)
    live = kept_moment(ledger, when)
    if not live.commit:
        raise LedgerError(7, "there is no commit yet", hint="The first run makes one: hailstorm run APP")
    snapshot = Snapshot(live.commit, datetime.now(UTC).isoformat(timespec="seconds"))
    if not put_snapshot(ledger.store, name, snapshot):
        taken = read_snapshot(ledger.store, name)
        raise LedgerError(
            44,
            f"there is a snapshot '{name}' already" + (f", of commit {taken.commit}" if taken else ""),
            hint=f"Take another name, or release it first: hailstorm release TARGET {name}",
        )
    fault("after-snapshot")
    try:
        # Only now does it hold its commit: retention may have taken that before.
        ledger.at(live.commit)
    except LedgerError:
        ledger.store.delete(snapshot_file(name))
        raise
    return snapshot


def release_snapshot(ledger: Ledger, name: str) -> Snapshot:
    """Let it go: its commit is kept as long as any other of its age."""
    found = read_snapshot(ledger.store, name)
    if found is None:
        raise no_snapshot(ledger.store, name)
    ledger.store.delete(snapshot_file(name))
    return found


def list_snapshots(ledger: Ledger) -> Iterator[NamedCommit]:
    """All snapshots, oldest commit first."""
    found = [(name, read_snapshot(ledger.store, name)) for name in snapshot_names(ledger.store)]
    head = {run.id for runs in ledger.newest().runs.values() for run in runs}
    for name, snapshot in sorted(found, key=lambda one: (one[1].commit if one[1] else 0, one[0])):
        if snapshot is not None:
            live = ledger.at(snapshot.commit)
            sizes = dict(_sizes(live))
            alone = sum(size for run, size in sizes.items() if run not in head)
            yield NamedCommit(name, live.commit, live.at, snapshot.made, live.clock, sum(sizes.values()), alone)


def check_name(name: str) -> None:
    if not SNAPSHOT_NAME.fullmatch(name):
        raise LedgerError(
            45,
            f"'{name}' cannot be the name of a snapshot",
            hint="A name begins with a letter, has letters, digits and . _ - after that, at most 100 of them,\n"
            "and is not latest: so it is never taken for a commit, a time or a clock.",
        )


def _sizes(live: Live) -> Iterator[tuple[str, int]]:
    for runs in live.runs.values():
        yield from ((run.id, run.bytes) for run in runs)
