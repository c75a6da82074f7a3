"""Parts of a run die: its JVM, its Python workers, the driver from under its JVM. The last run has a warm one."""

from __future__ import annotations

import os
import signal

import pytest

from tests.chaos.judge import judge, judge_the_end
from tests.chaos.world import Driver, World, wait_for

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


def part(world: World, driver: Driver, word: str) -> int:
    """The process of a driver whose command has this word, the newest of several."""
    found = [pid for pid, command in world.processes(driver).items() if word in command]
    assert found, world.processes(driver)
    return max(found)


@pytest.fixture
def world(old_world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The world that lives through all of this; drivers in it have JVMs of their own."""
    monkeypatch.setattr(old_world, "jvm", None)
    return old_world


def test_when_the_driver_is_killed_its_jvm_and_its_workers_end_by_themselves(world: World) -> None:
    with world.feeding():
        driver = world.start()
        world.wait_for_commits(driver, 3)
        world.kill(driver)
        judge(world)
        wait_for(lambda: not world.processes(), "JVM and workers to end")


def test_when_workers_are_killed_the_tick_is_tried_again(world: World) -> None:
    with world.feeding():
        driver = world.start()
        for _ in range(3):
            world.wait_for_commits(driver, 2)
            os.kill(part(world, driver, "hailstorm.engine.spark.daemon"), signal.SIGKILL)
            world.kills += 1
        world.wait_for_commits(driver, 2)
        driver.send_signal(signal.SIGTERM)
        world.ended(driver, code=0)
    judge(world)


def test_when_its_jvm_is_killed_the_driver_says_so(world: World) -> None:
    with world.feeding():
        driver = world.start()
        world.wait_for_commits(driver, 3)
        os.kill(part(world, driver, "SparkSubmit"), signal.SIGKILL)
        world.kills += 1
        said = world.ended(driver, code=1)
    assert "HS-RUN-012" in said
    assert "Traceback" not in said, said
    judge(world)


def test_after_all_of_that_a_run_goes_on_and_delivers_everything(old_world: World) -> None:
    old_world.run()
    judge_the_end(old_world)
