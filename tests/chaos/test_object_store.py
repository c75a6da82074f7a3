"""kill -9 while the ledger is in an object store that throttles, cuts connections and loses answers: the judge finds
the same as in a folder. Drivers and workers come through a proxy that is unkind to every twentieth request."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.judge import judge, judge_the_end
from tests.chaos.world import World
from tests.connectors.servers import azure as azurite
from tests.connectors.servers.azure import CONTAINER, AzureServer
from tests.connectors.servers.s3 import BUCKET, SECRET, S3Server, UnkindProxy, known_here
from tests.jvm import WarmJvm

pytest.importorskip("obstore")
pytestmark = [pytest.mark.chaos, pytest.mark.spark]

KINDS = ("503", "cut", "lost", "503 after", "late")


@pytest.fixture(scope="module")
def s3(s3_server: S3Server) -> tuple[S3Server, str]:
    return s3_server, f"s3://{BUCKET}"


@pytest.fixture(scope="module")
def azure() -> Iterator[tuple[AzureServer, str]]:
    with AzureServer.start() as server:
        yield server, f"az://{CONTAINER}"


@pytest.fixture(scope="module", params=["s3", "azure"])
def far_world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, jvm: WarmJvm
) -> Iterator[World]:
    server, bucket = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("far")
    chance = random.Random(3)
    with UnkindProxy.to(server.port) as proxy, known_here(server.environment(), folder / "judge"):
        proxy.fault = lambda method, path: chance.choice(KINDS) if chance.random() < 0.05 else None
        environment = {**server.environment(proxy.port), "HAILSTORM_CACHE": str(folder / "cache")}
        world = World(folder, 7, jvm, f"{bucket}/{uuid.uuid4().hex}", environment)
        world.feed(300)
        yield world
        world.close()


@pytest.mark.parametrize(
    "point",
    [
        "before-commit:3",
        pytest.param("after-commit:2", marks=pytest.mark.soak),
        "during-delivery:2",
        "during-compaction",
    ],
)
def test_a_kill_at_a_fault_point_loses_and_doubles_nothing(far_world: World, point: str) -> None:
    with far_world.feeding():
        far_world.killed_itself(far_world.start(fault=point))
    judge(far_world)


def test_a_kill_at_a_random_moment_and_an_empty_cache_lose_and_double_nothing(far_world: World) -> None:
    with far_world.feeding():
        driver = far_world.start()
        far_world.wait_for_commits(driver, 4)
        far_world.kill(driver)
    judge(far_world)
    cache = Path(far_world.environment["HAILSTORM_CACHE"])
    assert cache.exists() and not far_world.ledger.exists(), "this machine keeps copies, and nothing else"
    cache.rename(cache.with_name("lost"))  # the next run is on another machine
    far_world.run()
    judge_the_end(far_world)
    # Not Spark's own words at the start, which are in the driver's output only when it fails.
    said = "".join(far_world.said(driver) for driver in far_world.drivers)
    for secret in (SECRET, azurite.SECRET):
        assert secret not in said
        assert not any(secret in path.read_text(errors="replace") for path in far_world.folder.rglob("spark.log*"))
        assert not any(secret.encode() in (far_world.store.get(file.name) or b"") for file in far_world.store.files(""))
