"""A graceful stop: finish the tick, deliver, end with 0; a second signal ends at once; the next run goes on."""

from __future__ import annotations

import os
import signal
import time

import pytest

from hailstorm.ledger.reader import open_ledger
from tests.chaos.conftest import MakeWorld
from tests.chaos.judge import cursors, judge, judge_the_end
from tests.chaos.world import World, wait_for
from tests.jvm import WarmJvm

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


def everything_committed_is_delivered(world: World) -> None:
    judge(world)
    reader = open_ledger(world.ledger)
    assert {sink: cursors(world, reader)[sink] for sink in reader.live().outboxes} == reader.live().outboxes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_middle_of_ticks_ends_the_run_well(old_world: World, number: int) -> None:
    with old_world.feeding():
        driver = old_world.start()
        old_world.wait_for_commits(driver, 4)
        time.sleep(old_world.chance.uniform(0, 0.5))
        driver.send_signal(number)
        said = old_world.ended(driver, code=0)
    assert "Stopped at commit" in said
    assert not (old_world.ledger / "lease.json").exists()
    everything_committed_is_delivered(old_world)


def test_a_signal_to_an_idle_run_ends_it_well(new_world: MakeWorld, jvm: WarmJvm) -> None:
    world = new_world(seed=32, jvm=jvm)
    world.feed(50)
    driver = world.start()
    world.wait_for_commits(driver, 2)
    time.sleep(1)
    driver.send_signal(signal.SIGTERM)
    world.ended(driver, code=0)
    judge_the_end(world)


def test_a_second_signal_ends_the_run_at_once_and_loses_nothing(old_world: World) -> None:
    with old_world.feeding():
        driver = old_world.start()
        old_world.wait_for_commits(driver, 3)
        driver.send_signal(signal.SIGINT)
        time.sleep(0.05)
        driver.send_signal(signal.SIGINT)
        said = old_world.ended(driver, code=130)
    assert "Traceback" not in said
    judge(old_world)


def test_control_c_in_a_terminal_reaches_all_processes_and_ends_the_run_well(new_world: MakeWorld) -> None:
    world = new_world(seed=34)  # with a JVM and workers of its own, in the driver's process group
    with world.feeding():
        driver = world.start()
        world.wait_for_commits(driver, 3)
        os.killpg(driver.pid, signal.SIGINT)
        said = world.ended(driver, code=0)
    assert "Stopped at commit" in said
    everything_committed_is_delivered(world)


def test_a_signal_while_spark_starts_ends_the_run_well(old_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_world, "jvm", None)  # one of its own takes seconds to start
    driver = old_world.start()
    wait_for(lambda: "starting Spark" in old_world.said(driver), "the run to start Spark")
    time.sleep(0.5)
    driver.send_signal(signal.SIGTERM)
    said = old_world.ended(driver, code=0)
    assert "Traceback" not in said, said
    judge(old_world)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_first_commit_ends_the_run_without_a_traceback(
    new_world: MakeWorld, jvm: WarmJvm, number: int
) -> None:
    world = new_world(seed=35, jvm=jvm)
    world.feed(50)
    driver = world.start(fault="before-commit", pause=True)  # where it is sure that Spark is there and no tick has run
    world.wait_until_paused(driver)
    driver.send_signal(number)
    os.kill(driver.pid, signal.SIGCONT)
    said = world.ended(driver, code=0)
    assert "Traceback" not in said
    judge(world)


def test_after_all_those_signals_a_run_catches_up_and_delivers_everything(old_world: World) -> None:
    old_world.run()
    judge_the_end(old_world)
