"""The lease: a friendly word before fencing has to be used.

A run writes who it is and beats every few seconds. A second run is told so and stops before it does any work. The
lease protects nothing: only the commit file does. So a lease that is stale, lost or deleted by hand is harmless.
"""

from __future__ import annotations

import contextlib
import os
import time
from datetime import UTC, datetime

import msgspec

from hailstorm.errors import LedgerInUseError
from hailstorm.ledger.store import LocalStore

NAME = "lease.json"
STALE_SECONDS = 30.0
BEAT_SECONDS = 5.0


class _Holder(msgspec.Struct):
    host: str
    pid: int
    born: int  # the process's start time: a pid may be another's by now
    since: str
    beat: float


class Lease:
    def __init__(self, store: LocalStore) -> None:
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
        self.beat(force=True)

    def beat(self, force: bool = False) -> None:
        now = time.time()
        if force or now - self._me.beat > BEAT_SECONDS:
            self._me.beat = now
            with contextlib.suppress(OSError):  # a full disk is for the commit to tell
                self._store.put(NAME, msgspec.json.encode(self._me))

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
