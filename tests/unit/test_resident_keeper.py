"""The keeper of a resident worker: the right plan, one at a time, no hurry after failures, nobody left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from hailstorm.engine.resident import keeper as keepers
from hailstorm.engine.resident.keeper import Keeper
from hailstorm.engine.resident.resident import Refused


@dataclass
class Worker:
    passes: str
    memory: int = 0
    ticks: int = 0
    lost: str = ""
    ended: threading.Event = field(default_factory=threading.Event)
    dismissed: threading.Event = field(default_factory=threading.Event)

    def is_there(self) -> bool:
        return not self.lost

    def dismiss(self, why: str) -> None:
        self.lost = why
        self.dismissed.set()

    def end(self) -> None:
        self.ended.set()


@dataclass(frozen=True, eq=False)
class Plan:
    passes: str
    can_be_resident: bool = True


class Spark:
    """Starts workers when it is allowed to."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.allowed = threading.Event()
        self.allowed.set()
        self.refuses = ""
        self.is_here, self.has_a_slot = True, True
        self.now = 1_000.0

    def start(self, spark: object, passes: str, wanted: Callable[[], bool]) -> Worker:
        self.allowed.wait(10)
        if self.refuses:
            raise ValueError(self.refuses)
        self.workers.append(Worker(passes))
        return self.workers[-1]


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    made = Spark()
    monkeypatch.setattr(keepers, "start_resident", made.start)
    monkeypatch.setattr(keepers, "is_on_this_machine", lambda _: made.is_here)
    monkeypatch.setattr(keepers, "has_a_slot_for_a_resident", lambda _: made.has_a_slot)
    monkeypatch.setattr(keepers, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(keepers, "time", SimpleNamespace(monotonic=lambda: made.now))
    yield made
    made.allowed.set()


def kept(spark: Spark, told: list[str] | None = None) -> Any:
    return Keeper(None, 1_000, (told if told is not None else []).append)  # type: ignore[arg-type]


def settle(keeper: Any) -> None:
    if (starting := keeper._starting) is not None:
        starting.join(10)


def test_nobody_waits_for_a_worker_and_then_it_is_there(spark: Spark) -> None:
    keeper, plan = kept(spark), Plan("a")
    spark.allowed.clear()
    assert keeper.resident_for(plan) is None
    spark.allowed.set()
    settle(keeper)
    assert keeper.resident_for(plan) is spark.workers[0]
    assert len(spark.workers) == 1


def test_on_a_cluster_a_worker_gives_the_last_slot_back_also_while_a_tick_waits_for_it(spark: Spark) -> None:
    told: list[str] = []
    keeper, plan = kept(spark, told), Plan("a")
    spark.is_here = False
    worker = keeper.resident_for(plan, wait=True)
    assert not worker.dismissed.wait(0.1)
    spark.has_a_slot = False  # another executor has died; nobody asks the keeper, because a job waits for a slot
    assert worker.dismissed.wait(10)
    spark.refuses = "no slot"
    keeper.resident_for(plan)
    assert told == ["the resident worker is lost: Spark needs its slot"]
    keeper.stop()


def test_where_none_will_ever_start_none_is_tried_again_and_the_reason_is_told_once(
    spark: Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def refuse(*_: object) -> None:
        tries.append(1)
        raise Refused("its connection is not encrypted")

    monkeypatch.setattr(keepers, "start_resident", refuse)
    told: list[str] = []
    keeper, plan = kept(spark, told), Plan("a")
    for _ in range(5):
        assert keeper.resident_for(plan, wait=True) is None
    assert len(tries) == len(told) == 1
    assert "not encrypted" in told[0]


def test_a_plan_that_needs_the_jvm_gets_none(spark: Spark) -> None:
    keeper = kept(spark)
    assert keeper.resident_for(Plan("a", can_be_resident=False), wait=True) is None
    assert spark.workers == []


def test_a_worker_of_an_old_plan_is_never_given_to_a_new_one(spark: Spark) -> None:
    keeper, old, new = kept(spark), Plan("same"), Plan("same")
    spark.allowed.clear()
    keeper.resident_for(old)
    keeper.resident_for(new)
    spark.allowed.set()
    settle(keeper)
    assert keeper.resident_for(new) is None
    assert spark.workers[0].ended.wait(10)
    assert keeper.resident_for(new, wait=True) is spark.workers[1]
    assert keeper.resident_for(old) is None
    assert spark.workers[1].ended.wait(10)


def test_a_plan_that_changes_all_the_time_gets_no_workers(spark: Spark) -> None:
    keeper = kept(spark)
    keeper.resident_for(Plan("first"))
    settle(keeper)
    for _ in range(20):
        spark.now += 1
        plan = Plan("next")
        assert keeper.resident_for(plan) is None
        settle(keeper)
    assert len(spark.workers) == 1
    spark.now += 10
    keeper.resident_for(plan)
    settle(keeper)
    assert keeper.resident_for(plan) is spark.workers[1]


def test_a_worker_that_is_lost_is_replaced_at_once_and_those_that_die_young_after_longer_and_longer_waits(
    spark: Spark,
) -> None:
    told: list[str] = []
    keeper, plan = kept(spark, told), Plan("a")
    waits = []
    for number in range(1, 12):
        asked = spark.now
        while len(spark.workers) < number:
            keeper.resident_for(plan)
            settle(keeper)
            spark.now += 0.25
        waits.append(spark.now - asked)
        spark.workers[-1].lost = "it has hung up"
    assert waits[:2] == [0.25, 0.25]
    assert waits[2:] == sorted(waits[2:])
    assert 60 <= waits[-1] <= 61
    assert told == ["the resident worker is lost: it has hung up"] * 10


def test_a_worker_that_has_run_many_ticks_was_no_failure(spark: Spark) -> None:
    keeper, plan = kept(spark), Plan("a")
    for number in range(1, 6):
        keeper.resident_for(plan)
        settle(keeper)
        assert len(spark.workers) == number
        spark.workers[-1].ticks, spark.workers[-1].lost = 1_000, "it has hung up"


def test_a_worker_that_has_grown_is_replaced_and_ended(spark: Spark) -> None:
    told: list[str] = []
    keeper, plan = kept(spark, told), Plan("a")
    first = keeper.resident_for(plan, wait=True)
    first.memory = 2_000
    assert keeper.resident_for(plan, wait=True) is spark.workers[1]
    assert first.ended.wait(10)
    assert "more than resident_memory allows" in told[0]


def test_what_does_not_start_is_told_and_tried_again_later(spark: Spark) -> None:
    told: list[str] = []
    keeper, plan = kept(spark, told), Plan("a")
    spark.refuses = "no slot"
    assert keeper.resident_for(plan, wait=True) is None
    spark.refuses = ""
    assert keeper.resident_for(plan, wait=True) is spark.workers[0]
    assert told == ["no resident worker has started: no slot"]


def test_stopping_ends_a_worker_that_is_there_and_one_that_comes_too_late(spark: Spark) -> None:
    keeper, plan = kept(spark), Plan("a")
    there = keeper.resident_for(plan, wait=True)
    keeper.stop()
    assert there.ended.is_set()
    assert keeper.resident_for(plan, wait=True) is None

    keeper = kept(spark)
    spark.allowed.clear()
    keeper.resident_for(plan)
    starting = keeper._starting
    threading.Timer(0.1, spark.allowed.set).start()
    keeper.stop()
    starting.join(10)
    assert spark.workers[-1].ended.is_set()
