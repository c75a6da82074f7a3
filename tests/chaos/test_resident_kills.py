"""Runs whose ticks are resident: the driver is killed, asked to stop, or stuck in a function that never ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.chaos.conftest import MakeWorld
from tests.chaos.judge import judge, judge_the_end
from tests.chaos.world import Driver, World, wait_for
from tests.jvm import WarmJvm, quick

pytestmark = [pytest.mark.chaos, pytest.mark.spark]

RESIDENT = ("--set", "ways=resident")

LOOPING = """
import time
from pathlib import Path

import hailstorm as hs

LOOPING = Path(__file__).parent / "looping"

storm = hs.Topology("storm", ledger="ledger")
events = storm.spout("events", hs.Log("events"), schema="words STRING")

@events.bolt(returns="word STRING")
def words(event):
    while event.words == "loop":
        LOOPING.touch()
        time.sleep(0.01)
    yield {"word": event.words}

words.fold("counts", by="word", n=hs.count())
"""


def test_a_driver_that_is_killed_at_any_point_of_resident_ticks_loses_and_doubles_nothing(
    new_world: MakeWorld, jvm: WarmJvm
) -> None:
    world = new_world(seed=51, jvm=jvm)
    with world.feeding():
        for point in ("after-write:3", "before-commit:4", "after-commit:3", "during-delivery:2", "during-compaction"):
            world.killed_itself(world.start(*RESIDENT, fault=point))
            judge(world)
        driver = world.start(*RESIDENT)
        world.wait_for_commits(driver, 3)
        time.sleep(world.chance.uniform(0, 0.3))
        world.kill(driver)
        judge(world)
    world.run()
    judge_the_end(world)


def test_when_the_driver_is_killed_the_resident_worker_ends_by_itself(new_world: MakeWorld) -> None:
    world = new_world(seed=52)
    with world.feeding():
        driver = world.start(*RESIDENT)
        world.wait_for_commits(driver, 5)
        world.kill(driver)
    judge(world)
    wait_for(lambda: not world.processes(), "JVM and workers to end")
    world.run()
    judge_the_end(world)
    wait_for(lambda: not world.processes(), "a run that has ended to leave nobody behind")


def stuck(world: World) -> Driver:
    """A run on this world, in a function that never ends."""
    (world.folder / "app.py").write_text(LOOPING)
    world.log.append([{"words": "hail"}], partition=0)
    driver = world.start(*RESIDENT)
    world.wait_for_commits(driver, 2)
    world.log.append([{"words": "loop"}], partition=0)
    wait_for((world.folder / "looping").exists, "the function to be called")
    return driver


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_run_that_is_stuck_and_nobody_is_left(new_world: MakeWorld, number: int) -> None:
    world = new_world(seed=53)
    driver = stuck(world)
    os.killpg(driver.pid, number) if number == signal.SIGINT else driver.send_signal(number)  # as a terminal does
    time.sleep(1)
    assert driver.poll() is None, "the first signal waits for the tick"
    driver.send_signal(number)
    said = world.ended(driver, code=128 + number)
    assert "Traceback" not in said, said
    wait_for(lambda: not world.processes(), "all processes to end")


def test_a_worker_that_is_lost_with_its_executor_costs_nothing_but_time() -> None:
    script = Path(__file__).with_name("cluster_process.py")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=300, env=os.environ | quick()
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "without": "prepared",
        "then": "resident",
        "lost or doubled": 0,
    }
