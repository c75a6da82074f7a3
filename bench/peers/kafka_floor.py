"""The floor of the latency bench: a bare Python loop that consumes, counts in a dict, produces, and commits a
transaction per poll. No state that outlives it, no ticks, nothing else. Whoever is exactly once needs at least this.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.peers.peer import Tick, scratch_folder
from bench.work import Work

_MOST = 10_000


class KafkaFloor:
    """A burst is so many seconds of it. Who measures stands at the other end."""

    def __init__(self, work: Work, servers: str, source: str, target: str) -> None:
        self.folder = scratch_folder("kafka-floor")
        self.servers, self.source, self.target = servers, source, target
        self.counts: dict[int, int] = {}

    def prepare(self) -> Mapping[str, float]:
        common = {"bootstrap.servers": self.servers, "log_level": 2}
        reading = {"group.id": "floor", "enable.auto.commit": False, "isolation.level": "read_committed"}
        self.consumer = Consumer({**common, **reading, "auto.offset.reset": "earliest"})
        self.consumer.assign([TopicPartition(self.source, 0, 0)])
        self.producer = Producer({**common, "transactional.id": "floor", "linger.ms": 0})
        self.producer.init_transactions(30)
        return {}

    def burst(self, ticks: int) -> list[Tick]:
        until = time.monotonic() + ticks
        while time.monotonic() < until:
            first = self.consumer.poll(0.1)
            if first is None:
                continue
            self.producer.begin_transaction()
            for message in [first, *self.consumer.consume(_MOST, 0)]:
                row = json.loads(message.value() or b"")
                key = row["k"]
                row["n"] = self.counts[key] = self.counts.get(key, 0) + 1
                self.producer.produce(self.target, json.dumps(row), str(key))
            positions = self.consumer.position(self.consumer.assignment())
            self.producer.send_offsets_to_transaction(positions, self.consumer.consumer_group_metadata(), 30)
            self.producer.commit_transaction(30)
        return []

    def figures(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        if hasattr(self, "consumer"):
            self.consumer.close()
