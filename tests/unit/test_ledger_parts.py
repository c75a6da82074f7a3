"""Parts of a state: one key, some keys, or all of it in pieces, without reading the rest."""

from __future__ import annotations

import decimal
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from hailstorm.errors import LedgerError
from hailstorm.ledger import parts, runs, sums
from hailstorm.ledger import reader as module
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.commit import StateChange, StepShape
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import State, open_ledger
from hailstorm.ledger.runs import parquet_without, run_name, sort_by_hash, write_run
from hailstorm.ledger.stores.local import LocalStore
from hailstorm.ledger.stores.store import read_table

KEYS = 5_000


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """A large run, a newer one with every tenth key, and a tombstone of key 20; row groups of a hundred rows."""
    monkeypatch.setattr(runs, "ROW_GROUP", 100)
    monkeypatch.setattr(parts, "SMALL_BYTES", 10_000)
    monkeypatch.setattr(module, "_PIECE", 700)
    ledger = Ledger(tmp_path / "ledger", create=True)
    shape = StepShape(kind="fold", key=("k", "part"), values=("n",), fingerprint="f")
    ledger.commit(next_commit(ledger.head, "evolve", 1, datetime.now(UTC), steps={"counts": shape}))
    for numbers, n, deleted in ((range(KEYS), 1, False), (range(0, KEYS, 10), 2, False), ([20], 0, True)):
        keys = [pa.array([f"k{i}" for i in numbers]), pa.array([i % 7 for i in numbers], pa.int64())]
        columns = {"_hash": pa.array(hash_columns(keys, len(numbers))), "k": keys[0], "part": keys[1]}
        columns |= {"n": pa.array([n] * len(numbers)), "_deleted": pa.array([deleted] * len(numbers))}
        run = write_run(ledger.store, "counts", sort_by_hash(pa.table(columns)), ledger.stamp)
        change = StateChange(added=(run,))
        ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), state={"counts": change}))
    return open_ledger(ledger.root).state("counts")


