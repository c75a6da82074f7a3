"""Pins: what holds a commit and its files although retention would let them go.

A reader pins the commit that it reads, for at most an hour; a snapshot (`snapshots/<name>.json`) holds its commit until
it is released. Whoever pins a commit looks whether it is there *after* that: thinning looks for pins again after it has
written what it keeps, so one of the two sees the other.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Iterator

import msgspec

from hailstorm.ledger.commit import encode, unsealed
from hailstorm.ledger.stores.store import Store

LIMIT_SECONDS = 3600.0
# Not a number, a time, a clock or `latest`: a name is known as one by its form.
SNAPSHOT_NAME = re.compile(r"(?!latest(-\d+)?$)[A-Za-z_][A-Za-z0-9_.-]{0,99}")
_PINS, SNAPSHOTS = "pins", "snapshots"


class Pin(msgspec.Struct, frozen=True):
    commit: int
    until: float  # seconds since 1970


class Snapshot(msgspec.Struct, frozen=True):
    commit: int
    made: str = ""  # when, ISO 8601


@contextlib.contextmanager
def pinned(store: Store, commit: int) -> Iterator[None]:
    """Hold a commit meanwhile. Who cannot write here reads without: young commits stay for a while in any case."""
    name = f"{_PINS}/{uuid.uuid4().hex}.json"
    try:
        pin = msgspec.json.encode(Pin(commit, time.time() + LIMIT_SECONDS))
        store.write(name, lambda sink: sink.write(pin), synced=False)  # a power cut takes the reader, too
    except OSError:
        yield
        return
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            store.delete(name)


def held_commits(store: Store) -> set[int]:
    """The commits that readers and snapshots hold now. Pins whose time is over are removed."""
    found = set()
    for name in store.list(_PINS):
        data = store.get(f"{_PINS}/{name}")
        pin = None if data is None else msgspec.json.decode(data, type=Pin)
        if pin is not None and pin.until >= time.time():
            found.add(pin.commit)
        elif pin is not None:
            store.delete(f"{_PINS}/{name}")
    for name in snapshot_names(store):
        snapshot = read_snapshot(store, name)
        if snapshot is not None:
            found.add(snapshot.commit)
    return found


def snapshot_names(store: Store) -> list[str]:
    """All snapshots, in order of their names."""
    return [name.removesuffix(".json") for name in store.list(SNAPSHOTS) if name.endswith(".json")]


def snapshot_file(name: str) -> str:
    return f"{SNAPSHOTS}/{name}.json"


def read_snapshot(store: Store, name: str) -> Snapshot | None:
    if not SNAPSHOT_NAME.fullmatch(name):
        return None
    data = store.get(snapshot_file(name))
    # Of a damaged one nobody may guess which commit it holds: until it is back, or deleted, nothing is thinned out.
    return None if data is None else unsealed(data, Snapshot, snapshot_file(name))


def put_snapshot(store: Store, name: str, snapshot: Snapshot) -> bool:
    """False when the name is taken."""
    return store.put_if_absent(snapshot_file(name), encode(snapshot))
