"""The lease: a friendly word before fencing has to be used.

A run writes who it is and beats every few seconds. A second run is told so and stops before it does any work, or it
stands by until the first one is gone. The lease protects nothing: only the commit file does. So a lease that is stale,
lost or deleted by hand is harmless.
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
SILENT_SECONDS = (
    12.0  # two beats that did not come, and some: one who looks all the time need not wait until it is stale
)


class Holder(msgspec.Struct):
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
        self._me = Holder(os.uname().nodename, os.getpid(), _born(os.getpid()), datetime.now(UTC).isoformat(), 0.0)

    def take(self) -> None:
        other = self._other()
        if other is None or not _is_alive(other):
            other = None if self._seize() else self._other()
        if other is not None:
            raise LedgerInUseError(
                9,
                f"this ledger is running on {other.host}, process {other.pid}, since {other.since}",
                hint="Stop that run first (Ctrl-C or kill), or use another ledger: --ledger PATH",
            )

    def take_when_free(self, waits: Callable[[Holder], None]) -> None:
        """Take it as soon as nobody has it. Meanwhile `waits` is called again and again with who does: it takes its
        time, and raises to give up."""
        watch, last = Watch(), None
        while True:
            try:
                other = last = self._other()
            except OSError:
                if last is None:
                    raise
                waits(last)  # the store is away, and for the holder, too
                continue
            if (other is None or watch.is_gone(other)) and self._seize():
                return
            if other is not None:
                waits(other)

    def beat(self) -> None:
        """Say that we are there, unless another one has taken over while we were silent: that one runs, and our next
        commit will be refused."""
        self._me.beat = time.time()
        with contextlib.suppress(OSError):  # a full disk is for the commit to tell
            if self._other() is None:
                self._store.put(NAME, msgspec.json.encode(self._me))

    @contextlib.contextmanager
    def held(self, waits: Callable[[Holder], None] | None = None) -> Iterator[None]:
        """Take it, beat from a thread however long a tick takes, and release it. With `waits`, when it is free."""
        if waits is None:
            self.take()
        else:
            self.take_when_free(waits)
        try:
            with beating("lease", self.beat):
                yield
        finally:
            self.release()

    def release(self) -> None:
        with contextlib.suppress(OSError):  # the store is away: then it becomes stale, which is harmless
            holder = self._holder()
            if holder is not None and self._is_me(holder):
                self._store.delete(NAME)

    def _seize(self) -> bool:
        """Write our name in place of one that does not count any more. False when another one was faster.

        Two may still do so in one moment; then both go on, until the first commit tells who it was.
        """
        self._me.beat = time.time()
        try:
            self._store.delete(NAME)
            return self._store.put_if_absent(NAME, msgspec.json.encode(self._me))
        except OSError:
            return True  # a full disk is for the commit to tell

    def _other(self) -> Holder | None:
        """Who has it, if that is not us."""
        holder = self._holder()
        return None if holder is None or self._is_me(holder) else holder

    def _holder(self) -> Holder | None:
        data = self._store.get(NAME)
        try:
            return None if data is None else msgspec.json.decode(data, type=Holder)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # protects nothing, so it may be damaged, too

    def _is_me(self, holder: Holder) -> bool:
        return (holder.host, holder.pid) == (self._me.host, self._me.pid)


class Watch:
    """Whether the holder of a lease is gone, as seen by one who looks every second or two.

    A process of this machine is there or not. One of another machine is gone when its beats do not change for a while:
    their time says little, because it is that of another clock. A look that comes late starts the count again: we were
    asleep, or the store was not to be reached, and then it was not to be reached for the holder either.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: Holder | None = None
        self._since = self._looked = 0.0

    def is_gone(self, holder: Holder) -> bool:
        if _is_here(holder):
            return not _is_alive(holder)
        now = self._clock()
        if holder != self._seen or now - self._looked > BEAT_SECONDS:
            self._seen, self._since = holder, now
        self._looked = now
        return now - self._since >= SILENT_SECONDS


def is_taken_over(store: Store) -> bool:
    """Whether another run has the lease now, and is there."""
    other = Lease(store)._other()
    return other is not None and _is_alive(other)


@contextlib.contextmanager
def turn(store: Store) -> Iterator[bool]:
    """Whether it is ours to keep house now: one at a time does. False when another is at it, in this process or not."""
    with _taking:
        ours = store.address not in _at_it
        _at_it.add(store.address)
    if not ours:
        yield False
        return
    try:
        with _turn_of_this_process(store) as ours:
            yield ours
    finally:
        _at_it.discard(store.address)


_taking, _at_it = threading.Lock(), set[str]()  # the file tells processes apart, and this the threads of one


@contextlib.contextmanager
def _turn_of_this_process(store: Store) -> Iterator[bool]:
    me = Lease(store)._me
    me.beat = time.time()
    data = store.get(TURN)
    if data is not None:
        try:
            other = msgspec.json.decode(data, type=Holder)
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


@contextlib.contextmanager
def cleaning_up_alone(store: Store) -> Iterator[None]:
    """Nobody deletes files meanwhile: cleaning up takes turns, and this is ours. Waits for who is at it."""

    def renew() -> None:
        # A turn that another machine has not heard of for a while counts as given up.
        with contextlib.suppress(OSError):
            me = Lease(store)._me
            me.beat = time.time()
            store.put(TURN, msgspec.json.encode(me))

    while True:
        with turn(store) as ours:
            if ours:
                with beating("turn", renew):
                    yield
                return
        time.sleep(0.1)


def _is_alive(holder: Holder) -> bool:
    if _is_here(holder):
        return _born(holder.pid) == holder.born
    return time.time() - holder.beat < STALE_SECONDS


def _is_here(holder: Holder) -> bool:
    """Whether its process can be looked at."""
    return holder.host == os.uname().nodename and holder.born != 0


def _born(pid: int) -> int:
    """The start time of a process in clock ticks, 0 when there is none or no /proc. A zombie counts as none."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            after_name = stat.read().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if after_name[0] in "ZX" else int(after_name[19])
