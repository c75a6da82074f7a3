"""Two drivers on one ledger: exactly one goes on, and nothing is lost or doubled.

A driver freezes (SIGSTOP) at the worst moments, its lease is lost, a second one takes over, and the first one wakes
up and believes that nothing has happened.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.chaos.conftest import MakeWorld
from tests.chaos.judge import judge, judge_the_end
from tests.chaos.world import World
from tests.jvm import WarmJvm

pytestmark = [pytest.mark.chaos, pytest.mark.spark]


@pytest.mark.parametrize(
    "point", ["before-commit:4", "during-delivery:6", pytest.param("during-compaction", marks=pytest.mark.soak)]
)
def test_a_driver_that_wakes_up_after_another_took_over_is_fenced(
    old_world: World, other_jvm: WarmJvm, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    with old_world.feeding():
        first = old_world.start(fault=point, pause=True)
        old_world.wait_until_paused(first)
        (old_world.ledger / "lease.json").unlink()
        monkeypatch.setattr(old_world, "jvm", other_jvm)
        second = old_world.start()
        old_world.wait_for_commits(second, 3)
        os.kill(first.pid, signal.SIGCONT)
        said = old_world.ended(first, code=1)
        assert "HS-LED-008" in said
        assert "Traceback" not in said
        old_world.wait_for_commits(second, 2)
    second.send_signal(signal.SIGTERM)
    old_world.ended(second, code=0)
    judge(old_world)


def test_a_second_driver_is_told_at_once_who_has_the_ledger(new_world: MakeWorld, jvm: WarmJvm) -> None:
    world = new_world(seed=22, jvm=jvm)
    world.feed(100)
    first = world.start(fault="after-commit", pause=True)  # frozen and not dead: it still has the lease
    world.wait_until_paused(first)
    world.jvm = None
    second = world.start()
    said = world.ended(second, code=1)
    assert "HS-LED-009" in said
    assert f"process {first.pid}" in said
    assert "starting Spark" not in said
    os.kill(first.pid, signal.SIGCONT)
    world.wait_for_commits(first, 1)
    first.send_signal(signal.SIGTERM)
    world.ended(first, code=0)
    judge(world)


def test_the_lease_of_a_dead_driver_hinders_nobody(old_world: World) -> None:
    """And after all that was done to this world, a run catches up and delivers everything."""
    old_world.feed(300)
    old_world.killed_itself(old_world.start(fault="after-commit:2"))
    assert (old_world.ledger / "lease.json").exists()
    began = time.monotonic()
    old_world.run()
    assert "HS-LED" not in old_world.said(old_world.drivers[-1])
    assert time.monotonic() - began < 200
    judge_the_end(old_world)
