"""The long form: hundreds of kills, with other seeds each time. `make soak` runs it."""

from __future__ import annotations

import os
import time

import pytest

from hailstorm.faults import RUN_POINTS
from tests.chaos.conftest import MakeWorld
from tests.chaos.judge import judge, judge_the_end
from tests.chaos.test_resident_kills import RESIDENT
from tests.jvm import WarmJvm

pytestmark = [pytest.mark.chaos, pytest.mark.spark, pytest.mark.soak]

WORLDS, KILLS = 20, 25


@pytest.mark.parametrize("number", range(WORLDS))
def test_a_world_survives_many_kills(new_world: MakeWorld, jvm: WarmJvm, number: int) -> None:
    seed = int(os.environ.get("HAILSTORM_SEED", time.time_ns() % 1_000_000)) + number
    print(f"HAILSTORM_SEED={seed}")  # pytest shows it when the test fails
    world = new_world(seed=seed, jvm=jvm)
    chance = world.chance
    with world.feeding():
        for _ in range(KILLS):
            match chance.choice(["point", "point", "moment", "start"]):
                case "point":
                    point = chance.choice(sorted(RUN_POINTS))
                    world.killed_itself(world.start(fault=f"{point}:{chance.randint(1, 8)}"))
                case "moment":
                    driver = world.start(*chance.choice([(), RESIDENT]))
                    world.wait_for_commits(driver, chance.randint(1, 10))
                    time.sleep(chance.random())
                    world.kill(driver)
                case "start":
                    driver = world.start()
                    time.sleep(chance.uniform(0.1, 5.0))
                    world.kill(driver)
            judge(world)
    world.run()
    judge_the_end(world)
