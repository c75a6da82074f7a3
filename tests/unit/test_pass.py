"""Lines of one pass: beside each other in threads where that is safe, in turn where users' functions run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hailstorm.columns import HASH, HIDDEN, KIND, TIME
from hailstorm.engine.stages import deposit
from hailstorm.engine.stages import task as task_module
from hailstorm.engine.stages.chain import Line, Pass, Stage, run_stages
from hailstorm.engine.stages.deposit import Deliver, GiveErrors, Outlet
from hailstorm.engine.stages.failure import StageFailed
from hailstorm.engine.stages.order import Order, Report
from hailstorm.engine.stages.rows import ReadWhole
from hailstorm.engine.stages.task import Batches, Shelf, Task
from hailstorm.ledger import compaction
from hailstorm.ledger.commit import Run
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.stores.store import Store, read_table
from tests.unit.stage_ticks import Ticks

ROWS = pa.record_batch({"n": [1, 2, 3]})


@dataclass
class Ends:
    """A branch that remembers the rows it got and in which thread, and reports under its own name."""

    name: str
    seconds: float = 0.0
    got: list[tuple[int, int]] = field(default_factory=list)

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            time.sleep(self.seconds)
            self.got.append((batch.num_rows, threading.get_ident()))
            task.report.refill.append(self.name)
            task.refuse(self.name, "no", "skip", (None, None, None), None, batch.slice(0, 1))
        yield from ()


@dataclass
class Meets:
    """A branch that goes on only when another one has come here, too."""

    barrier: threading.Barrier

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        list(batches)
        self.barrier.wait(timeout=30)
        yield from ()


@dataclass
class Fails:
    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        raise ValueError("a full disk, say")
        yield from ()


@dataclass
class Users(Ends):
    calls_users = True


@dataclass
class Leaves:
    name: str

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        task.leave(self.name, pa.Table.from_batches(list(batches)))
        yield from ()


@dataclass
class Reads:
    names: tuple[str, ...]

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for name in self.names:
            yield from task.rows_left(name, 0, 1)


def run(*lines: Line) -> Task:
    whole = Pass("words#1", lines, 2, None, ends=True)  # type: ignore[arg-type]
    task = whole.task(Order(ledger="", cache="", scratch="", seq=1, epoch=1, now=0), 0)
    whole.run([ROWS, ROWS], task)
    return task


def side_by_side(*stages: Stage) -> Task:
    return run(*(Line(f"line{number}", (stage,)) for number, stage in enumerate(stages)))


def test_every_line_gets_all_rows_and_reports_by_itself() -> None:
    ends = [Ends("a"), Ends("b"), Users("c")]
    reports = side_by_side(*ends).finish()
    assert [[rows for rows, _ in end.got] for end in ends] == [[3, 3]] * 3
    assert [report.slot for report in reports] == ["words#1/0", *(f"words#1/0/line{number}" for number in range(3))]
    assert [report.refill for report in reports] == [[], ["a", "a"], ["b", "b"], ["c", "c"]]
    assert [{step: found.count for step, found in r.failures.items()} for r in reports[1:]] == [
        {"a": 2},
        {"b": 2},
        {"c": 2},
    ]


def test_a_line_reads_what_others_leave_also_twice_and_from_several() -> None:
    end, both = Ends("a"), Ends("b")
    run(
        Line("x", (Leaves("x"),)),
        Line("y", (Leaves("y"),)),
        Line("a", (Reads(("x",)), end), ("x",)),
        Line("b", (Reads(("x", "y", "x")), both), ("x", "y")),
    )
    assert sum(rows for rows, _ in end.got) == 6
    assert sum(rows for rows, _ in both.got) == 18


def test_our_own_stages_run_beside_each_other() -> None:
    barrier = threading.Barrier(2)
    side_by_side(Meets(barrier), Meets(barrier))


def test_functions_of_users_run_one_at_a_time_where_they_always_ran() -> None:
    ends = [Users("a"), Users("b")]
    side_by_side(*ends)
    assert {thread for end in ends for _, thread in end.got} == {threading.get_ident()}


@pytest.mark.parametrize("other", [Ends("a"), Users("a")])
def test_a_line_that_fails_fails_the_pass(other: Ends) -> None:
    with pytest.raises(ValueError, match="a full disk"):
        side_by_side(other, Fails())


def test_times_of_lines_add_up_to_what_the_pass_took() -> None:
    began = time.perf_counter()
    whole = side_by_side(Ends("a", 0.02), Ends("b", 0.02))
    took = time.perf_counter() - began
    counted = sum(sum(report.timings.values()) for report in whole.finish())
    assert 0 < counted <= took


@dataclass
class Refuses:
    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            for index in range(batch.num_rows):
                task.refuse("odd", "no", "dead-letter", ("s", 0, index), b"", batch.slice(index, 1))
                assert len(task.letters) < 10
        yield from ()


def test_letters_that_are_read_as_a_stream_are_handed_on_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "_MOST_LETTERS", 10)
    order = Order(
        ledger=str(tmp_path), cache=str(tmp_path / "cache"), scratch=str(tmp_path / "s"), seq=1, epoch=1, now=5
    )
    task = Task(order, 0, Report("test"), Shelf(kept=frozenset({"odd.errors"})))
    stages = (Refuses(), GiveErrors("odd", Outlet("odd.errors", ("sink",), feeds=True)))
    list(run_stages(stages, iter([pa.record_batch({"n": range(35)})]), task))
    task.finish()
    read = pa.Table.from_batches(task.shelf.rows["odd.errors"])
    assert read["offset"].to_pylist() == list(range(35))
    assert [file.rows for file in task.report.outbox["sink"]] == [10, 10, 10, 5]
    assert [file.rows for file in task.report.letters] == [10, 10, 10, 5]


def test_a_large_table_is_read_and_sent_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LARGEST_RUN", 100)
    monkeypatch.setattr(deposit, "_MOST_BYTES", 2_000)
    layout = Layout("counts", ("k",))
    ticks = Ticks(tmp_path, (), (layout,), ())
    numbers = np.arange(1_000)
    for times in (1, 2):
        task = ticks._task(None, 0)
        some = numbers if times == 1 else numbers[::2]
        hashes = pa.array(some * 2**50 - 2**58)
        columns = {"k": pa.array(some), HASH: hashes, "n": pa.array(some * times)}
        task.state(layout).write(columns, pa.repeat(pa.scalar(times, TIME), len(some)))
        ticks.seq += 1
        ticks.runs = {"counts": (*ticks.runs.get("counts", ()), *task.report.runs["counts"])}
    schema = pa.schema([("k", pa.int64()), ("n", pa.int64()), (KIND, pa.string()), *HIDDEN, (HASH, pa.int64())])
    task = ticks._task(None, 0)
    stages = (ReadWhole(layout, schema, ""), Deliver("counts", ("sink",)))
    sizes = [batch.num_rows for batch in run_stages(stages, iter([pa.record_batch({"id": [0]})]), task)]
    assert max(sizes) <= 250, "the two layers of a range"
    files = task.report.outbox["sink"]
    assert len(files) > 3
    rows = [row for file in files for row in read_table(task.store, file.path).to_pylist()]
    assert sorted((row["k"], row["n"]) for row in rows) == [(n, n * (2 - n % 2)) for n in range(1_000)]


def _write(task: Task, name: str, first: int, count: int) -> None:
    numbers = np.arange(first, first + count)
    columns = {"k": pa.array(numbers), HASH: pa.array(numbers), "n": pa.array(numbers)}
    task.state(Layout(name, ("k",))).write(columns, pa.repeat(pa.scalar(0, TIME), count))


def test_large_runs_are_written_beside_the_stages_and_reported_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_module, "_LARGE_RUN", 100)
    task = Ticks(tmp_path, (), (Layout("counts", ("k",)),), ())._task(None, 0)
    for name, count in (("counts", 500), ("counts", 5), ("other", 5)):
        _write(task, name, 0, count)
    assert set(task.report.runs) == {"other"}
    (report,) = task.finish()
    assert {name: [run.rows for run in runs] for name, runs in report.runs.items()} == {
        "other": [5],
        "counts": [500, 5],
    }
    assert all((tmp_path / name).exists() for name in report.files())


def test_what_was_written_beside_a_failure_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_module, "_LARGE_RUN", 100)
    task, written = Ticks(tmp_path, (), (Layout("counts", ("k",)),), ())._task(None, 0), task_module.write_run

    def full(store: Store, table: str, *rest: Any, **options: Any) -> Run:
        if table == "full":
            raise OSError(28, "No space left on device")
        return written(store, table, *rest, **options)

    monkeypatch.setattr(task_module, "write_run", full)
    with pytest.raises(StageFailed, match="No space left"), task.without_traces_of_failure():
        for name in ("counts", "full", "other"):
            _write(task, name, 0, 500)
        task.finish()
    assert not list((tmp_path / "state").rglob("*.parquet"))
