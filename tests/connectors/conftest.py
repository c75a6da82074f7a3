"""The servers that connectors are tested against: each is started when a test first asks, once for the whole run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.connectors.servers.kafka import KafkaServer


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[KafkaServer]:
    with KafkaServer.start() as server:
        yield server
