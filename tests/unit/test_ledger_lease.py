"""The lease: a second run is told who runs; a lease that nobody holds any more is in nobody's way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hailstorm.errors import LedgerInUseError
from hailstorm.ledger.lease import BEAT_SECONDS, NAME, SILENT_SECONDS, STALE_SECONDS, Holder, Lease, Watch
from hailstorm.ledger.stores.local import LocalStore

HERE = os.uname().nodename


def held_by(store: LocalStore, **changes: Any) -> None:
    """A lease as this process would write it, with some fields changed."""
    Lease(store).take()
    said = msgspec.json.decode(store.get(NAME) or b"")
    store.put(NAME, msgspec.json.encode({**said, **changes}))


def sleeping_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def born(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def test_a_lease_of_a_living_process_is_refused_with_its_name(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    other = sleeping_process()
    try:
        held_by(store, pid=other.pid, born=born(other.pid))
        with pytest.raises(LedgerInUseError, match=f"{HERE}, process {other.pid}, since"):
            Lease(store).take()
    finally:
        other.kill()
        other.wait()
    Lease(store).take()


def test_a_killed_process_that_nobody_has_waited_for_holds_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    other = sleeping_process()
    held_by(store, pid=other.pid, born=born(other.pid))
    other.kill()
    for _ in range(100):
        if Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.02)
    Lease(store).take()
    other.wait()


def test_a_process_id_that_is_used_again_holds_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    held_by(store, pid=os.getppid(), born=1)
    Lease(store).take()


@pytest.mark.parametrize(("age", "alive"), [(0.0, True), (STALE_SECONDS - 5, True), (STALE_SECONDS + 1, False)])
def test_a_lease_of_another_machine_counts_while_it_beats(tmp_path: Path, age: float, alive: bool) -> None:
    store = LocalStore(tmp_path)
    held_by(store, host="elsewhere", pid=1, beat=time.time() - age)
    if alive:
        with pytest.raises(LedgerInUseError, match="elsewhere"):
            Lease(store).take()
    else:
        Lease(store).take()


def test_without_proc_a_lease_counts_while_it_beats(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    held_by(store, pid=2**22 + 1, born=0, beat=time.time() - STALE_SECONDS - 1)
    Lease(store).take()
    held_by(store, pid=2**22 + 1, born=0, beat=time.time())
    with pytest.raises(LedgerInUseError):
        Lease(store).take()


@pytest.mark.parametrize("said", [b"", b"not json", b"{}"])
def test_a_damaged_lease_is_harmless(tmp_path: Path, said: bytes) -> None:
    store = LocalStore(tmp_path)
    store.put(NAME, said)
    lease = Lease(store)
    lease.take()
    lease.release()
    assert not store.exists(NAME)


def test_a_lease_is_released_by_its_holder_only(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    mine = Lease(store)
    mine.take()
    held_by(store, host="elsewhere", pid=1, beat=time.time())
    mine.release()
    assert store.exists(NAME)


def test_a_lease_that_was_deleted_by_hand_is_harmless(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    lease = Lease(store)
    lease.take()
    store.delete(NAME)
    lease.beat()
    store.delete(NAME)
    lease.release()


def test_a_lease_that_is_held_beats_by_itself_and_is_released_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hailstorm.ledger.lease.BEAT_SECONDS", 0.01)
    store = LocalStore(tmp_path)
    with Lease(store).held():
        before = store.get(NAME)
        deadline = time.monotonic() + 30
        while store.get(NAME) == before and time.monotonic() < deadline:
            time.sleep(0.01)  # a long tick, say: nobody beats but the thread
        assert store.get(NAME) not in (None, before)
    assert not store.exists(NAME)


def test_who_waits_takes_it_as_soon_as_it_is_free(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    other = sleeping_process()
    held_by(store, pid=other.pid, born=born(other.pid))
    waited: list[int] = []

    def waits(holder: Holder) -> None:
        waited.append(holder.pid)
        if len(waited) == 3:
            other.kill()
            other.wait()

    with Lease(store).held(waits):
        assert waited == [other.pid] * 3
        assert msgspec.json.decode(store.get(NAME) or b"")["pid"] == os.getpid()
    assert not store.exists(NAME)


def test_who_waits_may_give_up(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    held_by(store, host="elsewhere", beat=time.time())
    before = store.get(NAME)

    def waits(holder: Holder) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), Lease(store).held(waits):
        pass
    assert store.get(NAME) == before


def test_a_holder_elsewhere_is_gone_when_it_has_been_silent_under_our_eyes() -> None:
    now = 0.0
    watch = Watch(lambda: now)
    there = Holder(host="elsewhere", pid=7, born=1, since="", beat=1e12)  # whatever its clock says
    for _ in range(20):
        assert not watch.is_gone(there)
        now += BEAT_SECONDS / 2
        there.beat += 1
        there = Holder(there.host, there.pid, there.born, there.since, there.beat)
    assert not watch.is_gone(there)
    now += 3600  # we were asleep: that says nothing of it
    assert not watch.is_gone(there)
    since = now
    while not watch.is_gone(there):
        now += BEAT_SECONDS / 2
    assert now - since >= SILENT_SECONDS
