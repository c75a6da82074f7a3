"""The cache: whatever happens to it, the ledger's rows come out of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from hailstorm.ledger import cache as module
from hailstorm.ledger.cache import RunCache
from hailstorm.ledger.commit import Run, Stamp
from hailstorm.ledger.runs import run_name, write_run
from hailstorm.ledger.stores.local import LocalStore

TABLE = pa.table({"_hash": pa.array([-3, 5, 9], pa.int64()), "k": ["a", "b", "c"], "_deleted": [False] * 3})


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[RunCache, Run]:
    monkeypatch.setattr(module, "_open_runs", type(module._open_runs)())
    store = LocalStore(tmp_path)
    return RunCache(store, tmp_path / ".cache"), write_run(store, "counts", TABLE, Stamp(1, 1))


def forget() -> None:
    """As if another worker came."""
    module._open_runs.clear()


def test_a_run_that_is_not_there_is_copied_from_the_ledger(place: tuple[RunCache, Run]) -> None:
    cache, run = place
    assert cache.open("counts", run).table == TABLE
    assert cache.path("counts", run.id).exists()


def test_a_run_is_opened_from_the_cache_alone(place: tuple[RunCache, Run]) -> None:
    cache, run = place
    cache.put("counts", run.id, TABLE)
    cache.store.delete(run_name("counts", run.id))
    assert cache.open("counts", run).table == TABLE


def test_a_deleted_copy_is_made_again(place: tuple[RunCache, Run]) -> None:
    cache, run = place
    cache.open("counts", run)
    cache.path("counts", run.id).unlink()
    assert cache.open("counts", run).table == TABLE, "this worker still has it mapped"
    forget()
    assert cache.open("counts", run).table == TABLE


def test_a_deleted_folder_is_made_again(place: tuple[RunCache, Run]) -> None:
    cache, run = place
    cache.open("counts", run)
    shutil.rmtree(cache.folder)
    forget()
    assert cache.open("counts", run).table == TABLE


def test_a_copy_torn_at_any_place_is_made_again(place: tuple[RunCache, Run]) -> None:
    cache, run = place
    cache.open("counts", run)
    path = cache.path("counts", run.id)
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 37), len(whole) - 1]:
        forget()
        path.write_bytes(whole[:size])
        assert cache.open("counts", run).table == TABLE, size
        assert path.read_bytes() == whole


def test_a_cache_that_cannot_keep_anything_still_gives_the_rows(
    place: tuple[RunCache, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deletes the folder again and again, just between our writing and our reading."""
    cache, run = place
    monkeypatch.setattr(cache, "_mapped", lambda path: None)
    assert cache.open("counts", run).table == TABLE


