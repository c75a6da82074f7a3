"""Compaction: which layers are merged, that nothing is lost by it, and that its pieces stay small."""

from __future__ import annotations

import random
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hailstorm.ledger import compaction
from hailstorm.ledger.cache import RunCache
from hailstorm.ledger.commit import Run, Stamp
from hailstorm.ledger.compaction import FAN_IN, Merge, compact, due, layers_of, layers_to_merge, merged
from hailstorm.ledger.live import changed_runs
from hailstorm.ledger.runs import merge_runs, run_name, write_run
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.ledger.stores.store import read_table

SIZES = st.lists(st.integers(1, 5_000), max_size=40)


def runs_of(sizes: list[int]) -> list[Run]:
    return [Run(id=f"r{i}", seq=i + 1, rows=rows, bytes=1, first=0, last=0) for i, rows in enumerate(sizes)]


@settings(max_examples=200, deadline=None)
@given(SIZES)
def test_layers_to_merge_follow_each_other_and_end_with_the_newest(sizes: list[int]) -> None:
    runs = runs_of(sizes)
    layers, whole = layers_to_merge(runs)
    if layers:
        assert layers == layers_of(runs)[-len(layers) :]
        assert len(layers) >= FAN_IN
        assert whole == (len(layers) == len(runs))


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_a_lookup_meets_few_layers_however_many_ticks_there_were(seed: int) -> None:
    chance = random.Random(seed)
    runs: list[Run] = []
    written = rewritten = most = 0
    for seq in range(1, 300):
        rows = chance.choice([1, 3, 10, 100, 1000])
        runs.append(Run(id=f"r{seq}", seq=seq, rows=rows, bytes=1, first=0, last=0))
        written += rows
        while (due := layers_to_merge(runs))[0]:
            merged = [run for layer in due[0] for run in layer.runs]
            total = sum(run.rows for run in merged)
            rewritten += total
            runs = [run for run in runs if run not in merged]
            runs.append(Run(id=f"m{seq}-{total}", seq=seq, rows=total, bytes=1, first=0, last=0))
        most = max(most, len(runs))
    assert most <= 2 * FAN_IN * 4
    assert rewritten <= 8 * written, "a row is rewritten about once per size class"


