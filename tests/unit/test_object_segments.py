"""Partitions in a store: of several writers each gets its own offsets, and what is known of the newest listing is never
believed for longer than old listings stay. The store is a folder here: what counts is put-if-absent."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hailstorm.errors import LogError
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.spouts import object_segments
from hailstorm.spouts.object_segments import KEEP_SECONDS, ObjectPartition
from hailstorm.spouts.source import RECORD


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    object_segments._newest.clear()
    yield
    object_segments._newest.clear()


@pytest.fixture
def partition(tmp_path: Path) -> ObjectPartition:
    return ObjectPartition(LocalStore(tmp_path), "p0", "log")


def records(*values: str) -> pa.Table:
    rows = [{"time": None, "key": None, "value": value.encode()} for value in values]
    return pa.Table.from_pylist(rows, schema=pa.schema([RECORD.field(name) for name in RECORD.names[1:]]))


def values(partition: ObjectPartition) -> dict[int, str]:
    found: dict[int, str] = {}
    for segment in partition.segments():
        for table in partition.rows(segment, 0, segment.end):
            found |= dict(zip(table["offset"].to_pylist(), map(bytes.decode, table["value"].to_pylist()), strict=True))
    return found


def names(partition: ObjectPartition, folder: str) -> list[str]:
    return partition._store.list(f"p0/{folder}")


def test_appends_follow_each_other_and_small_segments_are_merged(partition: ObjectPartition) -> None:
    assert partition.segments()[-1].end == 0
    for number in range(300):
        assert partition.append(records(f"a{number}", f"b{number}")) == 2 * number
    assert list(values(partition)) == list(range(600))
    assert values(partition)[599] == "b299"
    assert len(partition.segments()) < 40
    assert len(names(partition, "data")) == len(partition.segments()), "what was merged away is gone"


def test_writers_in_a_race_get_offsets_of_their_own(tmp_path: Path) -> None:
    got: dict[int, str] = {}

    def write(name: str) -> None:
        own = ObjectPartition(LocalStore(tmp_path), "p0", "log")
        for number in range(25):
            got[own.append(records(f"{name}{number}"))] = f"{name}{number}"

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(100))
    assert values(ObjectPartition(LocalStore(tmp_path), "p0", "log")) == got


def test_a_process_that_knows_nothing_finds_the_end_with_few_requests(
    partition: ObjectPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(200):
        partition.append(records(f"{number}"))
    object_segments._newest.clear()
    asked: list[str] = []
    get = LocalStore.get

    def counted(store: LocalStore, name: str) -> bytes | None:
        asked.append(name)
        return get(store, name)

    def unlisted(*args: Any) -> list[str]:
        raise AssertionError("it must not list")

    monkeypatch.setattr(LocalStore, "get", counted)
    monkeypatch.setattr(LocalStore, "list", unlisted)
    assert partition.segments()[-1].end == 200
    assert len(asked) < 25
    asked.clear()
    partition.segments()
    assert len(asked) == 1


def test_retention_keeps_the_rest_and_the_end(partition: ObjectPartition) -> None:
    for number in range(10):
        partition.append(records(*(f"{number}.{place}" for place in range(10))))
    partition.keep_from(33)
    assert list(values(partition)) == list(range(33, 100))
    assert values(partition)[33] == "3.3"
    assert len(partition.times(partition.segments()[0])) == 7
    partition.keep_from(100)
    assert values(partition) == {} and names(partition, "data") == []
    assert partition.append(records("next")) == 100
    assert values(partition) == {100: "next"}


def grow_old(partition: ObjectPartition, seconds: float) -> None:
    """Every file that is there by now becomes so much older."""
    for path in Path(partition._store.address).rglob("*"):
        about = path.stat()
        os.utime(path, (about.st_atime - seconds, about.st_mtime - seconds))


def test_old_listings_and_files_that_nobody_names_are_removed(partition: ObjectPartition) -> None:
    for number in range(8):
        partition.append(records(f"{number}"))
    left = partition._written(records("of a writer that was killed"))
    grow_old(partition, 2 * KEEP_SECONDS)
    young = partition._written(records("of a writer that is at it"))
    partition.append(records("8"))
    partition.tidy()
    assert len(names(partition, "listings")) == 2
    assert left.file not in names(partition, "data") and young.file in names(partition, "data")
    assert list(values(partition)) == list(range(9))


def test_a_process_that_slept_while_listings_were_removed_looks_again(
    partition: ObjectPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.append(records("0"))
    known = dict(object_segments._newest)
    for number in range(1, 8):
        partition.append(records(f"{number}"))
    grow_old(partition, 2 * KEEP_SECONDS)
    partition.append(records("8"))
    partition.tidy()
    # What it knew is the first listing, and the second one is gone.
    object_segments._newest.clear()
    object_segments._newest.update(known)
    now = time.time
    monkeypatch.setattr(object_segments.time, "time", lambda: now() + KEEP_SECONDS)
    assert partition.append(records("9")) == 9
    assert list(values(partition)) == list(range(10))


def test_a_change_that_took_too_long_does_not_say_that_all_is_well(
    partition: ObjectPartition, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition.append(records("0"))
    put, now, slept = LocalStore.put_if_absent, time.time, [0.0]

    def suspended(store: LocalStore, name: str, data: bytes) -> bool:
        slept[0] = KEEP_SECONDS
        return put(store, name, data)

    monkeypatch.setattr(object_segments.time, "time", lambda: now() + slept[0])
    monkeypatch.setattr(LocalStore, "put_if_absent", suspended)
    with pytest.raises(LogError, match="nobody knows whether it counts"):
        partition.append(records("1"))


def test_a_segment_that_is_missing_is_an_error_and_not_an_end(partition: ObjectPartition) -> None:
    partition.append(records("0", "1"))
    partition._store.delete(f"p0/data/{names(partition, 'data')[0]}")
    with pytest.raises(LogError, match="lacks the offsets 0 to 1"):
        values(partition)


def test_the_listings_of_another_log_are_refused(partition: ObjectPartition) -> None:
    partition.append(records("0"))
    with pytest.raises(LogError, match="another log"):
        ObjectPartition(partition._store, "p0", "other").append(records("1"))


def test_erased_records_leave_their_offsets_and_nothing_else(partition: ObjectPartition, tmp_path: Path) -> None:
    timed = pa.Table.from_pylist(
        [{"time": datetime(2026, 1, 1, tzinfo=UTC), "key": None, "value": name} for name in (b"ada", b"bob", b"ada")],
        schema=records("x").schema,
    )
    for _ in range(2):
        partition.append(timed)
    partition.keep_from(1)  # a file of which retention has hidden a part is written without that part

    def holds(rows: pa.Table) -> pa.Array:
        return pc.equal(rows["value"].combine_chunks(), b"ada")

    assert partition.erase(holds, dry_run=True) == [2, 3, 5]
    assert partition.erase(holds) == [2, 3, 5]
    assert partition.erase(holds) == [], "once more there is nothing"
    left = [table for one in partition.segments() for table in partition.rows(one, 0, one.end)]
    assert pa.concat_tables(left).select(["offset", "value"]).to_pydict() == {
        "offset": [1, 2, 3, 4, 5],
        "value": [b"bob", None, None, b"bob", None],
    }
    assert not [file for file in tmp_path.rglob("*.parquet") if b"ada" in file.read_bytes()]
