"""Large merges as Spark tasks give the state that the driver would have merged by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from hailstorm.engine.ticks.merging import MergeInTasks
from hailstorm.ledger import compaction
from hailstorm.ledger.commit import Run, Stamp
from hailstorm.ledger.compaction import Merge, compact, due
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.runs import run_name, write_run
from hailstorm.ledger.stores.store import read_table


def layers(ledger: Ledger) -> list[Run]:
    """Ten layers of a thousand random keys, some of which are deleted."""
    chance = np.random.default_rng(7)
    runs = []
    for seq in range(1, 11):
        keys = np.unique(chance.integers(0, 5_000, 1_000))
        hashes = keys * 1_000_003 - 2_000_000_000
        values = {"_hash": hashes, "k": keys, "n": chance.integers(0, 99, len(keys)), "_deleted": keys % 5 == seq % 5}
        runs.append(write_run(ledger.store, "counts", pa.table(values), Stamp(seq, 1)))
    return runs


def rows(ledger: Ledger, runs: tuple[Run, ...]) -> list[dict[str, object]]:
    found = [read_table(ledger.store, run_name("counts", run.id)) for run in sorted(runs, key=lambda run: run.first)]
    return pa.concat_tables(found).select(["_hash", "k", "n"]).to_pylist()


def test_tasks_merge_what_the_driver_would(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LARGEST_RUN", 2_000)
    monkeypatch.setattr(compaction, "IN_TASKS", 4_000)
    ledger = Ledger(tmp_path / "ledger", create=True)
    runs = layers(ledger)
    asked: list[Merge] = []
    in_tasks = MergeInTasks(spark, ledger.store.address, ledger.copies, tasks=3)

    def elsewhere(merge: Merge) -> list[Run] | None:
        asked.append(merge)
        return in_tasks(merge)

    place = (ledger.store, ledger.cache, "counts", ("k",), runs)
    here = compact(*place, Stamp(11, 1), everything=True)
    there = compact(*place, Stamp(11, 2), everything=True, elsewhere=elsewhere)
    assert here is not None and there is not None and len(asked) == 1
    assert len(asked[0].ranges()) > 3
    assert sorted(here.removed) == sorted(there.removed)
    assert rows(ledger, here.added) == rows(ledger, there.added)
    assert {run.seq for run in there.added} == {10}


def test_each_job_merges_one_range_of_each_owner_at_most(spark: SparkSession) -> None:
    low = -(1 << 63)
    ranges = [(low, low + 9), (low + 10, -1), (0, 1 << 62), ((1 << 62) + 1, (1 << 62) + 9), ((1 << 62) + 10, 1 << 63)]
    rounds = MergeInTasks(spark, "nowhere", "none", tasks=2)._rounds(ranges)
    assert rounds == [[(0, low), (2, 0)], [(1, low + 10), (3, (1 << 62) + 1)], [(4, (1 << 62) + 10)]]


def test_a_merge_that_tasks_cannot_do_is_left_to_the_driver(spark: SparkSession, tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger", create=True)
    merge = due("counts", ("k",), layers(ledger), Stamp(11, 1), everything=True)
    assert merge is not None
    for run in merge.runs:
        ledger.store.delete(run_name("counts", run.id))
    assert MergeInTasks(spark, ledger.store.address, ledger.copies, tasks=3)(merge) is None
