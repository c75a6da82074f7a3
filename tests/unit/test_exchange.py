"""Parts of keys between tasks: each task gets the hashes of its range, and one row per key comes out of all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import hailstorm as hs
from hailstorm.algebra.monoid import SqlMonoid
from hailstorm.columns import EVENT_TIME, HASH, TIME
from hailstorm.engine.stages import exchange, group
from hailstorm.engine.stages.chain import run_stages
from hailstorm.engine.stages.exchange import LeaveParts, PackParts, ReadParts, UnpackParts, borders, part_names
from hailstorm.engine.stages.fold import STATE, Cell
from hailstorm.engine.stages.group import GroupRows, Lifted
from hailstorm.engine.stages.order import Order, Report
from hailstorm.engine.stages.reduce import ReduceStates
from hailstorm.engine.stages.task import Task

PARTS = pa.schema([("k", pa.int64()), (f"{STATE}n", pa.int64()), (EVENT_TIME, TIME), (HASH, pa.int64())])


def _task(folder: Path, number: int, inputs: dict[str, tuple[str, ...]]) -> Task:
    order = Order(ledger=str(folder), cache=str(folder), scratch=str(folder), seq=1, epoch=1, now=0, inputs=inputs)
    return Task(order, number, Report(f"fold/{number}"))


@pytest.mark.parametrize("tasks", [1, 2, 3, 7])
@pytest.mark.parametrize("part_bytes", [1, 1 << 20])
def test_every_key_comes_out_once_at_one_task(
    tasks: int, part_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "_PART_BYTES", part_bytes)
    count = hs.count()
    assert isinstance(count, SqlMonoid)
    arrow = count.pieces(()).arrow
    assert arrow is not None and arrow.lift is not None
    cells = (Cell("n", pa.int64(), pa.int64(), False, arrow.merge, None, arrow.merge),)
    grouped = GroupRows(("k",), (Lifted("n", (), arrow.lift),), parts=PARTS)
    keys, left = np.random.default_rng(1).integers(0, 50, (4, 3, 100)), dict[str, tuple[str, ...]]()
    for number, of_task in enumerate(keys):
        times = pa.array(np.arange(100)).cast(TIME)
        batches = [pa.RecordBatch.from_pydict({"k": pa.array(part), EVENT_TIME: times}) for part in of_task]
        task = _task(tmp_path, number, {})
        assert not list(run_stages((grouped, LeaveParts("fold", tasks)), iter(batches), task))
        for name, files in task.report.scratch.items():
            left[name] = (*left.get(name, ()), *files)
    assert set(left) <= set(part_names("fold", tasks))
    found: list[tuple[int, int]] = []
    for number in range(tasks):
        share = pa.record_batch({"id": pa.array([number])})
        stages = (ReadParts("fold", PARTS, tasks, ()), ReduceStates(("k",), cells))
        rows = list(run_stages(stages, iter([share]), _task(tmp_path, number, left)))
        hashes = np.concatenate([np.asarray(batch.column(HASH)) for batch in rows])
        assert (np.diff(hashes) > 0).all()
        found += [(row["k"], row[f"{STATE}n"]) for batch in rows for row in batch.to_pylist()]
    assert len(found) == len(dict(found))
    assert dict(found) == Counter(keys.reshape(-1).tolist())


@pytest.mark.parametrize("packed_bytes", [1, 1_000, 1 << 20])
def test_what_is_packed_for_a_task_is_of_its_range_and_comes_out_as_it_was(
    packed_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_PACKED_BYTES", packed_bytes)
    numbers, task = (30, 10, 20), _task(Path(), 0, {})
    hashes = np.sort(np.random.default_rng(2).integers(-(1 << 63), (1 << 63) - 1, 300))
    rows = pa.record_batch({"k": [f"k{n}" for n in range(300)], HASH: hashes})
    schema = pa.schema([("rows", pa.binary()), ("number", pa.int32())])
    packed = pa.Table.from_batches(PackParts(numbers, schema)(iter([rows]), task))
    found = []
    for owner, number in enumerate(numbers):
        mine = packed.filter(pa.compute.equal(packed.column("number"), number)).select(["rows"])
        unpacked = pa.Table.from_batches(UnpackParts()(iter(mine.to_batches()), task), rows.schema)
        owners = np.searchsorted(borders(3), np.asarray(unpacked.column(HASH)), side="right")
        assert len(owners) and (owners == owner).all()
        found += unpacked.to_pylist()
    assert found == rows.to_pylist()


def test_entries_that_are_due_stay_beside_the_rows_of_their_key() -> None:
    rows = pa.record_batch(
        {"k": pa.array([1, 1, 1]), f"{STATE}n": pa.array([2, None, 3]), EVENT_TIME: pa.array([5, None, 7]).cast(TIME)}
    ).append_column(HASH, pa.array([9, 9, 9]))
    cells = (Cell("n", pa.int64(), pa.int64(), False, None, None, lambda one, other: pa.array([5])),)
    reduced = ReduceStates(("k",), cells, beside_due=True)
    found = [row for batch in reduced(iter([rows]), _task(Path(), 0, {})) for row in batch.to_pylist()]
    assert [(row[f"{STATE}n"], row[EVENT_TIME] is None) for row in found] == [(None, True), (5, False)]
