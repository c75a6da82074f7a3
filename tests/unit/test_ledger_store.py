"""The store: atomic creation under a race, whole files only, and nothing outside of the ledger."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hailstorm.errors import LedgerError
from hailstorm.ledger.store import LocalStore


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def test_of_many_threads_exactly_one_creates_a_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    start = threading.Barrier(8)

    def put(number: int) -> list[bool]:
        start.wait()
        return [store.put_if_absent(f"commits/{i}.json", f"{number}".encode()) for i in range(20)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(put, range(8)))
    for i in range(20):
        winners = [number for number, won in enumerate(results) if won[i]]
        assert len(winners) == 1
        assert store.get(f"commits/{i}.json") == f"{winners[0]}".encode()
    assert len(files_of(tmp_path)) == 20, "a loser leaves no temporary file"


def test_of_two_processes_exactly_one_creates_a_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    start = tmp_path / "start"
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            while not start.exists():
                pass
            os._exit(sum(store.put_if_absent(f"commits/{i}.json", b"%d" % number) for i in range(10)))
        children.append(pid)
    start.touch()
    won = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert sum(won) == 10


def test_a_file_that_exists_is_left_as_it_is(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert store.put_if_absent("a/b.json", b"first")
    assert not store.put_if_absent("a/b.json", b"second")
    assert store.get("a/b.json") == b"first"


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("cursor.json", b"x" * 100_000)
    seen: set[int] = set()
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.add(len(store.get("cursor.json") or b""))

    reader = threading.Thread(target=read)
    reader.start()
    for size in (1, 100_000, 50_000) * 10:
        store.put("cursor.json", b"x" * size)
    stop.set()
    reader.join()
    assert seen <= {1, 50_000, 100_000}


@pytest.mark.parametrize("name", ["../outside", "state/../../outside", "/etc/passwd", "a/../../b"])
def test_a_name_that_leaves_the_ledger_is_refused(tmp_path: Path, name: str) -> None:
    store = LocalStore(tmp_path / "ledger")
    for attempt in (
        lambda: store.get(name),
        lambda: store.put(name, b""),
        lambda: store.put_if_absent(name, b""),
        lambda: store.delete(name),
        lambda: store.exists(name),
    ):
        with pytest.raises(LedgerError, match="outside"):
            attempt()
    assert files_of(tmp_path) == []


def test_a_link_out_of_the_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "link").symlink_to(tmp_path)
    with pytest.raises(LedgerError, match="outside"):
        LocalStore(tmp_path / "ledger").put("link/file", b"")


def test_a_writer_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    store = LocalStore(tmp_path)
    with pytest.raises(OSError, match="No space left"):
        store.write("state/counts/a.parquet", broken)
    assert files_of(tmp_path) == []


def test_temporary_files_are_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("manifests/2.json", b"")
    store.put("manifests/1.json", b"")
    (tmp_path / "manifests" / ".3.json.abcd").touch()
    assert store.list("manifests") == ["1.json", "2.json"]
    assert store.list("nothing") == []


def test_what_is_not_there_reads_as_none(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert store.get("commits/1.json") is None
    assert not store.exists("commits/1.json")
    store.delete("commits/1.json")
