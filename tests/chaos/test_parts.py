"""Parts of a run die: its JVM, its Python workers, the driver from under its JVM. The next run has a warm one."""

from __future__ import annotations

import os
import signal

import pytest

from tests.chaos.conftest import MakeWorld
from tests.chaos.judge import judge, judge_the_end
from tests.chaos.world import Driver, World, wait_for
from tests.jvm import WarmJvm

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


def part(world: World, driver: Driver, word: str) -> int:
    """The process of a driver whose command has this word, the newest of several."""
    found = [pid for pid, command in world.processes(driver).items() if word in command]
    assert found, world.processes(driver)
    return max(found)


def test_when_the_driver_is_killed_its_jvm_and_its_workers_end_by_themselves(
    new_world: MakeWorld, jvm: WarmJvm
) -> None:
    world = new_world(seed=41)
    with world.feeding():
        driver = world.start()
        world.wait_for_commits(driver, 3)
        world.kill(driver)
        judge(world)
        wait_for(lambda: not world.processes(), "JVM and workers to end")
    world.jvm = jvm
    world.run()
    judge_the_end(world)


def test_when_workers_are_killed_the_tick_is_tried_again(new_world: MakeWorld, jvm: WarmJvm) -> None:
    world = new_world(seed=42)
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
    world.jvm = jvm
    world.run()
    judge_the_end(world)


def test_when_its_jvm_is_killed_the_driver_says_so_and_the_next_run_goes_on(new_world: MakeWorld, jvm: WarmJvm) -> None:
    world = new_world(seed=43)
    with world.feeding():
        driver = world.start()
        world.wait_for_commits(driver, 3)
        os.kill(part(world, driver, "SparkSubmit"), signal.SIGKILL)
        world.kills += 1
        said = world.ended(driver, code=1)
    assert "HS-RUN-012" in said
    assert "Traceback" not in said, said
    judge(world)
    world.jvm = jvm
    world.run()
    judge_the_end(world)
