"""The lease: a friendly word before fencing has to be used.

A run writes who it is and beats every few seconds. A second run is told so and stops before it does any work. The
lease protects nothing: only the commit file does. So a lease that is stale, lost or deleted by hand is harmless.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

import msgspec

from hailstorm.errors import LedgerInUseError
from hailstorm.ledger.stores.store import Store

NAME = "lease.json"
TURN = "housekeeping.json"
STALE_SECONDS = 30.0
BEAT_SECONDS = 5.0


class _Holder(msgspec.Struct):
    host: str
    pid: int
    born: int  # the process's start time: a pid may be another's by now
    since: str
    beat: float


@contextlib.contextmanager
def beating(name: str, beat: Callable[[], None]) -> Iterator[None]:
    """Let a thread of this name call `beat`, which must not raise, every few seconds until this ends."""
    done = threading.Event()

    def beats() -> None:
        while not done.wait(BEAT_SECONDS):
            beat()

    thread = threading.Thread(target=beats, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Lease:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._me = _Holder(os.uname().nodename, os.getpid(), _born(os.getpid()), datetime.now(UTC).isoformat(), 0.0)

    def take(self) -> None:
        other = self._holder()
        if other is not None and not self._is_me(other) and _is_alive(other):
            raise LedgerInUseError(
                9,
                f"this ledger is running on {other.host}, process {other.pid}, since {other.since}",
                hint="Stop that run first (Ctrl-C or kill), or use another ledger: --ledger PATH",
            )
        self.beat()

    def beat(self) -> None:
        self._me.beat = time.time()
        with contextlib.suppress(OSError):  # a full disk is for the commit to tell
            self._store.put(NAME, msgspec.json.encode(self._me))

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Take it, beat from a thread however long a tick takes, and release it."""
        self.take()
        try:
            with beating("lease", self.beat):
                yield
        finally:
            self.release()

    def release(self) -> None:
        holder = self._holder()
        if holder is not None and self._is_me(holder):
            self._store.delete(NAME)

    def _holder(self) -> _Holder | None:
        data = self._store.get(NAME)
        try:
            return None if data is None else msgspec.json.decode(data, type=_Holder)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # protects nothing, so it may be damaged, too

    def _is_me(self, holder: _Holder) -> bool:
        return (holder.host, holder.pid) == (self._me.host, self._me.pid)


@contextlib.contextmanager
def turn(store: Store) -> Iterator[bool]:
    """Whether it is ours to keep house now: one process at a time does. False when another one is at it."""
    me = Lease(store)._me
    me.beat = time.time()
    data = store.get(TURN)
    if data is not None:
        try:
            other = msgspec.json.decode(data, type=_Holder)
        except (msgspec.DecodeError, UnicodeDecodeError):
            other = None
        if other is not None and _is_alive(other) and (other.host, other.pid) != (me.host, me.pid):
            yield False
            return
        store.delete(TURN)  # of a process that was killed
    if not store.put_if_absent(TURN, msgspec.json.encode(me)):
        yield False
        return
    try:
        yield True
    finally:
        store.delete(TURN)


def renew_turn(store: Store) -> None:
    """Say that we are still at it: a turn that another machine has not heard of for a while counts as given up."""
    me = Lease(store)._me
    me.beat = time.time()
    store.put(TURN, msgspec.json.encode(me))


def _is_alive(holder: _Holder) -> bool:
    if holder.host == os.uname().nodename and holder.born:
        return _born(holder.pid) == holder.born
    return time.time() - holder.beat < STALE_SECONDS


def _born(pid: int) -> int:
    """The start time of a process in clock ticks, 0 when there is none or no /proc. A zombie counts as none."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            after_name = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] in "ZX" else int(after_name[19])
