"""A million windows that close in one commit, and the first of each of a million groups: exact when they are killed.
In the short form it is a tenth of that."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

import hailstorm as hs
from tests.chaos.app_of_millions import PLAYERS, TEAMS, WINDOWS, scored
from tests.chaos.conftest import MakeWorld
from tests.chaos.world import World
from tests.jvm import WarmJvm

pytestmark = [pytest.mark.chaos, pytest.mark.spark]

CLOSING = ("after-write:1", "before-commit:1", "after-commit:1", "during-delivery:1")


def test_millions_of_windows_and_groups_are_exact_however_they_are_killed(new_world: MakeWorld, jvm: WarmJvm) -> None:
    world = new_world(seed=1, jvm=jvm)
    shutil.copy(Path(__file__).with_name("app_of_millions.py"), world.folder / "app.py")
    for point in ("after-write:3", "before-commit:2"):
        world.killed_itself(world.start(fault=point))
    world.run()
    assert not windows(world), "all windows are open until the last commit"
    last = world.commits()
    for point in CLOSING:
        world.killed_itself(world.start("--complete", until="caught-up", fault=point))
    world.ended(world.start("--complete", until="caught-up"), code=0)
    assert windows(world) == dict.fromkeys(range(WINDOWS), 1)
    assert {closed(world, at) for at in range(last, world.commits() + 1)} == {0, WINDOWS}, "they close in one commit"
    assert np.array_equal(best(world), best_of_numpy())


def windows(world: World) -> dict[int, int]:
    with closing(sqlite3.connect(world.folder / "out/tables.db")) as db:
        return dict(db.execute("SELECT key, n FROM minutes").fetchall())


def closed(world: World, at: int) -> int:
    return hs.open_ledger(world.ledger).state("minutes", at=at).arrow().num_rows


def best(world: World) -> npt.NDArray[np.int64]:
    """By team: the points of its best player, or 0."""
    rows = hs.open_ledger(world.ledger).state("best").arrow()
    found = np.zeros(TEAMS, dtype=np.int64)
    found[rows["team"].to_numpy()] = rows["points"].to_numpy()
    assert rows.num_rows == np.count_nonzero(found), "one player of a team"
    return found


def best_of_numpy() -> npt.NDArray[np.int64]:
    every = scored(np.arange(2 * PLAYERS), 0)
    points = np.bincount(every["player"], weights=every["points"]).astype(np.int64)
    return np.maximum(points, 0).reshape(2, TEAMS).max(axis=0)
