"""Parts of a state: one key, some keys, or all of it in pieces, without reading the rest."""

from __future__ import annotations

import decimal
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hailstorm.ledger import reader as module
from hailstorm.ledger import runs
from hailstorm.ledger.commit import StateChange, StepShape
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.reader import State, open_ledger
from hailstorm.ledger.runs import sort_by_hash, write_run

KEYS = 5_000


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> State:
    """A large run, a newer one with every tenth key, and a tombstone of key 20; row groups of a hundred rows."""
    monkeypatch.setattr(runs, "ROW_GROUP", 100)
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
