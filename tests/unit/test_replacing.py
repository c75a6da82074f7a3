"""State that was made elsewhere takes the place of some steps'; and the difference of two tables, as sinks get it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hailstorm as hs
from hailstorm.engine.ticks.replacing import Replacement, with_all_below
from hailstorm.history.compensating import difference
from hailstorm.ledger.commit import DataFile, Run, SinkShape, Stamp, StepShape
from hailstorm.ledger.live import Live, changed_runs
from hailstorm.ledger.stores import open_store

SHAPE = StepShape(
    kind="fold",
    key=("k",),
    values=("n",),
    tables={"counts": ("k",), "counts.agenda": ("k",), "counts.next": ("k",)},
    agendas={"counts.agenda": "event", "counts.next": "tick"},
)


def run(name: str, seq: int) -> Run:
    return Run(id=name, seq=seq, rows=1, bytes=1, first=0, last=9)


def shop() -> hs.Topology:
    storm = hs.Topology("shop")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    counts = rows.fold("counts", by="k", n=hs.count())
    counts.where("many", "n > 1").sink("many_sink", hs.Console())
    counts.top("best", 2, by="n")
    rows.fold("others", by="k", n=hs.count()).sink("others_sink", hs.Console())
    return storm


def test_a_step_brings_along_all_below_it_that_keeps_state() -> None:
    stateful = {"counts", "best", "others"}
    assert with_all_below(shop(), ("counts",), stateful) == ("counts", "best")
    assert with_all_below(shop(), ("rows",), stateful) == ("counts", "best", "others")
    assert with_all_below(shop(), ("many",), stateful) == ()


def test_runs_keep_their_order_and_are_older_than_all_that_comes(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for name in ("a", "b", "c"):
        store.put(f"backfill/x/state/counts/{name}.parquet", b"rows")
    store.put("backfill/x/errors/e.parquet", b"letters")
    head = Live(
        commit=7,
        runs={"counts": (run("old", 5),), "others": (run("kept", 6),)},
        steps={"counts": SHAPE},
        reached={"counts.agenda": 1, "others.agenda": 2},
        coverage={"counts": {"rows": {"0": ((5, 9),)}}, "others": {"rows": {"0": ((0, 9),)}}},
    )
    new = Replacement(
        ("counts",),
        "backfill/x",
        {"counts": (run("b", 40), run("a", 3), run("c", 40))},
        {"counts": {"rows": {"0": ((0, 9),)}}},
        {"counts.agenda": 70, "counts.next": 39},
        (DataFile(path="errors/e.parquet", rows=1, bytes=7),),
        ("errors/old.parquet",),
    )
    sinks = {name: SinkShape(since=0, is_table=True, fingerprint="f") for name in ("many_sink", "others_sink")}
    found = new.fields(shop(), store, head, {"counts": SHAPE, "others": SHAPE}, sinks, Stamp(8, 1))
    change = found["state"]["counts"]
    assert change.removed == ("old",)
    assert [one.seq for one in changed_runs(head.runs["counts"], change)] == [7, 8, 8]
    assert all(store.get(f"state/counts/{one.id}.parquet") == b"rows" for one in change.added)
    assert list(found["state"]) == ["counts"], "others are left alone"
    assert found["reached"] == {"others.agenda": 2, "counts.agenda": 70, "counts.next": 7}
    assert found["coverage"]["counts"] == {"rows": {"0": ((0, 9),)}}
    assert {name: shape.since for name, shape in found["sinks"].items()} == {"many_sink": 8, "others_sink": 0}
    assert store.get(found["dead_letters"][0].path) == b"letters"
    assert found["retried"] == ("errors/old.parquet",)


@pytest.mark.parametrize("seed", range(20))
def test_a_difference_makes_one_table_of_the_other(seed: int) -> None:
    chance = random.Random(seed)

    def drawn() -> dict[int, Any]:
        return {key: chance.choice([None, 1, 2]) for key in chance.sample(range(8), chance.randrange(8))}

    def table(rows: dict[int, Any]) -> pa.Table | None:
        columns = {"k": pa.array(rows, pa.int64()), "n": pa.array(rows.values(), pa.int64())}
        return pa.table(columns) if rows else None

    before, after = drawn(), drawn()
    changes = difference(table(before), table(after), ["k"])
    held = dict(before)
    for row in changes.to_pylist() if changes is not None else ():
        assert row["_old"] == ({"n": before[row["k"]]} if row["k"] in before else None)
        assert (row["_kind"] == "insert") == (row["k"] not in before)
        assert row["_kind"] != "update" or row["n"] != before[row["k"]], "what is equal is no change"
        if row["_kind"] == "delete":
            del held[row["k"]]
        else:
            held[row["k"]] = row["n"]
    assert held == after
