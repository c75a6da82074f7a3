"""Branches of one pass: side by side in threads where that is safe, in turn where users' functions run."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from hailstorm.engine.order import Order, Report
from hailstorm.engine.stages.chain import Batches, Fan, Task

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
            task.refuse(self.name, "no", "skip", (None, None, None), None)
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


def task() -> Task:
    return Task(Order(ledger="", cache="", scratch="", seq=1, now=0), 0, Report("words#1/0"))


def run(fan: Fan, task: Task) -> None:
    assert list(fan(iter([ROWS, ROWS]), task)) == []


def test_every_branch_gets_all_rows_and_reports_by_itself() -> None:
    ends = [Ends("a"), Ends("b"), Ends("c")]
    whole = task()
    run(Fan(((ends[0],), (ends[1],)), ((ends[2],),), threads=2), whole)
    assert [[rows for rows, _ in end.got] for end in ends] == [[3, 3]] * 3
    reports = whole.finish()
    assert [report.slot for report in reports] == ["words#1/0", "words#1/0/0", "words#1/0/1", "words#1/0/2"]
    assert [report.refill for report in reports] == [[], ["a", "a"], ["b", "b"], ["c", "c"]]
    assert [{step: found.count for step, found in r.failures.items()} for r in reports[1:]] == [
        {"a": 2},
        {"b": 2},
        {"c": 2},
    ]


def test_our_own_stages_run_side_by_side() -> None:
    barrier = threading.Barrier(2)
    run(Fan(((Meets(barrier),), (Meets(barrier),)), (), threads=2), task())


def test_functions_of_users_run_one_at_a_time_where_they_always_ran() -> None:
    ends = [Ends("a"), Ends("b")]
    run(Fan((), ((ends[0],), (ends[1],)), threads=2), task())
    assert {thread for end in ends for _, thread in end.got} == {threading.get_ident()}


@pytest.mark.parametrize("alone", [False, True])
def test_a_branch_that_fails_fails_the_pass(alone: bool) -> None:
    chains = ((Ends("a"),), (Fails(),))
    with pytest.raises(ValueError, match="a full disk"):
        run(Fan(() if alone else chains, chains if alone else (), threads=2), task())


def test_times_of_branches_add_up_to_what_the_pass_took() -> None:
    whole = task()
    began = time.perf_counter()
    run(Fan(((Ends("a", 0.02),), (Ends("b", 0.02),)), (), threads=2), whole)
    took = time.perf_counter() - began
    counted = sum(sum(report.timings.values()) for report in whole.finish())
    assert 0 < counted <= took
