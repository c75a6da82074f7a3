"""The driver's end of a resident worker, against a worker that is played by the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest

from hailstorm.engine.resident.messages import Beat, Done, Failed, Here, as_word, encoded
from hailstorm.engine.resident.resident import Refused, Resident, Unfinished, start_resident
from hailstorm.engine.resident.wire import LARGEST_FRAME, Wire
from hailstorm.engine.stages.failure import StageFailed
from hailstorm.engine.stages.order import Order, Report
from hailstorm.errors import RunError

ORDER = Order(ledger="l", cache="c", scratch="s", seq=3, epoch=1, now=5)
DONE = Done([Report("pass#1/0")], 77)


class Job:
    ended = False

    def end(self) -> None:
        self.ended = True


@pytest.fixture
def ends() -> Iterator[tuple[Resident, Wire]]:
    left, right = socket.socketpair()
    with left, right:
        driver, worker = Wire(left, 0.3), Wire(right, None)
        driver._largest = worker._largest = LARGEST_FRAME  # as after the greeting
        job: Any = Job()
        yield Resident(driver, job, 1, is_near=True), worker


def answers(worker: Wire, *said: Any) -> None:
    def answer() -> None:
        assert as_word(worker.receive()).order == ORDER
        for one in said:
            worker.send(encoded(one))

    threading.Thread(target=answer, daemon=True).start()


def test_an_answer_ends_an_order_however_many_beats_come_first(ends: tuple[Resident, Wire]) -> None:
    resident, worker = ends
    answers(worker, Beat(), Beat(), DONE)
    assert resident.run("pass#1", ORDER) == DONE.reports
    assert (resident.memory, resident.ticks, resident.lost) == (77, 1, "")


def test_a_beat_that_comes_after_its_answer_means_nothing(ends: tuple[Resident, Wire]) -> None:
    resident, worker = ends
    answers(worker, DONE, Beat())
    resident.run("pass#1", ORDER)
    assert resident.is_there()
    answers(worker, Beat(), DONE)
    assert resident.run("pass#1", ORDER) == DONE.reports


def test_one_that_another_thread_lets_go_says_why_at_once(ends: tuple[Resident, Wire]) -> None:
    resident, _ = ends
    resident.dismiss("Spark needs its slot")
    assert not resident.is_there()
    assert resident.lost == "Spark needs its slot"
    with pytest.raises(Unfinished, match="needs its slot"):
        resident.run("pass#1", ORDER)


@pytest.mark.parametrize("setting", ["spark.network.crypto.enabled", "spark.ssl.enabled", "spark.ssl.rpc.enabled"])
def test_nothing_goes_over_a_network_in_the_clear_where_encryption_is_wanted(setting: str) -> None:
    spark = MagicMock()
    spark.sparkContext.master = "spark://far:7077"
    spark.sparkContext.getConf().get = lambda name, otherwise: "true" if name == setting else otherwise
    with pytest.raises(Refused, match=f"not encrypted, and {setting}"):
        start_resident(spark, {}, lambda: True)


def test_an_error_of_ours_is_the_same_error_here_and_the_worker_stays(ends: tuple[Resident, Wire]) -> None:
    resident, worker = ends
    answers(worker, Failed(f"StageFailed: {StageFailed(RunError(8, 'full', hint='make room'))}"))
    with pytest.raises(RunError, match="full") as caught:
        resident.run("pass#1", ORDER)
    assert not isinstance(caught.value, Unfinished)
    assert resident.is_there()


def test_any_other_error_leaves_the_order_unfinished_and_the_worker_stays(ends: tuple[Resident, Wire]) -> None:
    resident, worker = ends
    answers(worker, Failed("ValueError: hurt"))
    with pytest.raises(Unfinished, match="hurt"):
        resident.run("pass#1", ORDER)
    assert resident.is_there()


@pytest.mark.parametrize("beats", [0, 2])
def test_silence_in_the_middle_of_an_order_is_the_end(ends: tuple[Resident, Wire], beats: int) -> None:
    resident, worker = ends
    answers(worker, *[Beat()] * beats)
    with pytest.raises(Unfinished, match="silent"):
        resident.run("pass#1", ORDER)
    assert not resident.is_there()


def test_whoever_is_interrupted_in_an_order_never_hears_its_answer_as_that_of_another(
    ends: tuple[Resident, Wire], monkeypatch: pytest.MonkeyPatch
) -> None:
    resident, _ = ends

    def interrupted() -> bytes:
        raise SystemExit(130)

    monkeypatch.setattr(resident._wire, "receive", interrupted)
    with pytest.raises(SystemExit):
        resident.run("pass#1", ORDER)
    assert not resident.is_there()


def test_a_worker_that_has_left_or_speaks_unasked_is_not_there(ends: tuple[Resident, Wire]) -> None:
    resident, worker = ends
    assert resident.is_there()
    worker.send(encoded(Here(1)))
    assert not resident.is_there()
    assert resident.lost == "it speaks unasked"


def test_letting_go_hangs_up_and_ends_the_job(ends: tuple[Resident, Wire]) -> None:
    resident, worker = ends
    resident.end()
    assert worker.has_news(1.0)
    assert not resident.is_there()
    assert resident._job.ended  # type: ignore[attr-defined]
