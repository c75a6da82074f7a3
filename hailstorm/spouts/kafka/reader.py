"""Reads ranges of Kafka partitions into Arrow. Runs inside Spark tasks, and wherever else a range is read.

Consumers are kept between reads in this process, one per partition, because opening one takes longer than reading a
small range. A consumer that is in use belongs to one reader; nobody else sees it. They join no consumer group.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from hailstorm.errors import LogError, TransientLogError
from hailstorm.spouts.cycles import without_collecting
from hailstorm.spouts.kafka.client import PATIENCE, Cluster, Complaints, Trouble, explained, load
from hailstorm.spouts.source import BATCH_ROWS, RECORD, check_range

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
# What `metadata=True` adds to a record. `kafka_key` and `kafka_timestamp` are in every record already.
METADATA = pa.schema([("kafka_topic", pa.string()), ("kafka_partition", pa.int32()), ("kafka_headers", HEADERS)])

_TAKE = 20_000  # messages taken from librdkafka at once: more is slower, because they leave the processor's cache
_BATCH_BYTES = 32_000_000
_IDLE_CONSUMERS = 8  # kept for the next read
_SILENCE = 2.0  # seconds without a message inside a range, after which the range is fetched again
_SETTLING = 2.0  # seconds in which a partition's end may be behind, just after its leader has moved

_DEFAULTS = {
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 20,  # how long an end of partition may go unnoticed
    "fetch.queue.backoff.ms": 1,  # librdkafka waits a second by default when its queue is full: 5 times slower
    "queued.min.messages": 50_000,  # what is fetched beyond a range is often for nothing
}
_FIXED = {
    "group.id": "hailstorm",  # asked for, but never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,  # a range can end in a gap, with no record after it
    "auto.offset.reset": "error",
}

_Key = tuple[int, str, str, int]


@dataclass
class _Reader:
    """A consumer of one partition, and the offset from which on it will give messages."""

    cluster: Cluster
    topic: str
    partition: int
    complaints: Complaints = field(default_factory=Complaints)
    consumer: Any = None
    position: int = -1

    @property
    def who(self) -> str:
        return f"topic '{self.topic}' at {self.cluster.cleaned(self.cluster.servers)}"

    def open(self) -> None:
        library = load()
        with self.cluster.understood(self.who, self.complaints):
            self.consumer = library.Consumer(self.cluster.settings(self.complaints, _DEFAULTS, _FIXED))
        # Only for a reader that gives up: this may take a record.
        self.complaints.listen = lambda: self.consumer.poll(0.1)

    def check(self, start: int, end: int) -> None:
        """Refuse a range that is not there (any more)."""
        until = time.monotonic() + _SETTLING
        while True:
            low, high = self._bounds()
            if end <= high or time.monotonic() > until:
                return check_range(f"topic '{self.topic}'", self.partition, start, end, low, high)
            time.sleep(0.2)

    def _bounds(self) -> tuple[int, int]:
        """Where the partition begins and ends."""
        library, until = load(), time.monotonic() + PATIENCE
        place = library.TopicPartition(self.topic, self.partition)
        with self.cluster.understood(self.who, self.complaints):
            while True:
                try:
                    low, high = self.consumer.get_watermark_offsets(place, timeout=PATIENCE)
                    return low, high
                except library.KafkaException as error:
                    # A client whose connection broke before it knew anything says the same as of what is not there.
                    unknown = error.args[0].name() in ("_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC")
                    if not unknown or time.monotonic() > until or not self._is_there():
                        raise
                time.sleep(0.2)

    def _is_there(self) -> bool:
        """Whether the broker itself knows the partition."""
        topics = self.consumer.list_topics(self.topic, timeout=PATIENCE).topics
        return self.topic in topics and self.partition in topics[self.topic].partitions

    def seek(self, offset: int) -> None:
        if self.position != offset:
            self.refetch(offset)

    def refetch(self, offset: int) -> None:
        with self.cluster.understood(self.who, self.complaints):
            self.consumer.assign([load().TopicPartition(self.topic, self.partition, offset)])
        self.position = offset

    def messages(self, end: int) -> Iterator[list[Any]]:
        """The messages up to `end`, in lists of bounded size."""
        error_of, take = load().Message.error, 1000
        heard = time.monotonic()
        asked, again = heard, False  # whether something was fetched again within this range
        while self.position < end:
            first = self.consumer.poll(0.2)
            if first is None:
                now = time.monotonic()
                if now - heard > PATIENCE:
                    raise self._silent(end)
                if now - asked > _SILENCE:
                    self.refetch(self.position)
                    asked, again = now, True
                continue
            # Only what is there already: to wait for a full list would be to wait at every gap.
            wanted = min(take, end - self.position)
            found = [first, *_taken(self.consumer, wanted - 1)] if wanted > 1 else [first]
            expected = self.position  # an end of partition among them moves it on
            if any(map(error_of, found)):
                found = [message for message in found if not self._is_event(message, end)]
                again = True
            if found and (again or found[0].offset() < expected or not _is_ascending(found)):
                found = _from(expected, found)
            if found:
                heard = asked = time.monotonic()
                past = found[-1].offset() >= end
                self.position = max(self.position, found[-1].offset() + 1)
                if past:
                    found = [message for message in found if message.offset() < end]
                yield found
                take = _bounded(found)

    def _is_event(self, message: Any, end: int) -> bool:
        """Whether it is no record. Moves on at an end of partition; raises for what will not pass."""
        error = message.error()
        if error is None:
            return False
        name = error.name()
        if name == "_PARTITION_EOF":
            self.position = max(self.position, message.offset())
            return True
        if name in ("_AUTO_OFFSET_RESET", "OFFSET_OUT_OF_RANGE"):
            self.check(self.position, end)
            self.refetch(self.position)
            return True
        trouble, _ = explained(error)  # without listening: that would take a record and drop it
        if trouble not in (Trouble.UNREACHABLE, Trouble.BUSY):
            raise self.cluster.log_error(self.who, error, self.complaints)
        return True

    def _silent(self, end: int) -> LogError:
        telling = self.complaints.telling()
        if telling is not None:
            return self.cluster.log_error(self.who, telling, self.complaints)
        what = f"{self.who} gave nothing of the offsets {self.position} to {end - 1} for {PATIENCE:.0f} seconds"
        return TransientLogError(30, what)


_lock = threading.Lock()
_idle: dict[_Key, list[_Reader]] = {}


def read_range(
    cluster: Cluster, topic: str, partition: int, start: int, end: int, metadata: bool
) -> Iterator[pa.RecordBatch]:
    """The records with start <= offset < end. May be closed before its end."""
    if start >= end:
        return
    reader = _borrowed(cluster, topic, partition)
    try:
        reader.check(start, end)
        reader.seek(start)
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for messages in reader.messages(end):
            if not messages:
                continue
            batch = _batch(messages, topic, partition, metadata)
            del messages  # half of the memory, and it must not wait for the next list
            if rows + batch.num_rows > BATCH_ROWS or size + batch.nbytes > _BATCH_BYTES:
                yield from _together(held)
                held, rows, size = [], 0, 0
            held.append(batch)
            rows, size = rows + batch.num_rows, size + batch.nbytes
        yield from _together(held)
    except GeneratorExit:
        reader.position = -1  # what was fetched and not given must be fetched again
        _give_back(reader)
        raise
    except BaseException:
        reader.consumer.close()
        raise
    _give_back(reader)


def in_batches(messages: list[Any], topic: str, partition: int, metadata: bool) -> Iterator[pa.RecordBatch]:
    """Messages that were fetched before, as `read_range` gives them."""
    for start in range(0, len(messages), _TAKE):
        yield _batch(messages[start : start + _TAKE], topic, partition, metadata)


def _borrowed(cluster: Cluster, topic: str, partition: int) -> _Reader:
    with _lock:
        waiting = _idle.get(_key(cluster, topic, partition))
        if waiting:
            return waiting.pop()
    reader = _Reader(cluster, topic, partition)
    reader.open()
    return reader


def _give_back(reader: _Reader) -> None:
    """Keep it for the next read of this partition; the one that waited longest makes room."""
    key, surplus = _key(reader.cluster, reader.topic, reader.partition), None
    with _lock:
        kept = _idle.pop(key, [])
        _idle[key] = [*kept, reader]  # now the last one of the dictionary
        if sum(map(len, _idle.values())) > _IDLE_CONSUMERS:
            oldest = next(key for key, readers in _idle.items() if readers)
            surplus = _idle[oldest].pop(0)
    if surplus is not None:
        surplus.consumer.close()


def _key(cluster: Cluster, topic: str, partition: int) -> _Key:
    # A consumer does not survive a fork: the child has none of its threads.
    return os.getpid(), cluster.identity(), topic, partition


def _taken(consumer: Any, count: int) -> list[Any]:
    """What is there."""
    with without_collecting():
        found: list[Any] = consumer.consume(count, 0)
    return found


def _is_ascending(messages: list[Any]) -> bool:
    """Whether the ends allow it: a second copy of a record makes a list longer than the offsets that it spans."""
    return bool(messages[-1].offset() - messages[0].offset() + 1 >= len(messages))


def _from(position: int, messages: list[Any]) -> list[Any]:
    """The messages without those that were given already: what is fetched again may come twice."""
    kept = []
    for message in messages:
        if message.offset() >= position:
            kept.append(message)
            position = message.offset() + 1
    return kept


def _batch(messages: list[Any], topic: str, partition: int, metadata: bool) -> pa.RecordBatch:
    """Column by column: the calls run in C, without a line of Python per message."""
    kind, count = type(messages[0]), len(messages)
    offsets = np.fromiter(map(kind.offset, messages), np.int64, count)
    stamps = np.fromiter(map(itemgetter(1), map(kind.timestamp, messages)), np.int64, count)
    times = pa.array(stamps * 1000, mask=stamps < 0).cast(RECORD.field("time").type)
    keys = pa.array(map(kind.key, messages), pa.binary(), size=count)
    values = pa.array(map(kind.value, messages), pa.binary(), size=count)
    columns = [pa.array(offsets), times, keys, values]
    if not metadata:
        return pa.RecordBatch.from_arrays(columns, schema=RECORD)
    headers = [[{"key": k, "value": v} for k, v in pairs or ()] for pairs in map(kind.headers, messages)]
    own = pa.repeat(pa.scalar(partition, pa.int32()), count)
    columns += [pa.repeat(topic, count), own, pa.array(headers, HEADERS)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([*RECORD, *METADATA]))


def _together(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    if batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()


def _bounded(messages: list[Any]) -> int:
    """How many to take next, so that large records do not fill the memory."""
    size = sum(map(len, messages)) if messages else 0
    return max(1, min(_TAKE, _BATCH_BYTES * len(messages) // max(size, 1)))
