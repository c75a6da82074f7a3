"""Copies of runs: a wrong bit in one is never shown, whatever types of columns it has."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from hailstorm.ledger import cache as cache_module
from hailstorm.ledger import parts
from hailstorm.ledger.cache import RunCache
from hailstorm.ledger.commit import Run, Stamp
from hailstorm.ledger.compaction import compact
from hailstorm.ledger.copies import CheckedCopy, DamagedCopy, read_copy, write_copy, wrong_with_copy
from hailstorm.ledger.runs import write_run
from hailstorm.ledger.stores.local import LocalStore

ROWS = 3_000


def every_type(rows: int = ROWS) -> pa.Table:
    dice = random.Random(5)
    words = [None if n % 11 == 0 else "x" * dice.randrange(9) + str(n) for n in range(rows)]
    return pa.table(
        {
            "_hash": pa.array(np.sort(np.random.default_rng(1).integers(-(2**62), 2**62, rows))),
            "word": pa.array(words),
            "large": pa.array(words, pa.large_string()),
            "flag": pa.array([n % 3 == 0 for n in range(rows)]),
            "price": pa.array([Decimal(n) / 100 for n in range(rows)], pa.decimal128(12, 2)),
            "list": pa.array([[n] * (n % 4) for n in range(rows)]),
            "map": pa.array([[(f"k{n}", n)] for n in range(rows)], pa.map_(pa.string(), pa.int64())),
            "struct": pa.array([{"a": n, "b": [str(n)]} for n in range(rows)]),
            "pair": pa.array([[n, -n] for n in range(rows)], pa.list_(pa.int32(), 2)),
            "coded": pa.array([str(n % 5) for n in range(rows)]).dictionary_encode(),
            "nothing": pa.nulls(rows),
            "_deleted": pa.array([False] * rows),
        }
    )


def flip(path: Path, byte: int, bit: int) -> None:
    with path.open("r+b") as file:
        file.seek(byte)
        old = file.read(1)[0]
        file.seek(byte)
        file.write(bytes([old ^ (1 << bit)]))


def shown(path: Path, table: pa.Table, places: list[int]) -> pa.Table | None:
    """What a reader sees of the rows with the hashes at these places; None when the copy is not believed."""
    hashes = np.asarray(table["_hash"])[places]
    try:
        copy = CheckedCopy.at(path)
        return parts._members(cache_module.OpenRun.of(copy.table), hashes, table.column_names, copy)
    except ValueError:
        return None


@pytest.mark.parametrize("many", [False, True])
def test_a_wrong_bit_is_never_shown_and_always_found(tmp_path: Path, many: bool) -> None:
    table = every_type()
    path = tmp_path / "run.arrow"
    write_copy(table, path)
    assert read_copy(path) == table
    size, dice = path.stat().st_size, random.Random(7)
    spared = 0
    for _ in range(400):
        places = sorted(dice.sample(range(ROWS), 12 if many else 2))
        byte, bit = dice.randrange(size), dice.randrange(8)
        flip(path, byte, bit)
        assert wrong_with_copy(path)
        found = shown(path, table, places)
        assert found is None or found.equals(table.take(pa.array(places))), byte
        spared += found is not None
        flip(path, byte, bit)
    assert wrong_with_copy(path) == ""
    assert spared > 20, "only what is read is compared"


@pytest.mark.parametrize("bit", [62, 61, 40])
def test_a_key_does_not_vanish_because_its_hash_has_a_wrong_bit(tmp_path: Path, bit: int) -> None:
    table = every_type()
    path = tmp_path / "run.arrow"
    write_copy(table, path)
    whole = CheckedCopy.at(path)
    begin = whole.table["_hash"].chunk(0).buffers()[1].address - whole._data.address
    for place in (0, 1, ROWS // 2, ROWS - 1):
        flip(path, begin + 8 * place + bit // 8, bit % 8)
        assert shown(path, table, [place]) is None, place
        flip(path, begin + 8 * place + bit // 8, bit % 8)


def test_a_few_rows_of_a_large_copy_cost_a_few_pages(tmp_path: Path) -> None:
    table = every_type(60_000)
    path = tmp_path / "run.arrow"
    write_copy(table, path)
    copy = CheckedCopy.at(path)
    parts._members(cache_module.OpenRun.of(copy.table), np.asarray(table["_hash"])[[777]], ["_hash", "word"], copy)
    assert copy._known.sum() < 12
    assert len(copy._known) > 1_000


@pytest.mark.parametrize("rows", [0, 1])
def test_a_copy_of_few_rows_is_read(tmp_path: Path, rows: int) -> None:
    table = every_type(rows)
    path = tmp_path / "run.arrow"
    write_copy(table, path)
    assert read_copy(path) == CheckedCopy.at(path).table == table
    assert wrong_with_copy(path) == ""
    CheckedCopy.at(path).check_all()
    flip(path, path.stat().st_size // 2, 3)
    assert wrong_with_copy(path)


def test_a_copy_of_an_older_hailstorm_is_made_again_and_is_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "run.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, every_type(9).schema) as writer:
        writer.write_table(every_type(9))
    assert wrong_with_copy(path) == ""
    with pytest.raises(DamagedCopy):
        read_copy(path)


def test_a_compaction_makes_nothing_of_a_damaged_copy(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    cache = RunCache(store, tmp_path / ".cache")
    runs: list[Run] = []
    for seq, n in ((1, 10), (2, 20)):
        rows = pa.table({"_hash": pa.array([n], pa.int64()), "k": [n], "n": [n], "_deleted": [False]})
        runs.append(write_run(store, "counts", rows, Stamp(seq, 1)))
        cache.open("counts", runs[-1])
    path = cache.path("counts", runs[0].id)
    whole = CheckedCopy.at(path)
    at = whole.table["n"].chunk(0).buffers()[1].address - whole._data.address
    del whole
    flip(path, at, 3)
    assert cache.open("counts", runs[0]).table["n"].to_pylist() == [2], "a tick does not notice"
    change = compact(store, cache, "counts", ("k",), runs, Stamp(3, 1), everything=True)
    assert change is not None
    assert cache.open("counts", change.added[0]).table["n"].to_pylist() == [10, 20]
    assert cache.open("counts", runs[0]).table["n"].to_pylist() == [10], "the copy was made again"
