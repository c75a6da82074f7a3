"""Which tables tell that a time moved, and who never sees it."""

from __future__ import annotations

import pyarrow as pa

import hailstorm as hs
from hailstorm.ledger.keyed_state import changes, seen_changes
from hailstorm.topology.fingerprint import fingerprint
from hailstorm.topology.times import folds_times, times_matter


def topology(by: str | None) -> hs.Topology:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    counts = rows.fold("counts", by=["k", "n"], c=hs.count())
    sizes = counts.fold("sizes", by="k", c=hs.count())
    sizes.where("some", "c > 1").top("top", 3, by="c").fold("last", k=hs.latest("k", by=by))
    sizes.fold("total", c=hs.sum("c")).sink("out", hs.Console())
    return storm


def test_the_time_matters_above_what_reads_it_and_nowhere_else() -> None:
    storm = topology(by=None)
    tables = [step.name for step in storm.steps if step.is_table]
    assert {name for name in tables if times_matter(storm, name)} == {"counts", "sizes", "some", "top"}
    assert folds_times(storm, storm.step("sizes"))
    assert not folds_times(storm, storm.step("counts"))


def test_a_fold_that_has_to_keep_times_is_another_step() -> None:
    with_time, without = fingerprint(topology(by=None)), fingerprint(topology(by="c"))
    different = {name for name in with_time if with_time[name] != without[name]}
    assert different == {"sizes", "last"}


def test_a_change_of_the_time_alone_flows_on_and_is_not_seen() -> None:
    rows = changes(
        {"k": pa.array(["a", "b", "c"])},
        {"f": pa.array([float("nan"), 1.0, 2.0])},
        {"f": pa.array([float("nan"), 1.0, 3.0])},
        pa.array([True, True, True]),
        None,
        pa.array([1, 2, 3], pa.timestamp("us", tz="UTC")),
        pa.array([1, 2, 3]),
        pa.array([True, False, False]),
    )
    assert rows.column("k").to_pylist() == ["a", "c"]
    assert seen_changes(rows).column("k").to_pylist() == ["c"]
