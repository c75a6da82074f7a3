"""The servers that connectors are tested against: each is started when a test first asks, once for the whole run.

The tests of one server run in one process, also when there are several: see tests/conftest.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hailstorm.spouts.kafka import ahead, reader
from tests.connectors.kafka_topics import Topics
from tests.connectors.servers.kafka import KafkaServer
from tests.connectors.servers.postgres import PostgresServer
from tests.connectors.servers.redis import RedisServer


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with KafkaServer.start() as server:
        yield server


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
def postgres_server() -> Iterator[PostgresServer]:
    with PostgresServer.start() as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with RedisServer.start() as server:
        yield server


@pytest.fixture(scope="session")
def topics(kafka_server: KafkaServer) -> Topics:
    return Topics.of(kafka_server)