def test_a_folder_that_vanishes_while_it_is_written_is_no_error(
    place: tuple[RunCache, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, run = place

    def vanish(table: pa.Table, path: Path) -> None:
        raise FileNotFoundError(path)

    monkeypatch.setattr(module, "write_copy", vanish)
    cache.put("counts", run.id, TABLE)
    assert cache.open("counts", run).table == TABLE


def test_only_live_runs_are_kept(place: tuple[RunCache, Run]) -> None:
    cache, run = place
    cache.put("counts", run.id, TABLE)
    cache.put("counts", "old", TABLE)
    cache.put("gone", "x", TABLE)
    cache.remove_all_but({"counts": {run.id}})
    assert [path.stem for path in cache.folder.rglob("*.arrow")] == [run.id]


def test_after_a_reboot_the_cache_starts_empty(
    place: tuple[RunCache, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, run = place
    boot = tmp_path / "boot_id"
    boot.write_text("one")
    monkeypatch.setattr(module, "_BOOT_ID", boot)
    cache.clear_after_reboot()
    cache.put("counts", run.id, TABLE)
    cache.clear_after_reboot()
    assert cache.path("counts", run.id).exists()
    boot.write_text("two")
    cache.clear_after_reboot()
    assert not cache.path("counts", run.id).exists()


def test_a_worker_keeps_a_bounded_number_of_runs_open(
    place: tuple[RunCache, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, _ = place
    monkeypatch.setattr(module, "_KEEP_OPEN", 4)
    runs = [write_run(cache.store, "counts", TABLE, Stamp(seq, 1)) for seq in range(10)]
    for run in runs:
        cache.open("counts", run)
    assert len(module._open_runs) == 4
    assert (str(cache.folder), "counts", runs[-1].id) in module._open_runs


def test_runs_that_are_not_live_are_let_go(place: tuple[RunCache, Run], tmp_path: Path) -> None:
    cache, run = place
    other = RunCache(cache.store, tmp_path / "other")
    old = write_run(cache.store, "counts", TABLE, Stamp(2, 1))
    for one in (run, old):
        cache.open("counts", one)
    other.open("counts", old)
    cache.let_go({"counts": (run,)})
    open_ = {(folder, run_id) for folder, _, run_id in module._open_runs}
    assert open_ == {(str(cache.folder), run.id), (str(other.folder), old.id)}


def test_copies_of_runs_that_were_merged_go_with_the_next_task(place: tuple[RunCache, Run]) -> None:
    cache, run = place
    merged = write_run(cache.store, "counts", TABLE, Stamp(2, 1))
    live = {"counts": (run,)}
    cache.open("counts", run)
    cache.tidy(live, now=cache.let_go(live))
    cache.open("counts", merged)
    live = {"counts": (merged,)}
    assert cache.let_go(live)
    cache.tidy(live, now=True)
    assert [path.stem for path in cache.folder.rglob("*.arrow")] == [merged.id]
    assert not cache.let_go(live)


def test_copies_that_nobody_here_has_needed_for_minutes_are_dropped(
    place: tuple[RunCache, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, run = place
    other = write_run(cache.store, "counts", TABLE, Stamp(2, 1))
    monkeypatch.setattr(module, "_next_dropping", {})
    monkeypatch.setattr(module, "_TIDY_SECONDS", 0.0)
    for one in (run, other):
        cache.open("counts", one)
        os.utime(cache.path("counts", one.id), (0, 0))
    monkeypatch.setattr(module, "_used", set())  # as after a long time in which nothing was done
    cache.drop_unused()
    assert cache.path("counts", other.id).exists(), "a process that has just come knows nothing yet"
    cache.open("counts", run)
    cache.drop_unused()
    assert [path.stem for path in cache.folder.rglob("*.arrow")] == [run.id]


def test_without_a_boot_id_no_copy_is_trusted(
    place: tuple[RunCache, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, run = place
    monkeypatch.setattr(module, "_BOOT_ID", tmp_path / "no-proc")
    cache.clear_after_reboot()
    cache.put("counts", run.id, TABLE)
    cache.clear_after_reboot()
    assert not cache.path("counts", run.id).exists()


def test_an_open_run_is_one_piece_of_memory(place: tuple[RunCache, Run]) -> None:
    cache, _ = place
    chunked = pa.concat_tables([TABLE, TABLE])
    cache.put("counts", "chunked", chunked)
    found = cache.open("counts", Run(id="chunked", seq=1, rows=6, bytes=1, first=-3, last=9))
    assert all(column.num_chunks == 1 for column in found.table.columns)
    assert found.hashes.tolist() == [-3, 5, 9] * 2


def test_a_small_run_that_was_just_written_is_open_already_until_it_is_not_live(place: tuple[RunCache, Run]) -> None:
    cache, run = place
    cache.store.delete(run_name("counts", run.id))
    cache.keep("counts", run, TABLE)
    assert cache.open("counts", run).table is TABLE
    cache.let_go({"counts": [run]})
    assert module._open_runs
    cache.let_go({"counts": []})
    assert not module._open_runs


def test_a_large_run_is_not_kept_in_memory(place: tuple[RunCache, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SMALL", 10)
    cache, run = place
    cache.keep("counts", run, TABLE)
    assert not module._open_runs