def test_runs_of_one_commit_are_one_layer() -> None:
    runs = [Run(id=f"r{i}", seq=i // 3, rows=4, bytes=1, first=0, last=0) for i in range(9)]
    assert [[run.id for run in layer.runs] for layer in layers_of(runs[::-1])] == [
        ["r2", "r1", "r0"],
        ["r5", "r4", "r3"],
        ["r8", "r7", "r6"],
    ]


class Place:
    """A ledger's folder with random layers of state in it."""

    def __init__(self, root: Path, chance: random.Random, layers: int, keys: int) -> None:
        self.store = LocalStore(root)
        self.cache = RunCache(self.store, root / ".cache")
        self.runs: tuple[Run, ...] = ()
        self.oracle: dict[str, tuple[int, bool]] = {}
        for seq in range(1, layers + 1):
            chosen = chance.sample(range(keys), chance.randint(1, min(keys, 12)))
            rows = {f"k{key}": (chance.randint(0, 99), chance.random() < 0.3) for key in chosen}
            self.oracle |= rows
            # Several keys share a hash. Two runs a layer, as two tasks would write.
            for part in (0, 1):
                mine = [(int(key[1:]) // 3, key, *row) for key, row in rows.items() if int(key[1:]) % 2 == part]
                if mine:
                    columns = zip(*sorted(mine), strict=True)
                    table = pa.table(dict(zip(("_hash", "k", "n", "_deleted"), columns, strict=True)))
                    self.runs = (*self.runs, write_run(self.store, "counts", table, Stamp(seq, 1)))

    def rows(self) -> dict[str, tuple[int, bool]]:
        tables = [read_table(self.store, run_name("counts", run.id)) for run in reversed(self.runs)]
        merged = merge_runs(tables, ["k"], drop_deleted=False).to_pylist()
        assert len({row["k"] for row in merged}) == len(merged)
        return {row["k"]: (row["n"], row["_deleted"]) for row in merged}


def kept(rows: dict[str, tuple[int, bool]]) -> dict[str, int]:
    return {key: n for key, (n, deleted) in rows.items() if not deleted}


@pytest.mark.parametrize("largest", [2, 5, 1_000_000])
@pytest.mark.parametrize("seed", range(4))
def test_compacted_state_is_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, seed: int
) -> None:
    monkeypatch.setattr(compaction, "LARGEST_RUN", largest)
    place = Place(tmp_path, random.Random(seed), layers=20, keys=30)
    change = compact(place.store, place.cache, "counts", ["k"], place.runs, Stamp(99, 1))
    assert change is not None
    assert set(change.removed) <= {run.id for run in place.runs}
    place.runs = changed_runs(place.runs, change)
    assert kept(place.rows()) == kept(place.oracle)
    if len(change.removed) == len(place.runs) or not set(place.runs) - set(change.added):
        assert not any(deleted for _, deleted in place.rows().values()), "nothing older: no tombstone is needed"


@pytest.mark.parametrize("largest", [2, 7, 1_000_000])
@pytest.mark.parametrize("seed", range(4))
def test_ranges_that_are_merged_without_each_other_give_the_same_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest: int, seed: int
) -> None:
    monkeypatch.setattr(compaction, "LARGEST_RUN", largest)
    monkeypatch.setattr(compaction, "IN_TASKS", 0)
    place = Place(tmp_path, random.Random(seed), layers=20, keys=30)
    for stamp in (99, 100):  # the second time, of a layer that is cut by hash already
        met: list[int] = []

        def elsewhere(merge: Merge, met: list[int] = met) -> list[Run]:
            ranges = merge.ranges()
            met.append(len(ranges))
            assert all(low <= high for low, high in ranges)
            assert all(left[1] + 1 == right[0] for left, right in pairwise(ranges))
            found = [merged(place.store, place.cache, merge, between=one) for one in ranges]
            return [run for runs in found if runs is not None for run in runs]

        everything = stamp == 100
        change = compact(
            place.store,
            place.cache,
            "counts",
            ["k"],
            place.runs,
            Stamp(stamp, 1),
            everything=everything,
            elsewhere=elsewhere,
        )
        if change is not None:
            place.runs = changed_runs(place.runs, change)
            assert met[0] > 1 or largest > 100
        assert kept(place.rows()) == kept(place.oracle)


def test_a_range_meets_few_runs_of_a_layer_that_is_cut() -> None:
    large = [Run(id=f"l{i}", seq=1, rows=1_000_000, bytes=1, first=i * 100, last=i * 100 + 99) for i in range(40)]
    small = [Run(id=f"s{i}", seq=2 + i, rows=100, bytes=1, first=3, last=3_950) for i in range(3)]
    merge = due("counts", ["k"], [*large, *small], Stamp(9, 1), everything=True)
    assert merge is not None
    ranges = merge.ranges()
    assert len(ranges) == 40
    assert (ranges[0][0], ranges[-1][1]) == (0, 3_999)
    for low, high in ranges:
        assert sum(run.first <= high and run.last >= low for run in large) <= 2


def test_large_results_are_cut_by_hash_into_runs_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LARGEST_RUN", 100)
    store = LocalStore(tmp_path)
    cache = RunCache(store, tmp_path / ".cache")
    chance = random.Random(1)
    runs = []
    for seq in range(1, 9):
        hashes = sorted(chance.randint(-(2**63), 2**63 - 1) for _ in range(90))
        table = pa.table({"_hash": hashes, "k": [f"{h}" for h in hashes], "_deleted": [False] * 90})
        runs.append(write_run(store, "counts", table, Stamp(seq, 1)))
    change = compact(store, cache, "counts", ["k"], runs, Stamp(99, 1))
    assert change is not None
    assert sum(run.rows for run in change.added) == 8 * 90
    assert max(run.rows for run in change.added) <= 200, "about the limit: hashes are spread evenly"
    assert {run.seq for run in change.added} == {8}
    for left, right in zip(change.added, change.added[1:], strict=False):
        assert left.last < right.first, "the pieces do not overlap"


def test_no_merged_run_has_hashes_on_both_sides_of_a_border(tmp_path: Path) -> None:
    place = Place(tmp_path, random.Random(5), layers=20, keys=30)
    change = compact(place.store, place.cache, "counts", ["k"], place.runs, Stamp(99, 1), borders=(-4, 3, 7))
    assert change is not None
    assert [(run.first < 3, run.last >= 7) for run in change.added] == [(True, False), (False, False), (False, True)]
    place.runs = changed_runs(place.runs, change)
    assert kept(place.rows()) == kept(place.oracle)


def test_a_range_that_is_merged_by_itself_has_one_owner() -> None:
    runs = [Run(id=f"r{i}", seq=i + 1, rows=400_000, bytes=1, first=-900, last=900) for i in range(8)]
    merge = due("counts", ["k"], runs, Stamp(9, 1), everything=True, borders=(-10, 10, 5_000))
    assert merge is not None
    ranges = merge.ranges()
    assert (ranges[0][0], ranges[-1][1]) == (-900, 900)
    assert all(left[1] + 1 == right[0] for left, right in pairwise(ranges))
    assert {-10, 10} <= {low for low, _ in ranges}


def test_a_tombstone_stays_while_an_older_run_may_hold_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    cache = RunCache(store, tmp_path / ".cache")

    def layer(seq: int, keys: list[str], deleted: bool) -> Run:
        table = pa.table({"_hash": list(range(len(keys))), "k": keys, "_deleted": [deleted] * len(keys)})
        return write_run(store, "counts", table, Stamp(seq, 1))

    old = layer(1, [f"k{i}" for i in range(600)], False)
    newer = [layer(seq, ["k0"], True) for seq in range(2, 2 + FAN_IN)]
    change = compact(store, cache, "counts", ["k"], [old, *newer], Stamp(99, 1))
    assert change is not None
    assert old.id not in change.removed
    assert [run.rows for run in change.added] == [1]


def test_a_compaction_that_deletes_everything_leaves_no_run(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    cache = RunCache(store, tmp_path / ".cache")
    runs = [
        write_run(store, "counts", pa.table({"_hash": [1], "k": ["a"], "_deleted": [seq == 8]}), Stamp(seq, 1))
        for seq in range(1, 9)
    ]
    change = compact(store, cache, "counts", ["k"], runs, Stamp(99, 1))
    assert change is not None
    assert change.added == ()
    assert changed_runs(tuple(runs), change) == ()


def test_a_compaction_that_is_stopped_changes_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path, random.Random(1), layers=20, keys=30)
    assert compact(place.store, place.cache, "counts", ["k"], place.runs, Stamp(99, 1), lambda: True) is None


def test_nothing_is_merged_while_little_is_there(tmp_path: Path) -> None:
    place = Place(tmp_path, random.Random(1), layers=FAN_IN - 1, keys=30)
    assert compact(place.store, place.cache, "counts", ["k"], place.runs, Stamp(99, 1)) is None
