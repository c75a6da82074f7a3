"""The store: atomic creation under a race, whole files only, and nothing outside of the ledger.

What every store must do is asked of a folder and of an object store (obstore's in memory; tests/connectors has one that
is asked over the wire). The rest is about folders.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from hailstorm.errors import LedgerError
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.ledger.stores.objects import ObjectStore
from hailstorm.ledger.stores.store import Store, read_table


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.fixture(params=["folder", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "folder":
        return LocalStore(tmp_path)
    memory = pytest.importorskip("obstore.store").MemoryStore()
    return ObjectStore("s3://bucket/ledger", memory, memory)


def test_of_many_threads_exactly_one_creates_a_file(store: Store) -> None:
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
    assert len(list(store.files(""))) == 20, "a loser leaves no temporary file"


def test_a_loser_leaves_no_temporary_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    assert [store.put_if_absent("a.json", b"") for _ in range(3)] == [True, False, False]
    assert files_of(tmp_path) == ["a.json"]


def test_parts_of_a_file_are_read_without_the_rest(store: Store) -> None:
    data = bytes(range(256)) * 4096
    assert store.write("state/a.parquet", lambda sink: sink.write(data)) == len(data)
    assert store.size("state/a.parquet") == len(data)
    for whole in (False, True):
        with store.open("state/a.parquet", whole=whole) as source:
            assert source.size() == len(data)
            source.seek(len(data) - 300)
            assert source.read() == data[-300:]
            source.seek(1000)
            assert source.read(600_000) == data[1000:601_000]
            assert source.read(100) == data[601_000:601_100]
            assert source.read_at(5, 3) == data[3:8]
    with pytest.raises(FileNotFoundError):
        store.open("state/b.parquet")


def test_a_file_gets_a_second_name(store: Store) -> None:
    store.put("state/a.parquet", b"rows")
    store.link("state/a.parquet", "delta/a/b.parquet")
    store.link("state/a.parquet", "delta/a/b.parquet")
    store.delete("state/a.parquet")
    assert (store.get("delta/a/b.parquet"), store.list("delta")) == (b"rows", ["a"])


def test_a_folder_goes_with_all_that_is_in_it(store: Store) -> None:
    for name in ("delta/a/1", "delta/a/b/2", "delta/c", "state/a"):
        store.put(name, b"")
    store.delete_folder("delta")
    store.delete_folder("delta")
    assert [file.name for file in store.files("")] == ["state/a"]
    store.delete_folder("")
    assert store.list("") == []


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


def test_a_file_that_exists_is_left_as_it_is(store: Store) -> None:
    assert store.put_if_absent("a/b.json", b"first")
    assert not store.put_if_absent("a/b.json", b"second")
    assert store.get("a/b.json") == b"first"


def test_a_file_is_replaced_as_a_whole(store: Store) -> None:
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
def test_a_name_that_leaves_the_ledger_is_refused(store: Store, name: str) -> None:
    for attempt in (
        lambda: store.get(name),
        lambda: store.put(name, b""),
        lambda: store.put_if_absent(name, b""),
        lambda: store.delete(name),
        lambda: store.exists(name),
    ):
        with pytest.raises(LedgerError, match="outside"):
            attempt()
    assert list(store.files("")) == []


def test_a_link_out_of_the_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "link").symlink_to(tmp_path)
    with pytest.raises(LedgerError, match="outside"):
        LocalStore(tmp_path / "ledger").put("link/file", b"")


def test_a_writer_that_fails_leaves_nothing(store: Store, tmp_path: Path) -> None:
    def broken(sink: pa.NativeFile) -> None:
        sink.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        store.write("state/counts/a.parquet", broken)
    assert (list(store.files("")), files_of(tmp_path)) == ([], [])


def test_what_dead_writers_left_half_written_is_removed_once_it_is_old(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("state/counts/a.parquet", b"whole")
    old, new = (tmp_path / "state/counts" / f".b.parquet.{mark}" for mark in ("0a1b2c3d", "4e5f6a7b"))
    old.touch()
    new.touch()
    os.utime(old, (1_000, 1_000))
    assert store.discard_unfinished("state", 2_000.0) == 1
    assert (old.exists(), new.exists(), store.get("state/counts/a.parquet")) == (False, True, b"whole")


def test_all_files_of_a_folder_are_found_with_their_sizes(store: Store, tmp_path: Path) -> None:
    store.put("state/counts/a.parquet", b"abc")
    store.put("state/b.parquet", b"d")
    store.put("commits/1.json", b"")
    if isinstance(store, LocalStore):
        (tmp_path / "state" / ".c.parquet.0a1b2c3d").touch()
    found = {file.name: file.bytes for file in store.files("state")}
    assert found == {"state/counts/a.parquet": 3, "state/b.parquet": 1}
    assert list(store.files("nothing")) == []


@pytest.mark.parametrize("columns", [None, ["a"]])
def test_a_missing_file_that_a_commit_names_is_an_error(store: Store, columns: list[str] | None) -> None:
    with pytest.raises(LedgerError, match=r"a\.parquet is missing from the ledger"):
        read_table(store, "state/counts/a.parquet", columns)


def test_temporary_files_are_not_listed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("manifests/2.json", b"")
    store.put("manifests/1.json", b"")
    (tmp_path / "manifests" / ".3.json.abcd").touch()
    assert store.list("manifests") == ["1.json", "2.json"]
    assert store.list("nothing") == []


def test_what_is_not_there_reads_as_none(store: Store) -> None:
    assert store.get("commits/1.json") is None
    assert not store.exists("commits/1.json")
    store.delete("commits/1.json")


def test_a_commit_is_seen_only_when_all_that_it_names_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, done = LocalStore(tmp_path), list[str]()
    store.put("commits/0.json", b"")
    fsync, link = os.fsync, os.link

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        done.append(str(Path(os.readlink(f"/proc/self/fd/{descriptor}")).relative_to(tmp_path)))

    def noted_link(source: Path, target: Path) -> None:
        link(source, target)
        done.append(f"-> {target.relative_to(tmp_path)}")

    def fill(sink: pa.NativeFile) -> None:
        sink.write(b"rows")

    for name in ("state/counts/1.parquet", "state/counts/2.parquet", "outbox/board/1.parquet"):
        store.write(name, fill, synced=False)
    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "link", noted_link)
    names = ["state/counts/1.parquet", "state/counts/2.parquet", "outbox/board/1.parquet"]
    assert store.put_if_absent("commits/1.json", b"commit", names)
    linked = done.index("-> commits/1.json")
    assert {*names, "state/counts", "outbox/board"} <= set(done[:linked]), "their content and their names"
    assert any(name.startswith("commits/.1.json") for name in done[:linked])
    assert done[linked + 1 :] == ["commits"]


def test_what_was_to_be_synced_and_is_gone_makes_no_commit(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    with pytest.raises(FileNotFoundError):
        store.put_if_absent("commits/1.json", b"commit", ["state/counts/1.parquet"])
    assert files_of(tmp_path) == []
