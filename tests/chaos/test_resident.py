"""The resident worker dies, freezes, is cut off and grows, in every stage: the tick is run another way, exactly once.

One topology lives through all of it, in one Spark session. After every wound everything that it has is compared with
what a plain count over all input gives.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.resident import resident as driver_side
from hailstorm.engine.resident import wire
from hailstorm.engine.resident.resident import Resident
from hailstorm.ledger.reader import open_ledger
from hailstorm.testing import Driver
from tests.chaos.world import wait_for
from tests.chaos.wounds import wounding

pytestmark = [pytest.mark.chaos, pytest.mark.spark]

# The stages of the topology below, in the order in which a tick goes through them.
PLACES = [
    "words/ReadLog",
    "words/RowBolt",
    "counts/GroupRows",
    "counts/LookUp",
    "counts/WriteFold",
    "sizes/WriteFold",
    "top/KeepTop",
]

WORDS = ("hail", "rain", "snow", "sleet", "fog", "ice", "wind")


def storm() -> hs.Topology:
    made = hs.Topology("wounded", resident_memory="250 MB")
    lines = made.spout("lines", hs.Log("x"), schema="text STRING")
    words = lines.bolt(lambda line: ({"word": w} for w in line.text.split()), name="words", returns="word STRING")
    counts = words.fold("counts", by="word", n=hs.count())
    counts.fold("sizes", by="n", words=hs.count())
    counts.top("top", 3, by="n")
    words.fold("total", n=hs.count())
    return made


class House:
    """The driver that lives through everything, and all that it was ever fed."""

    def __init__(self, driver: Driver, file: Path) -> None:
        self.driver, self.file, self.fed = driver, file, Counter[str]()
        self.chance = random.Random(17)
        self.ticks = 0

    def tick(self, wound: str = "") -> str:
        """One tick, in which the worker is hurt. How it was run in the end."""
        if wound:
            self.file.write_text(wound)
        text = [" ".join(self.chance.choices(WORDS, k=4)) for _ in range(5)]
        self.fed.update(" ".join(text).split())
        self.driver.feed("lines", [{"text": line} for line in text])
        self.driver.advance()
        came = not self.file.exists()
        self.file.unlink(missing_ok=True)
        assert came, f"nothing came to {wound}"
        self.judge()
        return self.driver._negotiator.account.last.way

    def judge(self) -> None:
        """One commit per tick, and everything in it once."""
        self.ticks += 1
        commits = list(open_ledger(self.driver.ledger.root).commits())
        assert sum(commit.reason == "tick" for commit in commits) == self.ticks
        sizes = Counter(self.fed.values())
        best = sorted(self.fed.values(), reverse=True)[:3]
        assert Counter(row["word"] for row in self.driver.rows("words")) == self.fed
        assert {row["word"]: row["n"] for row in self.driver.table("counts")} == self.fed
        assert {row["n"]: row["words"] for row in self.driver.table("sizes")} == sizes
        assert sorted((row["n"] for row in self.driver.table("top")), reverse=True) == best
        assert self.driver.table("total") == [{"n": self.fed.total()}]

    def live_runs(self) -> set[str]:
        return {run.id for runs in self.driver.ledger.head.runs.values() for run in runs}

    @property
    def worker(self) -> Resident:
        """The worker that the next tick will use."""
        found = self.driver._negotiator._resident(wait=True)
        assert found is not None
        return found


@pytest.fixture(scope="module")
def house(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    file = tmp_path_factory.mktemp("wounds") / "wound"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "one_pass", wounding(file, Plan.one_pass))
        with Driver(storm(), spark, tasks=(0,)) as driver:
            yield House(driver, file)


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_the_stages_that_are_hurt_are_those_of_the_topology(house: House) -> None:
    places = [stage.place for one in house.driver._negotiator.plan(1).passes.values() for stage in _stages(one)]
    assert set(PLACES) <= set(places)


def _stages(one: Any) -> list[Any]:
    return [stage for line in one.lines for stage in line.stages if hasattr(stage, "place")]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("place", PLACES)
def test_a_worker_that_is_killed_in_a_stage_costs_nothing_but_time(house: House, place: str, moment: str) -> None:
    process = house.worker.process
    assert house.tick(f"{place}:{moment} killed") == "prepared"
    assert not is_running(process)
    assert house.worker.process != process
    assert house.tick() == "resident"


@pytest.mark.parametrize(
    "wound",
    ["counts/LookUp:after stopped", "top/KeepTop:after stopped", "words/RowBolt:before hangs"],
)
def test_a_worker_that_hangs_is_noticed_within_seconds_and_ended(house: House, wound: str) -> None:
    process = house.worker.process
    began = time.monotonic()
    assert house.tick(wound) == "prepared"
    assert time.monotonic() - began < 60, "the limit of a function that a user wrote is longer"
    assert house.tick() == "resident"
    assert house.worker.process != process
    wait_for(lambda: not is_running(process), "the worker that hangs to be ended")


def test_a_worker_that_wakes_up_after_its_tick_was_committed_changes_nothing(house: House) -> None:
    process = house.worker.process
    house.tick("counts/WriteFold:before stopped")
    os.kill(process, signal.SIGCONT)
    wait_for(lambda: not is_running(process), "the worker to see that nobody waits for it")
    assert house.tick() == "resident"


@pytest.mark.parametrize("how", ["exits", "leaves"])
def test_a_worker_that_leaves_in_the_middle_of_a_tick_is_replaced(house: House, how: str) -> None:
    process = house.worker.process
    assert house.tick(f"words/RowBolt:before {how}") == "prepared"
    assert house.worker.process != process


def test_an_error_of_no_known_kind_is_left_to_spark_and_the_worker_stays(house: House) -> None:
    process = house.worker.process
    assert house.tick("counts/LookUp:after fails") == "prepared"
    assert house.tick() == "resident"
    assert house.worker.process == process


def test_a_slow_stage_is_waited_for(house: House) -> None:
    process = house.worker.process
    assert house.tick("words/RowBolt:before is slow") == "resident"
    assert house.worker.process == process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_hurt_between_ticks_is_replaced(house: House, number: int) -> None:
    process = house.worker.process
    os.kill(process, number)
    time.sleep(0.2)
    house.tick()
    assert house.worker.process != process
    wait_for(lambda: not is_running(process), "the worker to be ended")
    assert house.tick() == "resident"


def test_a_worker_whose_socket_is_cut_ends_and_is_replaced(house: House) -> None:
    worker = house.worker
    worker._wire._connection.shutdown(socket.SHUT_RDWR)
    house.tick()
    wait_for(lambda: not is_running(worker.process), "the worker to end")
    assert house.worker.process != worker.process
    assert house.tick() == "resident"


def test_an_order_that_no_frame_can_hold_is_given_to_spark(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = house.worker
    monkeypatch.setattr(worker._wire, "_largest", 100)
    assert house.tick() == "prepared"
    assert house.tick() == "resident"


def test_a_worker_that_has_grown_is_replaced_between_ticks_and_its_memory_is_free(house: House) -> None:
    for _ in range(3):
        process = house.worker.process
        if house.tick("words/RowBolt:before grows") == "resident":
            break  # on a busy machine growing takes longer than a driver waits
    else:
        raise AssertionError("no worker has grown and lived")
    assert house.worker.process != process
    wait_for(lambda: not is_running(process), "the large worker to end")
    assert house.tick() == "resident"


def test_a_worker_never_looks_for_garbage_in_a_tick(house: House) -> None:
    assert house.tick("words/RowBolt:before tells") == "resident"
    enabled, frozen = house.file.with_suffix(".told").read_text().split()
    assert enabled == "False"
    assert int(frozen) > 50_000, "what is loaded when the worker starts"


def test_a_worker_lets_go_of_runs_that_are_not_live_any_more(house: House) -> None:
    worker, live = house.worker, house.live_runs()
    for _ in range(20):  # eight runs are merged into one
        before = live
        assert house.tick() == "resident"
        live = house.live_runs()
        maps = Path(f"/proc/{worker.process}/maps").read_text()
        mapped = {Path(line.split()[-1]).stem for line in maps.splitlines() if "/runs/" in line}
        assert mapped <= before | live


def test_after_all_of_that_nothing_waits_or_is_left_behind(house: House) -> None:
    assert house.tick() == "resident"
    process = house.worker.process
    house.driver.restart()
    wait_for(lambda: not is_running(process), "the worker to end with its run")
    assert house.tick() == "resident"


def test_a_stranger_who_does_not_know_the_secret_is_given_nothing(spark: SparkSession) -> None:
    with driver_side._listening(spark) as (listener, address), address.dial() as stranger:
        connection, _ = listener.accept()
        theirs = wire.Wire(stranger, patience=1.0)
        theirs._connection.sendall(b"\0\0\0\x40" + b"x" * 64)
        with pytest.raises(wire.HungUp, match="secret"):
            wire.Wire(connection, patience=1.0).admit(b"the secret")
        connection.close()
        assert len(theirs.receive()) == 32  # the challenge, and no word more
        with pytest.raises(wire.HungUp):
            theirs.receive()
