"""Bolts over Arrow batches: when the rows that they make happened."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hailstorm as hs
from hailstorm.columns import HIDDEN
from hailstorm.engine.stages.bolt import BatchBolt
from hailstorm.engine.stages.order import Order, Report
from hailstorm.engine.stages.task import Task
from hailstorm.errors import Location, RunError
from hailstorm.topology.times import goes_by_time_below

HERE = Location("app.py", 7)
RETURNS = pa.schema([("n", pa.int64())])


def ran(function: Callable[[pa.RecordBatch], Any], timed_at: Location | None = HERE) -> list[tuple[Any, Any, Any]]:
    """What became of the rows 1, 2, 3, which happened at 10, 20, 30: (n, time, offset)."""
    rows = [{"n": n, "_spout": "s", "_partition": 0, "_offset": n, "_time": n * 10} for n in (1, 2, 3)]
    batch = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("n", pa.int64()), *HIDDEN]))
    task = Task(Order(ledger="", cache="", scratch="", seq=1, epoch=1, now=0), 0, Report("test"))
    stage = BatchBolt("b", function, ("n",), RETURNS, "dead-letter", None, timed_at=timed_at)
    made = pa.Table.from_batches(list(stage(iter([batch]), task)))
    times = made.column("_time").cast(pa.int64()).to_pylist()
    assert not task.letters
    return list(zip(made.column("n").to_pylist(), times, made.column("_offset").to_pylist(), strict=True))


def test_a_filtered_batch_passes_its_times_on() -> None:
    assert ran(lambda batch: batch.filter(pc.greater(batch.column("n"), 1))) == [(2, 20, 2), (3, 30, 3)]


def test_times_that_are_passed_on_alone_are_taken() -> None:
    def twice(batch: pa.RecordBatch) -> pa.Table:
        two = batch.select(["n", "_time"])
        return pa.Table.from_batches([two, two])

    assert ran(twice) == [(n, n * 10, None) for n in (1, 2, 3, 1, 2, 3)]
    backwards = pa.array([2, 1, 0])
    assert [time for _, time, _ in ran(lambda batch: batch.select(["n", "_time"]).take(backwards))] == [30, 20, 10]


def test_as_many_rows_have_the_times_of_those_in_their_places() -> None:
    assert ran(lambda batch: pa.record_batch({"n": pc.add(batch.column("n"), 1)}))[0] == (2, 10, 1)


def test_rows_of_another_number_without_times_are_refused_where_time_matters() -> None:
    def first(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"n": batch.column("n").slice(0, 1)})

    with pytest.raises(RunError) as caught:
        ran(first)
    assert caught.value.at == HERE
    assert "made 1 rows of 3" in caught.value.what
    assert ran(first, timed_at=None) == [(1, None, None)]


def test_which_steps_go_by_the_times_of_a_stream() -> None:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT, at TIMESTAMP", event_time="at")

    def below(name: str) -> hs.Stream:
        return rows.arrow(name, lambda batch: batch, returns="k STRING, n INT, at TIMESTAMP")

    below("counted").fold("counts", by="k", n=hs.count())
    below("kept").fold("keys", by="k", ttl="1 day", n=hs.count())
    below("last").fold("newest", by="k", n=hs.latest("n"))
    below("summed").fold("sums", by="k", n=hs.count()).window("1 hour").fold("hourly", n=hs.count())
    below("seen").table("by_time", key="k")
    below("dated").table("by_column", key="k", at="at").fold("all", n=hs.count())
    again = below("renewed").arrow("again", lambda batch: batch, returns="k STRING, at TIMESTAMP", event_time="at")
    again.distinct("once", by="k", within="1 hour")
    names = ("counted", "kept", "last", "summed", "seen", "dated", "renewed")
    assert {name for name in names if goes_by_time_below(storm, name)} == {"kept", "last", "summed", "seen"}
