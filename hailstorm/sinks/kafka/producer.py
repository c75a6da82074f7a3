"""Transactions of the Kafka sink: the rows of a commit and its number, visible together or not at all.

The commit's number goes to a compacted topic of cursors, in the same transaction as the rows. The transactional id
names topology and sink: who opens it last is the only one who can commit, and what an earlier one left open is
aborted. So the cursor is read after opening, and it is the truth.

There are two producers that take turns, each with a transactional id of its own. A broker marks the end of a
transaction a moment after it has said that it is committed; a producer that begins the next one within that moment is
told to come back, and librdkafka does so after 20 ms. The other producer need not wait. Both are taken over before the
cursor is read (`_begin`), and one begins only when the other's transaction is decided, so the order of commits is that
of one.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow.compute as pc

from hailstorm import faults
from hailstorm.errors import LogError, SinkError, TransientLogError, TransientSinkError
from hailstorm.sinks.kafka.rows import Records
from hailstorm.sinks.sink import Cursor, Delivery, old_cursor
from hailstorm.spouts.kafka.client import Cluster, Complaints, Trouble, explained, load, load_admin
from hailstorm.spouts.kafka.reader import read_range

PATIENCE = 10.0  # seconds; after that, delivery waits and tries again
_LARGEST = 1_000_000  # librdkafka's own limit of a record, unless the user's options say otherwise
# Milliseconds after which a broker aborts a transaction: what brokers allow unless they are told otherwise, because a
# whole table goes in one; and librdkafka's own default, which one that allows less than that may take.
_LONG_TRANSACTION, _SHORT_TRANSACTION = 900_000, 60_000
_TRANSACTION, _MESSAGE = "transaction.timeout.ms", "message.timeout.ms"
_LONGEST_MESSAGE = 60_000  # a broker that is away is heard of after that, however long the transaction may be
_TOO_LONG = "INVALID_TRANSACTION_TIMEOUT"

_DEFAULTS = {
    "linger.ms": 5,
    "partitioner": "murmur2_random",  # as Java's clients do, so that topics can be joined by partition
    "queue.buffering.max.messages": 500_000,
    "queue.buffering.max.kbytes": 262_144,
}
_CURSORS = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.1",
    "min.compaction.lag.ms": "0",
}


@dataclass
class Transactions:
    """Open producers. Whatever it raises, its next use is after `open` by a new one, or an aborted transaction."""

    cluster: Cluster
    topic: str
    cursor_topic: str
    delivery: Delivery
    complaints: Complaints = field(default_factory=Complaints)
    producers: list[Any] = field(default_factory=list)  # the first one writes the next transaction
    cursor: Cursor | None = None
    largest: int = _LARGEST
    partitions: int = 0
    topic_id: str = ""

    @property
    def id(self) -> str:
        """The key of the cursor, and the transactional id of one producer. That of the other begins with it."""
        return f"hailstorm/{self.delivery.owner}"

    @property
    def producer(self) -> Any:
        return self.producers[0]

    def open(self) -> None:
        """Check the topics, take over from whoever wrote before, and read how far that one got."""
        try:
            self._check_topics()
            self._take_over()
            self._check_cursor(self._read_cursor())
        except load().KafkaException as error:
            raise self._sink_error(error.args[0]) from None
        except TransientLogError as error:
            raise TransientSinkError(6, error.what, hint=error.hint) from None
        except LogError as error:
            raise SinkError(1, error.what, hint=error.hint) from None

    def _take_over(self) -> None:
        """As the writer of this transactional id, with transactions as long as the user says or the broker allows."""
        if _TRANSACTION in self.cluster.options:
            self._begin(int(self.cluster.options[_TRANSACTION]))
            return
        try:
            self._begin(_LONG_TRANSACTION)
        except load().KafkaException as error:
            if error.args[0].name() != _TOO_LONG:
                raise
            self.close()
            self._begin(_SHORT_TRANSACTION)

    def _begin(self, transaction: int) -> None:
        """Take over both ids, the plain one once more at the end: between the first two, another driver may have taken
        both, and might still write with the plain one. The other id writes first, so of two drivers that open at the
        same moment only the one that opened it last can write at all, and its cursor has all that the other wrote."""
        timeouts = {_TRANSACTION: transaction, _MESSAGE: min(transaction, _LONGEST_MESSAGE)}
        sizes = {"message.max.bytes": self.largest, "batch.size": self.largest - 500}
        for own in (self.id, f"{self.id}/2", self.id):
            fixed = {"transactional.id": own, **sizes}
            producer = load().Producer(self.cluster.settings(self.complaints, {**_DEFAULTS, **timeouts}, fixed))
            self.producers = [producer, *self.producers[:1]]  # the newest is the one that an error is about
            self.complaints.listen = partial(producer.poll, 0.1)
            producer.init_transactions(PATIENCE)
        self.producers.reverse()
        self.complaints.listen = self._listen

    def write(self, commit: int, pieces: Iterator[Records]) -> None:
        try:
            self.producer.begin_transaction()
            try:
                for found in pieces:
                    self._produce(found)
                cursor = {"ledger": self.delivery.ledger, "commit": commit, "topic_id": self.topic_id}
                self._send(self.cursor_topic, json.dumps(cursor), self.id, 0)
                self.producer.flush(PATIENCE)
                faults.fault("during-delivery")
                self._commit()
            except BaseException:
                self._abort()
                raise
        except load().KafkaException as error:
            raise self._sink_error(error.args[0]) from None
        self.producers.reverse()
        self.cursor = Cursor(self.delivery.ledger, commit)

    def look_for_partition(self, number: int | None) -> None:
        """Ask again for the topic's partitions, of which it may have got more since it was opened."""
        if number is not None and number >= self.partitions:
            # By the producers, which must know them, too.
            found = [one.list_topics(self.topic, PATIENCE).topics[self.topic].partitions for one in self.producers]
            self.partitions = min(map(len, found))

    def close(self) -> None:
        while self.producers:
            producer = self.producers.pop()
            with contextlib.suppress(load().KafkaException):  # of one that was fenced
                producer.purge()
                producer.flush(0.1)

    def _listen(self) -> None:
        for producer in self.producers:
            producer.poll(0.05)

    def _produce(self, found: Records) -> None:
        for value, key, partition, headers in found.arguments():
            self._send(self.topic, value, key, partition, headers)

    def _send(self, topic: str, value: Any, key: Any, partition: int, headers: Any = None) -> None:
        while True:
            try:
                self.producer.produce(topic, value, key, partition, headers=headers)
                return
            except BufferError:  # librdkafka's queue is full: let it send some
                self.producer.poll(0.005)

    def _commit(self) -> None:
        while True:
            try:
                self.producer.commit_transaction(PATIENCE)
                return
            except load().KafkaException as error:
                # Asking again is safe while nobody knows: it is the same transaction.
                if not error.args[0].retriable() or error.args[0].name() == "_TIMED_OUT":
                    raise

    def _abort(self) -> None:
        """What cannot be aborted now is aborted by the next one who opens."""
        with contextlib.suppress(load().KafkaException):
            self.producer.purge()
            self.producer.abort_transaction(PATIENCE)

    # --- topics

    def _check_topics(self) -> None:
        """The topic must be there; the one for cursors is made."""
        library, kinds, who = load(), load_admin(), f"topic '{self.topic}'"
        topics = library.TopicCollection([self.topic])
        described = self._asked(who, lambda admin: admin.describe_topics(topics, request_timeout=PATIENCE))
        topic = described[self.topic]
        self.partitions, self.topic_id = len(topic.partitions), str(topic.topic_id)
        self._make_cursor_topic()
        self._check_cursor_topic()
        about = [kinds.ConfigResource(kinds.ResourceType.TOPIC, self.topic)]
        found = self._asked(who, lambda admin: admin.describe_configs(about, request_timeout=PATIENCE))
        # librdkafka makes batches up to its own limit, and the broker refuses whole batches that are over its.
        own = int(self.cluster.options.get("message.max.bytes", _LARGEST))
        self.largest = min(own, *(int(config["max.message.bytes"].value) for config in found.values()))

    def _make_cursor_topic(self) -> None:
        who = f"topic '{self.cursor_topic}'"
        if self.cursor_topic in self.cluster.topics(who, PATIENCE):
            return
        admin, complaints = self.cluster.admin()
        with self.cluster.understood(who, complaints):
            new = load_admin().NewTopic(self.cursor_topic, 1, config=_CURSORS)
            try:
                admin.create_topics([new], operation_timeout=PATIENCE)[self.cursor_topic].result(PATIENCE + 5)
            except load().KafkaException as error:
                if error.args[0].name() != "TOPIC_ALREADY_EXISTS":  # another sink was faster
                    raise
        # A broker may know of it a moment later than the one that has made it.
        deadline = time.monotonic() + PATIENCE
        while self.cursor_topic not in self.cluster.topics(who, PATIENCE) and time.monotonic() < deadline:
            time.sleep(0.05)

    def _check_cursor_topic(self) -> None:
        """Cursors must stay for ever: a topic that deletes old records would let a sink begin again and double rows."""
        kinds, who = load_admin(), f"topic '{self.cursor_topic}'"
        about = [kinds.ConfigResource(kinds.ResourceType.TOPIC, self.cursor_topic)]
        for config in self._asked(who, lambda admin: admin.describe_configs(about, request_timeout=PATIENCE)).values():
            policy = config["cleanup.policy"].value
            if policy != "compact":
                raise SinkError(
                    65,
                    f"{who} has cleanup.policy={policy}: it would forget how far sinks are",
                    hint=f"Set it to compact: kafka-configs.sh --alter --entity-type topics --entity-name "
                    f"{self.cursor_topic} --add-config cleanup.policy=compact\nor name another one with cursor_topic=.",
                )

    def _asked(self, who: str, ask: Callable[[Any], Mapping[Any, Any]]) -> dict[Any, Any]:
        return self.cluster.asked(who, ask, PATIENCE)

    def _check_cursor(self, found: dict[str, Any] | None) -> None:
        """Take what the topic of cursors says, unless it cannot be about this topic as it is now."""
        if found is None:
            return
        if "ledger" not in found:
            raise old_cursor(f"topic '{self.cursor_topic}'")
        delivery = self.delivery
        if delivery.is_table and found["topic_id"] != self.topic_id and not delivery.takes_over:
            raise delivery.lost_rows(f"topic '{self.topic}'", "was deleted and made again")
        self.cursor = Cursor(found["ledger"], int(found["commit"]))

    def _read_cursor(self) -> dict[str, Any] | None:
        """What this sink wrote last into the topic of cursors."""
        library, specs = load(), load_admin().OffsetSpec
        place = library.TopicPartition(self.cursor_topic, 0)

        def end_at(spec: Any, level: Any) -> int:
            found = self.cluster.offsets(f"topic '{self.cursor_topic}'", {place: spec}, level, PATIENCE)
            return found[self.cursor_topic, 0]

        levels = library.IsolationLevel
        everything = end_at(specs.latest(), levels.READ_UNCOMMITTED)
        stable = end_at(specs.latest(), levels.READ_COMMITTED)
        first = end_at(specs.earliest(), levels.READ_COMMITTED)
        # Another sink's open transaction hides what was committed after it began: ours may be among that.
        loose = Cluster(self.cluster.servers, {**self.cluster.options, "isolation.level": "read_uncommitted"})
        if self._last_of_ours(loose, stable, everything) is not None:
            raise TransientSinkError(
                6, f"the cursor of sink '{self.delivery.sink}' is behind another sink's open transaction"
            )
        strict = Cluster(self.cluster.servers, {**self.cluster.options, "isolation.level": "read_committed"})
        return self._last_of_ours(strict, first, stable)

    def _last_of_ours(self, cluster: Cluster, start: int, end: int) -> dict[str, Any] | None:
        found: dict[str, Any] | None = None
        for batch in read_range(cluster, self.cursor_topic, 0, start, end, metadata=False):
            ours = batch.filter(pc.equal(batch.column("key"), self.id.encode()))
            if ours.num_rows:
                found = json.loads(ours.column("value")[-1].as_py())
        return found

    def _end_of_producer(self, error: Any) -> Any:
        """Why the producer can do no more: `produce` only says that it is so, the calls of transactions say why."""
        try:
            self.producer.abort_transaction(PATIENCE)
        except load().KafkaException as found:
            return found.args[0]
        return error

    def _sink_error(self, error: Any) -> SinkError:
        if error.name() == "_FATAL":
            error = self._end_of_producer(error)
        trouble, why = explained(error, self.complaints)
        what = f"topic '{self.topic}' {trouble.value}: {self.cluster.cleaned(why)}"
        match trouble:
            case Trouble.UNREACHABLE | Trouble.BUSY:
                return TransientSinkError(6, what, hint="It is tried again.")
            case Trouble.FENCED if self.delivery.has_ledger():
                # Nobody else is there: the broker has aborted a transaction that took longer than it allows.
                hint = f"Its rows are delivered again. To allow more time: options={{'{_TRANSACTION}': '900000'}}"
                return TransientSinkError(6, f"a transaction of topic '{self.topic}' took too long", hint=hint)
            case Trouble.FENCED:
                hint = f"It opened the transactional id {self.id} after this one; this one writes no more."
                return SinkError(15, f"another driver has taken over sink '{self.delivery.sink}'", hint=hint)
            case Trouble.DENIED:
                return SinkError(1, what, hint="Check user, password and rights: sasl.* and ssl.* in options=.")
            case Trouble.MISSING:
                return SinkError(1, what, hint="Create the topic, or correct its name.")
        if error.name() == _TOO_LONG:
            hint = f"Set {_TRANSACTION} in options= to at most what the broker's transaction.max.timeout.ms says."
            return SinkError(1, what, hint=hint)
        if error.txn_requires_abort():
            return TransientSinkError(6, what, hint="The transaction was aborted; it is tried again.")
        return SinkError(11, what)