def asked(state: State, **wanted: list[object]) -> list[tuple[object, ...]]:
    types = state.key_types()
    rows = state.of_keys({name: pa.array(values, types[name]) for name, values in wanted.items()}).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def test_a_key_is_found_with_its_newest_row_and_few_row_groups_are_read(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = pq.ParquetFile.read_row_group

    def counted(file: pq.ParquetFile, group: int, **options: object) -> pa.Table:
        read.append(group)
        return real(file, group, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    assert asked(state, k=["k17"], part=[3]) == [("k17", 3, 1)]
    assert asked(state, k=["k30"], part=[2]) == [("k30", 2, 2)]
    assert asked(state, k=["k20"], part=[6]) == [], "it was deleted"
    assert asked(state, k=["k17"], part=[4]) == [], "no such key"
    assert len(read) < 20, "of 56 row groups per key"


def test_what_was_read_before_is_not_read_again(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(state, k=["k17"], part=[3])
    opened: list[str] = []
    real = LocalStore.open

    def counted(store: LocalStore, name: str, whole: bool = False) -> pa.NativeFile:
        opened.append(name)
        return real(store, name, whole)

    monkeypatch.setattr(LocalStore, "open", counted)
    monkeypatch.setattr(sums.zlib, "crc32", lambda data: pytest.fail("a footer was compared again"))
    large = [run for run in state.live.runs["counts"] if run.bytes > parts.SMALL_BYTES]
    assert asked(state, k=["k17"], part=[3]) == [("k17", 3, 1)]
    assert sorted(opened) == sorted(run_name("counts", run.id) for run in large), "and of these, not the footer"


def test_a_file_that_was_replaced_is_read_again_and_one_that_is_gone_is_missed(state: State) -> None:
    assert asked(state, k=["k30"], part=[2]) == [("k30", 2, 2)]
    for run in state.live.runs["counts"]:
        name = run_name("counts", run.id)
        rows = read_table(state.ledger.store, name)
        left = rows.filter(pc.not_equal(rows.column("k"), "k30"))
        state.ledger.store.put(name, parquet_without(left, run.sums or (0, 0)))
    assert asked(state, k=["k30"], part=[2]) == [], "as after an erasure"
    state.ledger.store.delete(run_name("counts", state.live.runs["counts"][-1].id))
    with pytest.raises(LedgerError, match="HS-LED-031"):
        asked(state, k=["k17"], part=[3])


def test_little_is_kept_in_memory(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = parts._Kept()
    monkeypatch.setattr(parts, "KEPT_BYTES", 100)
    for name in "abcd":
        kept.put(state.ledger.store, name, 1, OpenRun.of(pa.table({"_hash": [1]})), 40)
    assert [kept.get(state.ledger.store, name, 1) is not None for name in "abcd"] == [False, False, True, True]
    kept.put(state.ledger.store, "d", 2, OpenRun.of(pa.table({"_hash": [2]})), 60)
    assert kept.get(state.ledger.store, "d", 1) is None, "another file has its name now"
    assert kept.get(state.ledger.store, "c", 1) is not None


@pytest.mark.parametrize("spread", ["even", "all in one place", "two heaps", "one hash"])
def test_rows_of_a_hash_are_found_where_they_are_expected_and_elsewhere(
    spread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "_NEAR", 3)
    dice = np.random.default_rng(14)
    hashes = {
        "even": dice.integers(-(2**63), 2**63 - 1, 500),
        "all in one place": np.concatenate([[-(2**63)], np.arange(500) // 3, [2**63 - 1]]),
        "two heaps": np.concatenate([dice.integers(-9, 9, 200), dice.integers(10**12, 10**12 + 99, 200)]),
        "one hash": np.zeros(50, dtype=np.int64),
    }[spread]
    held = np.sort(hashes.astype(np.int64))
    run = OpenRun.of(pa.table({"_hash": held, "row": np.arange(len(held))}))
    wanted = np.unique(np.concatenate([held[::7], held[:1] + 1, [0, 5, -(2**63), 2**63 - 1]]))
    for one in wanted:
        found = parts._members(run, np.array([one]), ["_hash", "row"])
        assert found.column("row").to_pylist() == np.flatnonzero(held == one).tolist()
    few = wanted[:: max(1, len(wanted) // 4)][:4]
    expected = np.flatnonzero(np.isin(held, few)).tolist()
    assert parts._members(run, few, ["_hash", "row"]).column("row").to_pylist() == expected
    everything = parts._members(run, wanted, ["_hash", "row"]).column("row").to_pylist()
    assert everything == np.flatnonzero(np.isin(held, wanted)).tolist()


def test_a_copy_in_the_cache_is_as_good_as_the_run(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = state.ledger.cache
    before = asked(state, k=["k17", "k20", "k30"], part=[2, 3, 6])
    cache.clear_after_reboot()
    for run in state.live.runs["counts"]:
        cache.put("counts", run.id, read_table(state.ledger.store, run_name("counts", run.id)))
    monkeypatch.setattr(parts, "_kept", parts._Kept())
    monkeypatch.setattr(LocalStore, "open", lambda *_: pytest.fail("a run was opened"))
    assert asked(state, k=["k17", "k20", "k30"], part=[2, 3, 6]) == before == [("k17", 3, 1), ("k30", 2, 2)]


def test_several_keys_at_once(state: State) -> None:
    assert asked(state, k=["k1", "k2", "k8"], part=[1, 2]) == [("k1", 1, 1), ("k2", 2, 1), ("k8", 1, 1)]


def test_a_part_of_a_key_is_found_by_looking_at_everything_in_pieces(state: State) -> None:
    assert asked(state, k=["k17", "k20"]) == [("k17", 3, 1)]


def test_pieces_are_the_whole_state_and_none_is_large(state: State) -> None:
    pieces = list(state.pieces())
    assert len(pieces) > 5
    assert max(piece.num_rows for piece in pieces) < 1_000
    assert pa.concat_tables(pieces).sort_by("k") == state.arrow().sort_by("k")


def test_keys_of_types_that_only_spark_hashes_are_found_all_the_same(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    shape = StepShape(kind="fold", key=("price",), values=("n",), fingerprint="f")
    prices = pa.array([decimal.Decimal("1.50"), decimal.Decimal("2.50")], pa.decimal128(10, 2))
    columns = {"_hash": np.array([1, 2]), "price": prices, "n": [7, 8], "_deleted": [False, False]}
    change = StateChange(added=(write_run(ledger.store, "counts", pa.table(columns), ledger.stamp),))
    fields = {"steps": {"counts": shape}, "state": {"counts": change}}
    ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), **fields))
    state = open_ledger(ledger.root).state("counts")
    assert asked(state, price=[decimal.Decimal("2.50")]) == [(decimal.Decimal("2.50"), 8)]


@pytest.mark.parametrize("small", [True, False])
def test_columns_may_be_in_another_order_and_one_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    monkeypatch.setattr(parts, "SMALL_BYTES", 1 << 20 if small else 0)
    ledger = Ledger(tmp_path / "ledger", create=True)
    shape = StepShape(kind="fold", key=("k",), values=("n", "later"), fingerprint="f")
    keys = pa.array(range(10), pa.int64())
    columns = {"_deleted": [False] * 10, "n": range(10), "_state_n": [b"large"] * 10, "k": keys}
    rows = sort_by_hash(pa.table({**columns, "_hash": hash_columns([keys], 10)}))
    change = StateChange(added=(write_run(ledger.store, "counts", rows, ledger.stamp),))
    fields = {"steps": {"counts": shape}, "state": {"counts": change}}
    ledger.commit(next_commit(ledger.head, "tick", 1, datetime.now(UTC), **fields))
    state = open_ledger(ledger.root).state("counts")
    assert asked(state, k=[3]) == [(3, 3, None)]
    assert asked(state, k=list(range(8))) == [(k, k, None) for k in range(8)]
    assert pa.concat_tables(state.pieces()).sort_by("k").to_pylist() == [
        {"k": k, "n": k, "later": None} for k in range(10)
    ]
