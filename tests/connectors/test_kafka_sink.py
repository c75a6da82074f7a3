"""Kafka as a sink: the contract, read back by a consumer that shares nothing with it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.sinks.kafka import Kafka
from tests.connectors.kafka_topics import Topics
from tests.connectors.servers.kafka import KafkaServer
from tests.connectors.sink_contract import Harness, Json, SinkContract


@pytest.fixture(scope="session")
def topics(kafka_server: KafkaServer) -> Topics:
    return Topics.of(kafka_server)


@dataclass
class KafkaHarness:
    """A topic with two partitions for each target, and a topic of cursors of its own: tests share their names."""

    topics: Topics
    forgets: bool = False
    made: dict[str, str] = field(default_factory=dict)
    cursors: str = field(init=False)

    def __post_init__(self) -> None:
        self.cursors = self.topics.new("cursors")

    def make(self, target: str, mode: Any = None) -> Kafka:
        if target not in self.made:
            self.made[target] = self.topics.new(re.sub(r"\W", "_", target), 2)
        return Kafka(self.made[target], servers=self.topics.server.servers, cursor_topic=self.cursors)

    def read_back(self, target: str, schema: pa.Schema, key: tuple[str, ...] | None) -> list[Json]:
        messages = self.topics.read(self.made[target], 2)
        if key is None:
            return [json.loads(message.value()) for message in messages]
        table: dict[bytes, Json] = {}
        for message in messages:
            table.pop(message.key(), None)
            if message.value() is not None:
                table[message.key()] = json.loads(message.value())
        return list(table.values())


class TestKafka(SinkContract):
    @pytest.fixture
    def harness(self, topics: Topics) -> Harness:
        return KafkaHarness(topics)
