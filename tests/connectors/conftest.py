"""The servers that connectors are tested against: each is started when a test first asks, once for the whole run, and
ends with the last test of this folder: an idle broker would take a tenth of a core from all tests after it.

The tests of one server run in one process, also when there are several: see tests/conftest.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hailstorm.spouts.kafka import ahead, reader
from tests.connectors.kafka_topics import Topics
from tests.connectors.servers.kafka import KafkaServer
from tests.connectors.servers.postgres import PostgresServer
from tests.connectors.servers.redis import RedisServer

_servers = ExitStack()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _servers.close()


@pytest.fixture(scope="session")
def kafka_server() -> KafkaServer:
    return _servers.enter_context(KafkaServer.start())


@pytest.fixture(scope="module", autouse=True)
def _idle_consumers() -> Iterator[None]:
    """Consumers that a process keeps for its next read ask the broker ten times per second. Here there is no next read,
    and a few dozen of them would keep a core busy until the end of the run."""
    yield
    with reader._lock:
        idle = [one for readers in reader._idle.values() for one in readers]
        reader._idle.clear()
    for one in idle:
        one.consumer.close()
    with ahead._lock:
        following = list(ahead._following.values())
        ahead._following.clear()
    for consumer in following:
        consumer.close()


@pytest.fixture(scope="session")
def postgres_server() -> PostgresServer:
    return _servers.enter_context(PostgresServer.start())


@pytest.fixture(scope="session")
def redis_server() -> RedisServer:
    return _servers.enter_context(RedisServer.start())


@pytest.fixture(scope="session")
def topics(kafka_server: KafkaServer) -> Topics:
    return Topics.of(kafka_server)
