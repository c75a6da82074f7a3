"""The stage of a top, tick by tick against plain Python: refills, equal hashes, NaN, -0.0 and nulls."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from hailstorm.columns import TIME
from hailstorm.engine.stages.chain import run_stages
from hailstorm.engine.stages.ranking import BY
from hailstorm.engine.stages.top import WHOLE, KeepTop
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores import open_store
from hailstorm.ledger.stores.store import read_table
from tests.length import seeds
from tests.unit.stage_ticks import Row, Ticks

pytestmark = pytest.mark.slow

N = 3
KEYS = 200  # more than a buffer holds
TOP = KeepTop(
    step="top",
    table="counts",
    n=N,
    by="x",
    key=("k",),
    values=("x",),
    schema=pa.schema([("k", pa.string()), ("x", pa.float64()), (BY, pa.float64()), ("_hash", pa.int64())]),
    sinks=(),
    feeds=True,
    times=False,
)
CHANGES = pa.schema(
    [("k", pa.string()), ("x", pa.float64()), ("_kind", pa.string()), ("_time", TIME), ("_hash", pa.int64())]
)


def change(key: str, value: float | None, kind: str, time: int) -> Row:
    return {"k": key, "x": value, "_kind": kind, "_time": time, "_hash": int(key) % 70}  # each hash is of three keys


def in_order(table: dict[str, float | None]) -> list[tuple[str, float | None]]:
    """Largest first, NaN before all, nulls last, ties by key."""

    def place(row: tuple[str, float | None]) -> tuple[int, float, str]:
        key, value = row
        if value is None:
            return 2, 0.0, key
        return (0, 0.0, key) if math.isnan(value) else (1, -value, key)

    return sorted(table.items(), key=place)


def said(value: float | None) -> str:
    """0.0 and -0.0 are the same to those who read them."""
    return "null" if value is None else repr(value + 0.0)


@pytest.mark.parametrize("seed", seeds(8, 40))
def test_a_top_equals_plain_python(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    ticks = Ticks(tmp_path, (TOP,), (TOP.layout,), ("top",))
    table: dict[str, float | None] = {}
    shown: dict[str, tuple[str, int]] = {}
    refills = 0
    for number in range(60):
        keys = chance.sample(range(KEYS), chance.choice([1, 3, 10, KEYS]))
        leaving = 0.1
        if chance.random() < 0.2:  # the first ones go: those behind them were not in the buffer
            keys, leaving = [int(key) for key, _ in in_order(table)[:60]], 1.0
        rows = []
        for key in (f"{key:03}" for key in keys):
            if key in table and chance.random() < leaving:
                del table[key]
                rows.append(change(key, None, "delete", number))
                continue
            value = chance.choice([float(chance.randrange(9)), 0.0, -0.0, math.nan, None, chance.random()])
            rows.append(change(key, value, "update" if key in table else "insert", number))
            table[key] = value
        chance.shuffle(rows)
        left = ticks.tick(pa.Table.from_pylist(rows, CHANGES) if rows else None, None)["top"]
        if ticks.report.refill:
            refills += 1
            ticks.stages = (replace(TOP, refilling=True),)
            whole = [change(key, value, "insert", number) for key, value in table.items()]
            left = ticks.tick(pa.Table.from_pylist(whole, CHANGES), None)["top"]
            ticks.stages = (TOP,)
        for row in left:
            old = shown.get(row["k"])
            if row["_kind"] == "insert":
                assert old is None and row["_old"] is None
            else:
                assert (said(row["_old"]["x"]), row["_old"]["rank"]) == old
            if row["_kind"] == "delete":
                del shown[row["k"]]
            else:
                assert (said(row["x"]), row["rank"]) != old
                shown[row["k"]] = said(row["x"]), row["rank"]
        wanted = {key: (said(value), place) for place, (key, value) in enumerate(in_order(table)[:N], 1)}
        assert shown == wanted
        if chance.random() < 0.1:
            ticks.compact()
    assert refills


@pytest.mark.parametrize("keys", [40, 60, 5_000])
def test_a_table_that_comes_in_pieces_fills_the_same_top(tmp_path: Path, keys: int) -> None:
    stage = replace(TOP, refilling=True)
    ticks = Ticks(tmp_path, (stage,), (TOP.layout,), ("top",))
    chance = random.Random(keys)
    table: dict[str, float | None] = {f"{key:05}": float(chance.randrange(99)) for key in range(keys)}
    rows = pa.Table.from_pylist([change(key, value, "insert", 1) for key, value in table.items()], CHANGES)
    task = ticks._task(None, 0)
    for _ in run_stages((stage,), iter(rows.to_batches(max_chunksize=70)), task):
        pass
    shown = [row for batch in task.shelf.rows["top"] for row in batch.to_pylist()]
    assert [(row["k"], row["x"]) for row in sorted(shown, key=lambda row: row["rank"])] == in_order(table)[:N]
    (run,) = task.report.runs["top"]
    buffer = read_table(open_store(tmp_path), run_name("top", run.id))
    assert buffer.num_rows == min(keys, 2 * N + 50)
    assert set(buffer[WHOLE].to_pylist()) == {keys == 40}
