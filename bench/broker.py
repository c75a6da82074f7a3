"""What the Kafka benches do to a broker: make topics, fill them, and look at what arrived, as other programs would.

The broker is the one of the connector tests. The records are lines of JSON, `{"k": 123456, "v": 123456}`, about 25
bytes each, and a pure function of their number.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
from confluent_kafka import Consumer, IsolationLevel, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from bench.work import Numbers, Work, keys

PARTITIONS = 2
_CHUNK = 50_000
_PATIENCE = 30.0
_numbers = itertools.count()


def records(work: Work, start: int, end: int) -> pa.Array:
    """The records start <= number < end."""
    numbers = np.arange(start, end, dtype=np.int64)
    key, value = (pa.array(column).cast(pa.string()) for column in (keys(work, numbers), numbers % 1_000_000))
    return pc.binary_join_element_wise('{"k": ', key, ', "v": ', value, "}", "").cast(pa.binary())


def totals(work: Work, end: int) -> Numbers:
    """How often each key is among the records below `end`: what a running count must say of it last."""
    return np.bincount(keys(work, np.arange(end, dtype=np.int64)), minlength=work.keys)


class Broker:
    """A client that shares nothing with those that are measured."""

    def __init__(self, servers: str) -> None:
        settings: dict[str, Any] = {"bootstrap.servers": servers, "log_level": 2}
        self.servers = servers
        self._admin = AdminClient(settings)
        self._producer = Producer(
            {**settings, "linger.ms": 20, "batch.num.messages": _CHUNK, "queue.buffering.max.messages": 1_000_000}
        )

    def topic(self, prefix: str, partitions: int = PARTITIONS) -> str:
        """A new one."""
        name = f"{prefix}-{next(_numbers)}"
        self._admin.create_topics([NewTopic(name, partitions)])[name].result(_PATIENCE)
        while name not in self._admin.list_topics(timeout=_PATIENCE).topics:
            time.sleep(0.05)
        return name

    def put(self, topic: str, values: pa.Array, partitions: int = PARTITIONS) -> None:
        """The values, a part of them in each partition; returns when the broker has them all."""
        for partition in range(partitions):
            first, last = (len(values) * (partition + n) // partitions for n in (0, 1))
            for start in range(first, last, _CHUNK):
                chunk = values.slice(start, min(_CHUNK, last - start)).to_numpy(zero_copy_only=False)
                self._producer.produce_batch(topic, [{"value": value} for value in chunk], partition)
                while len(self._producer) > 500_000:
                    self._producer.poll(0.01)
        left = self._producer.flush(_PATIENCE * 2)
        assert left == 0, f"{left} records did not reach the broker"

    def ends(self, topic: str, partitions: int = PARTITIONS, committed: bool = True) -> dict[int, int]:
        """Where each partition ends, as a `read_committed` consumer sees it, or one that sees everything."""
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        places = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
        found = self._admin.list_offsets(places, isolation_level=level)
        return {place.partition: int(future.result(_PATIENCE).offset) for place, future in found.items()}

    def settle(self, topic: str, partitions: int = PARTITIONS) -> dict[int, int]:
        """Wait until no transaction is open: its end is marked a moment after its producer was told so."""
        until = time.monotonic() + _PATIENCE
        while (ends := self.ends(topic, partitions)) != self.ends(topic, partitions, committed=False):
            assert time.monotonic() < until, f"topic {topic} has an open transaction"
            time.sleep(0.002)
        return ends

    def values(self, topic: str, since: Mapping[int, int]) -> list[bytes]:
        """What a `read_committed` consumer reads from these offsets to the end, partition by partition."""
        ends, found = self.settle(topic, len(since)), list[bytes]()
        settings = {"group.id": "bench", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer(
            {"bootstrap.servers": self.servers, "log_level": 2, "isolation.level": "read_committed", **settings}
        )
        try:
            for partition, offset in since.items():
                if offset < ends[partition]:
                    consumer.assign([TopicPartition(topic, partition, offset)])
                    found += _until_the_end(consumer)
        finally:
            consumer.close()
        return found


def _until_the_end(consumer: Consumer) -> list[bytes]:
    found: list[bytes] = []
    heard = time.monotonic()
    while time.monotonic() < heard + _PATIENCE:
        for message in consumer.consume(20_000, 0.2):  # it waits for so many, or for so long
            heard = time.monotonic()
            error = message.error()
            if error is None:
                found.append(message.value() or b"")
            elif error.name() == "_PARTITION_EOF":
                return found
            else:
                raise KafkaException(error)
    raise AssertionError(f"the broker gave nothing for {_PATIENCE:.0f} seconds")


def counts_in(values: list[bytes], number_of_keys: int) -> Numbers:
    """The last count of each key in a running count's output, `{"k":1,"n":2}` a record; 0 where a key is not there.

    The records of a key must be in their order, as they are within a partition.
    """
    table = pa.json.read_json(pa.BufferReader(b"\n".join(values)))
    found = np.zeros(number_of_keys, dtype=np.int64)
    # With a key twice, numpy keeps the later one.
    found[table["k"].to_numpy()] = table["n"].to_numpy()
    return found
