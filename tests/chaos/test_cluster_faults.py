"""One run on a cluster, with its ledger and a log in an object store, that suffers one fault after another: of the
store, of executors, of the driver. After each it goes on, and what it has committed is what the oracle says."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.cluster import HERE, Cluster, cluster
from tests.chaos.cluster_storm import Storm, executor_of, kill, parent
from tests.chaos.world import wait_for
from tests.connectors.servers.s3 import UnkindProxy, known_here

pytest.importorskip("obstore")
pytestmark = [pytest.mark.chaos, pytest.mark.spark]
__all__ = ["cluster"]  # a fixture

# Names of machines, which Java must be able to look up.
HERE_NOW, ELSEWHERE = "127.0.0.101", "127.0.0.102"


@pytest.fixture(scope="module")
def storm(cluster: Cluster) -> Iterator[Storm]:
    shutil.copy(HERE / "cluster_fault_app.py", cluster.near / "storm.py")
    shutil.rmtree(cluster.near / "out", ignore_errors=True)
    known = known_here(cluster.server.environment(), cluster.near / "judge")
    with UnkindProxy.to(cluster.server.port) as proxy, known:
        made = Storm(cluster, proxy)
        try:
            first = made.start_driver(HERE_NOW)
            wait_for(lambda: "reading the ledger" in first.said(), "Spark")
            made.next_tick(time.monotonic())
            made.start_driver(ELSEWHERE)  # it gets ready while the first one suffers
            yield made
        finally:
            made.close()


@pytest.fixture(autouse=True)
def kind_again(storm: Storm) -> Iterator[None]:
    yield
    storm.proxy.fault = lambda method, path: None


# The store

COMMIT, STATE, SCRATCH, SAID = "/storm/commits/", "/storm/state/", "/storm/scratch/", "/storm-heard/"


@pytest.mark.parametrize(
    ("what", "method", "part", "times"),
    [
        ("lost", "PUT", COMMIT, 1),
        ("503", "PUT", COMMIT, 2),
        ("503 after", "PUT", COMMIT, 2),
        ("cut", "PUT", COMMIT, 1),
        ("late", "PUT", COMMIT, 1),
        ("lost", "PUT", STATE, 3),
        ("503", "PUT", STATE, 3),
        ("503 after", "PUT", STATE, 2),
        ("cut", "PUT", STATE, 2),
        ("late", "PUT", STATE, 2),
        ("lost", "PUT", SCRATCH, 1),
        ("cut", "GET", SCRATCH, 2),
        ("503", "GET", SCRATCH, 2),
        ("half", "GET", SCRATCH, 1),
        ("cut", "GET", SAID, 1),
        ("half", "GET", SAID, 1),
    ],
)
def test_an_answer_that_is_lost_late_or_refused_stops_nothing(
    storm: Storm, what: str, method: str, part: str, times: int
) -> None:
    with storm.hurt(f"{what}: {method} {part.strip('/').rpartition('/')[2]}"):
        done = storm.once(what, method, part, times)
        wait_for(done.is_set, f"{times} {method} {part}")


def test_a_store_that_is_gone_for_a_while_is_waited_for(storm: Storm) -> None:
    with storm.hurt("the store is gone for 6 s"), storm.proxy.gone():
        time.sleep(6)


# Executors


def test_an_executor_dies_while_it_writes_state(storm: Storm) -> None:
    with storm.hurt("executor killed"):
        storm.task_that("PUT", STATE, lambda task: kill(executor_of(task)))


def test_an_executor_dies_while_it_reads_what_the_wave_before_has_left(storm: Storm) -> None:
    with storm.hurt("executor killed"):
        storm.task_that("GET", SCRATCH, lambda task: kill(executor_of(task)))


def test_all_executors_die_at_once(storm: Storm) -> None:
    def kill_all(task: int) -> None:
        for executor in storm.executors():
            kill(executor)

    with storm.hurt("all executors killed"):
        storm.task_that("PUT", STATE, kill_all)


@pytest.mark.parametrize(("who", "whom"), [("task", lambda task: task), ("daemon", parent)])
def test_a_python_process_of_an_executor_dies(storm: Storm, who: str, whom: Callable[[int], int]) -> None:
    with storm.hurt(f"Python {who} killed"):
        storm.task_that("PUT", STATE, lambda task: kill(whom(task)))


def test_a_task_that_hangs_has_a_duplicate_and_one_of_the_two_is_committed(storm: Storm) -> None:
    """It hangs after it has written its state, so what is committed meanwhile is its duplicate's. Then it goes on."""
    with storm.hurt("task hangs"):
        task = storm.task_that("PUT", STATE, lambda task: os.kill(task, signal.SIGSTOP))
        storm.next_tick(time.monotonic())
        os.kill(task, signal.SIGCONT)


def test_an_executor_that_is_slow_goes_on_later(storm: Storm) -> None:
    """Its whole machine stands still for some seconds: others wait for it, or do its work."""
    with storm.hurt("executor stands still"):
        slow = storm.executors()[0]
        storm.task_that("PUT", STATE, lambda task: os.kill(slow, signal.SIGSTOP))
        time.sleep(4)
        os.kill(slow, signal.SIGCONT)


def test_a_machine_is_gone_and_another_one_comes(storm: Storm) -> None:
    with storm.hurt("machine gone"):
        gone = storm.cluster.workers.pop(0)
        storm.cluster.end(gone)
    with storm.hurt("machine comes"):
        storm.cluster.workers.append(storm.cluster.add_worker("another"))


def test_three_more_machines_come_and_two_of_five_go(storm: Storm) -> None:
    """Between ticks, with no step of its own: ranges are cut anew for as many tasks as there are cores."""
    with storm.hurt("from two machines to five"):
        storm.cluster.workers += [storm.cluster.add_worker(name) for name in ("third", "fourth", "fifth")]
        wait_for(lambda: len(storm.executors()) == 5, "five executors")
        storm.next_tick(time.monotonic())
    with storm.hurt("from five machines to three"):
        for _ in range(2):
            storm.cluster.end(storm.cluster.workers.pop())


def test_an_executors_copies_of_the_state_are_deleted(storm: Storm) -> None:
    def delete(task: int) -> None:
        environment = Path(f"/proc/{task}/environ").read_bytes().split(b"\0")
        cache = next(entry for entry in environment if entry.startswith(b"HAILSTORM_CACHE="))
        shutil.rmtree(cache.partition(b"=")[2].decode(), ignore_errors=True)

    with storm.hurt("copies deleted"):
        storm.task_that("PUT", STATE, delete)


# The driver


def test_a_driver_dies_before_its_commit_and_one_on_another_machine_goes_on(storm: Storm) -> None:
    """It finds an empty cache. It cannot see that the process is gone, and waits for its sign of life."""
    dying = storm.driver
    storm.wait_until_it_stands_by(storm.drivers[-1])
    with storm.hurt("driver killed before its commit"):
        dying.order.write_text("before-commit")
        assert storm.ended() == -signal.SIGKILL, dying.said()
