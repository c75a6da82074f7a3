"""kill -9 at every named fault point and at random moments: nothing is lost, nothing is doubled.

After every kill the judge compares the ledger and all sinks, as the dead process left them, with the oracle.
This is the short form; test_soak.py is the long one.
"""

from __future__ import annotations

import time

import pytest

from hailstorm.faults import RUN_POINTS
from tests.chaos.conftest import MakeWorld
from tests.chaos.judge import judge, judge_the_end
from tests.chaos.world import World
from tests.jvm import WarmJvm
from tests.length import seeds

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


@pytest.mark.parametrize(("point", "number"), [(p, 1 + 2 * (n % 2)) for n, p in enumerate(sorted(RUN_POINTS))])
def test_a_kill_at_a_fault_point_loses_and_doubles_nothing(old_world: World, point: str, number: int) -> None:
    with old_world.feeding():
        old_world.killed_itself(old_world.start(fault=f"{point}:{number}"))
    judge(old_world)


@pytest.mark.parametrize("attempt", seeds(2, 3))
def test_a_kill_at_a_random_moment_loses_and_doubles_nothing(old_world: World, attempt: int) -> None:
    with old_world.feeding():
        driver = old_world.start()
        old_world.wait_for_commits(driver, old_world.chance.randint(1, 5))
        time.sleep(old_world.chance.random())
        old_world.kill(driver)
    judge(old_world)


@pytest.mark.parametrize("attempt", range(2))
def test_a_kill_while_starting_loses_and_doubles_nothing(old_world: World, attempt: int) -> None:
    driver = old_world.start()
    time.sleep(old_world.chance.uniform(0.1, 5.0))
    old_world.kill(driver)
    judge(old_world)


def test_what_dead_writers_left_disturbs_nobody(old_world: World) -> None:
    """Temporary files of every writer, and whole runs that no commit names."""
    with old_world.feeding():
        old_world.killed_itself(old_world.start(fault="after-commit:2"))
    head = judge(old_world)
    for name in (
        f"commits/.{head + 1:020d}.json.0a1b2c3d",
        f"manifests/.{head + 1:020d}.json.0a1b2c3d",
        "cursors/.words_sqlite.json.0a1b2c3d",
        "state/counts/.5e6f.parquet.0a1b2c3d",
        "state/counts/00000000000000000000000000000000.parquet",
        f"outbox/words_sqlite/{head + 1:020d}-0000000000000000.parquet",
        f"errors/{head + 1:020d}-0000000000000000.parquet",
        f"../out/words/.{head + 1:020d}.tmp",
    ):
        path = old_world.ledger / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"PAR1 cut off")
    assert judge(old_world) == head


def test_after_all_those_kills_a_run_catches_up_and_delivers_everything(old_world: World) -> None:
    old_world.run()
    judge_the_end(old_world)


def test_the_first_run_of_a_ledger_may_be_killed_at_any_point(new_world: MakeWorld, jvm: WarmJvm) -> None:
    world = new_world(seed=11, jvm=jvm)
    world.feed(200)
    for point in ("before-commit", "after-commit", "during-delivery"):
        world.killed_itself(world.start(fault=point))
        judge(world)
    world.run()
    judge_the_end(world)
