"""A standby waits, and goes on when the driver is killed, or stops. Nothing is lost or doubled, and only one runs."""

from __future__ import annotations

import signal
import time

import pytest

from tests.chaos.conftest import MakeWorld
from tests.chaos.judge import judge, judge_the_end
from tests.chaos.world import Driver, World, wait_for
from tests.jvm import WarmJvm

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


def standing_by(world: World, other: Driver) -> Driver:
    """A standby that has all ready and waits for the other driver."""
    standby = world.start("--standby")

    def waits() -> bool:
        assert standby.poll() is None, world.said(standby)
        return f"process {other.pid}, commit" in world.said(standby)

    wait_for(waits, "a standby that is ready")
    return standby


def seconds_to_the_next_commit(world: World, standby: Driver) -> float:
    began = time.monotonic()
    world.wait_for_commits(standby, 1)
    return time.monotonic() - began


def test_a_standby_goes_on_when_the_driver_is_killed_and_when_it_stops(
    new_world: MakeWorld, jvm: WarmJvm, other_jvm: WarmJvm
) -> None:
    world = new_world(seed=24, jvm=jvm)
    with world.feeding():
        first = world.start()
        world.wait_for_commits(first, 2)
        world.jvm = other_jvm
        second = standing_by(world, first)
        world.wait_for_commits(first, 2)  # it goes on beside the one that waits, undisturbed
        world.kill(first)
        print(f"killed: the standby commits after {seconds_to_the_next_commit(world, second):.1f} s")
        world.jvm = jvm
        third = standing_by(world, second)
        second.send_signal(signal.SIGTERM)
        world.ended(second, code=0)
        print(f"stopped: the standby commits after {seconds_to_the_next_commit(world, third):.1f} s")
    third.send_signal(signal.SIGTERM)
    said = world.ended(third, code=0)
    assert "HS-" not in said and "starting Spark" not in said
    world.run()
    judge_the_end(world)


def test_a_standby_that_is_stopped_while_it_waits_has_done_nothing(
    new_world: MakeWorld, jvm: WarmJvm, other_jvm: WarmJvm
) -> None:
    world = new_world(seed=25, jvm=jvm)
    world.feed(100)
    first = world.start()
    world.wait_for_commits(first, 1)
    world.jvm = other_jvm
    second = standing_by(world, first)
    second.send_signal(signal.SIGINT)
    assert "0 rows in 0 ticks" in world.ended(second, code=0)
    world.wait_for_commits(first, 0)
    first.send_signal(signal.SIGTERM)
    world.ended(first, code=0)
    judge(world)
