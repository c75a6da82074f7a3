"""Kafka as a log: the contract, and what only Kafka does."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from hailstorm.sinks.kafka import Kafka
from tests.connectors.kafka_topics import Topics
from tests.connectors.log_contract import LogContract
from tests.connectors.servers.kafka import KafkaServer


@pytest.fixture(scope="session")
def topics(kafka_server: KafkaServer) -> Topics:
    return Topics.of(kafka_server)


@dataclass
class KafkaHarness:
    topics: Topics
    partitions: int = 2
    ends: bool = True
    topic: str = field(init=False)

    def __post_init__(self) -> None:
        self.topic = self.topics.new("contract", self.partitions)

    def make(self) -> Kafka:
        return Kafka(self.topic, servers=self.topics.server.servers)

    def append(self, rows: list[bytes], partition: int) -> None:
        self.topics.write(self.topic, rows, partition)

    def expire(self) -> None:
        self.topics.remove_before(self.topic, 40)


class TestKafka(LogContract):
    @pytest.fixture
    def harness(self, topics: Topics) -> KafkaHarness:
        return KafkaHarness(topics)
