"""What the Kafka tests do to a cluster: make topics, write as another program would, read as another program would."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

from tests.connectors.servers.kafka import KafkaServer

_numbers = itertools.count()


@dataclass(frozen=True)
class Topics:
    """A client of the server that shares nothing with ours."""

    server: KafkaServer
    admin: AdminClient
    producer: Producer

    @staticmethod
    def of(server: KafkaServer) -> Topics:
        settings: dict[str, Any] = {"bootstrap.servers": server.servers, "log_level": 2}
        # One request at a time: what has to be sent again is not overtaken.
        producer = Producer({**settings, "linger.ms": 0, "max.in.flight.requests.per.connection": 1})
        return Topics(server, AdminClient(settings), producer)

    def new(self, prefix: str = "topic", partitions: int = 1, **config: str) -> str:
        name = f"{prefix}-{next(_numbers)}"
        self.create(name, partitions, **config)
        return name

    def create(self, name: str, partitions: int = 1, **config: str) -> None:
        options = {key.replace("_", "."): value for key, value in config.items()}
        for future in self.admin.create_topics([NewTopic(name, partitions, config=options)]).values():
            future.result(30)
        self._until(lambda: name in self.admin.list_topics(timeout=10).topics)

    def grow(self, name: str, partitions: int) -> None:
        """Until it has so many partitions, and the broker says so."""
        for future in self.admin.create_partitions([NewPartitions(name, partitions)]).values():
            future.result(30)
        self._until(lambda: len(self.admin.list_topics(name, timeout=10).topics[name].partitions) == partitions)

    def delete(self, name: str) -> None:
        for future in self.admin.delete_topics([name]).values():
            future.result(30)
        self._until(lambda: name not in self.admin.list_topics(timeout=10).topics)

    def write(self, topic: str, values: Iterable[bytes | None], partition: int = 0, key: bytes | None = None) -> None:
        for value in values:
            self._until(lambda: self._took(topic, value, partition, key))  # noqa: B023
        assert self.producer.flush(60) == 0

    def _took(self, topic: str, value: bytes | None, partition: int, key: bytes | None) -> bool:
        """Whether the producer has room, and knows the partition: it learns of a new one a moment after the broker."""
        try:
            self.producer.produce(topic, value, key, partition)
        except BufferError:
            self.producer.poll(0.1)
            return False
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            self.producer.list_topics(topic, timeout=10)
            return False
        return True

    def transaction(self, topic: str, values: Iterable[bytes], commit: bool = True) -> None:
        """Write to partition 0 in one transaction, and commit or abort it."""
        own = Producer({"bootstrap.servers": self.server.servers, "transactional.id": f"test-{next(_numbers)}"})
        own.init_transactions(30)
        own.begin_transaction()
        for value in values:
            own.produce(topic, value, partition=0)
        own.flush(30)
        if commit:
            own.commit_transaction(30)
        else:
            own.abort_transaction(30)
        self.settle(topic)

    def remove_before(self, topic: str, offset: int, partition: int = 0) -> None:
        """What retention does."""
        for future in self.admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result(30)

    def read(self, topic: str, partitions: int = 1, settled: bool = True, start: int = 0) -> list[Message]:
        """What a `read_committed` consumer sees, partition by partition, from an offset on: when all transactions have
        ended, or now."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.server.servers,
                "group.id": "tests",
                "log_level": 2,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # a broker that has no more waits so long before it says that this is the end
                "isolation.level": "read_committed",
            }
        )
        found: list[Message] = []
        for partition in range(partitions):
            # The end of a transaction is marked a moment after its producer was told that it has ended.
            if settled:
                self.settle(topic, partition)
            consumer.assign([TopicPartition(topic, partition, start)])
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                message = consumer.poll(1.0)
                if message is not None and message.error() is not None:
                    assert message.error().name() == "_PARTITION_EOF", message.error()
                    break
                if message is not None:
                    found.append(message)
        consumer.close()
        return found

    def end(self, topic: str, partition: int = 0) -> int:
        """The offset that the next record gets."""
        place = TopicPartition(topic, partition)
        return int(self.admin.list_offsets({place: OffsetSpec.latest()})[place].result(30).offset)

    def group_offsets(self, group: str) -> Mapping[tuple[str, int], int]:
        from confluent_kafka import ConsumerGroupTopicPartitions

        futures = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = [place for future in futures.values() for place in future.result(30).topic_partitions]
        return {(place.topic, place.partition): place.offset for place in found}

    def settle(self, topic: str, partition: int = 0) -> None:
        """Wait until transactions that have ended are seen to have ended."""
        self._until(lambda: self._is_settled(TopicPartition(topic, partition)))

    def _is_settled(self, place: TopicPartition) -> bool:
        self.admin.list_topics(timeout=30)  # after a restart the client does not know the new leader otherwise
        ends = [
            self.admin.list_offsets({place: OffsetSpec.latest()}, isolation_level=level)[place].result(30).offset
            for level in (IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED)
        ]
        return ends[0] == ends[1]

    def _until(self, done: Any) -> None:
        deadline = time.monotonic() + 30
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.05)
