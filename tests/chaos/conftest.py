"""What the chaos tests share: worlds, and a second warm JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.chaos.world import World
from tests.forks import Forks
from tests.jvm import WarmJvm

MakeWorld = Callable[..., World]


@pytest.fixture(scope="session")
def other_jvm(tmp_path_factory: pytest.TempPathFactory, forks: Forks) -> Iterator[WarmJvm]:
    """For a second driver at the same time."""
    made = WarmJvm(tmp_path_factory.mktemp("jvm") / "output.txt", forks)
    yield made
    made.close()


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[MakeWorld]:
    worlds: list[World] = []

    def make(seed: int, jvm: WarmJvm | None = None) -> World:
        folder = tmp_path / f"world{len(worlds)}"
        folder.mkdir()
        worlds.append(World(folder, seed, jvm))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture(scope="module")
def old_world(tmp_path_factory: pytest.TempPathFactory, jvm: WarmJvm) -> Iterator[World]:
    """One world that lives through all kills of a module, and so gets a long history of crashes."""
    world = World(tmp_path_factory.mktemp("world"), seed=7, jvm=jvm)
    world.feed(300)
    yield world
    world.close()
