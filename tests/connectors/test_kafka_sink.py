"""Kafka as a sink: the contract, read back by a consumer that shares nothing with it."""

from __future__ import annotations

import contextlib
import json
import math
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from hailstorm.columns import KIND
from hailstorm.errors import SinkError, TransientSinkError
from hailstorm.sinks.kafka import producer as kafka_producer
from hailstorm.sinks.kafka.sink import Kafka
from hailstorm.sinks.sink import Delivery, Parcel, Rejected
from tests.connectors.kafka_topics import Topics
from tests.connectors.servers.kafka import USER, free_ports
from tests.connectors.sink_contract import COUNTS, Harness, Json, SinkContract, changes, got, stream


@dataclass
class KafkaHarness:
    """A topic with two partitions for each target, and a topic of cursors of its own: tests share their names."""

    topics: Topics
    forgets: bool = False
    made: dict[str, str] = field(default_factory=dict)
    cursors: str = field(init=False)

    def __post_init__(self) -> None:
        self.cursors = self.topics.new("cursors", cleanup_policy="compact")

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
    is_a_log = True
    has_owner = False

    @pytest.fixture
    def harness(self, topics: Topics) -> Harness:
        return KafkaHarness(topics)


def counts(topic: str, topics: Topics, **more: Any) -> Kafka:
    return Kafka(topic, servers=topics.server.servers, **more)


class TestRecords:
    def test_a_delete_is_a_tombstone_and_the_key_is_the_tables(self, topics: Topics) -> None:
        sink = counts(topics.new("stones"), topics)
        sink.open(Delivery("stones", "out", "ledger", COUNTS, ("word",), True))
        sink.deliver(Parcel.of(1, changes(("insert", "rain", 1), ("delete", "hail", None))))
        sink.close()
        found = [(message.key(), message.value()) for message in topics.read(str(sink.topic))]
        assert found == [(b'{"word":"rain"}', b'{"word":"rain","n":1}'), (b'{"word":"hail"}', None)]

    def test_key_headers_and_partition_are_as_the_user_says(self, topics: Topics) -> None:
        schema = pa.schema([("word", pa.string()), ("n", pa.int64()), ("to", pa.int32())])
        rows = pa.Table.from_pylist(
            [{"word": "rain", "n": 7, "to": 2}, {"word": None, "n": None, "to": 0}], schema=schema
        )
        sink = counts(topics.new("said", 3), topics, key="word", headers={"count": "n", "w": "word"}, partition="to")
        sink.open(Delivery("said", "out", "ledger", schema, (), False))
        sink.deliver(Parcel.of(1, rows))
        sink.close()
        found = [(m.partition(), m.key(), m.headers()) for m in topics.read(str(sink.topic), 3)]
        assert found == [
            (0, None, [("count", None), ("w", None)]),
            (2, b"rain", [("count", b"7"), ("w", b"rain")]),
        ]

    def test_rows_of_a_key_come_in_the_order_of_commits(self, topics: Topics) -> None:
        sink = counts(topics.new("order", 4), topics)
        sink.open(Delivery("order", "out", "ledger", COUNTS, ("word",), True))
        for commit in range(1, 20):
            sink.deliver(Parcel.of(commit, changes(*(("update", f"word {number}", commit) for number in range(50)))))
        sink.close()
        seen: dict[bytes, list[int]] = {}
        for message in topics.read(str(sink.topic), 4):
            seen.setdefault(message.key() or b"", []).append(json.loads(message.value() or b"")["n"])
        assert len(seen) == 50
        assert all(numbers == list(range(1, 20)) for numbers in seen.values())

    def test_a_commit_larger_than_the_clients_queue_arrives(self, topics: Topics) -> None:
        sink = counts(topics.new("many"), topics, options={"queue.buffering.max.messages": 1000})
        sink.open(Delivery("many", "out", "ledger", COUNTS, (), False))
        sink.deliver(Parcel.of(1, stream(*((f"word {number}", number) for number in range(20_000)))))
        sink.close()
        assert len(topics.read(str(sink.topic))) == 20_000


class TestTrouble:
    def test_a_row_that_is_too_large_is_rejected_and_the_others_arrive(self, topics: Topics) -> None:
        rejected: list[tuple[int, Rejected]] = []
        sink = counts(topics.new("small", max_message_bytes="20000"), topics)
        sink.open(
            Delivery(
                "small",
                "out",
                "ledger",
                COUNTS,
                (),
                False,
                reject=lambda commit, rows: rejected.extend((commit, row) for row in rows),
            )
        )
        # Together they are larger than the topic takes at once: the client must cut its batches to size.
        many = [(f"{number} " + "." * 9000, number) for number in range(20)]
        sink.deliver(Parcel.of(1, stream(("x" * 20_000, 1), *many)))
        sink.close()
        assert [(commit, row.row) for commit, row in rejected] == [(1, 0)]
        assert "at most 20000" in rejected[0][1].reason
        assert len(topics.read(str(sink.topic))) == 20

    def test_a_null_key_that_the_user_asked_for_is_rejected_in_a_table(self, topics: Topics) -> None:
        sink = counts(topics.new("bare"), topics, key="word")
        sink.open(Delivery("ratios", "bare", "ledger", COUNTS, ("word",), True))
        with pytest.raises(SinkError, match="key is null"):
            sink.deliver(Parcel.of(1, changes(("insert", None, 1))))
        sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
        sink.close()
        assert [message.key() for message in topics.read(str(sink.topic))] == [b"rain"]

    @pytest.mark.parametrize("before", [1, 2])  # the next one is written by the one or the other of its two producers
    def test_a_second_driver_takes_over_and_the_first_writes_no_more(self, topics: Topics, before: int) -> None:
        topic = topics.new(f"fenced-{before}")
        first, second = counts(topic, topics), counts(topic, topics)
        delivery = Delivery(f"fenced-{before}", "out", "ledger", COUNTS, (), False)
        first.open(delivery)
        for commit in range(1, before + 1):
            first.deliver(Parcel.of(commit, stream(("rain", commit))))
        second.open(delivery)
        assert got(second) == before
        with pytest.raises(SinkError, match="another driver has taken over") as caught:
            first.deliver(Parcel.of(before + 1, stream(("from the zombie", 2))))
        assert not isinstance(caught.value, TransientSinkError)
        first.close()
        second.deliver(Parcel.of(before + 1, stream(("hail", 2))))
        second.close()
        assert [json.loads(m.value() or b"")["word"] for m in topics.read(topic)] == ["rain"] * before + ["hail"]

    def test_drivers_that_open_at_the_same_moment_write_each_commit_once(self, topics: Topics) -> None:
        topic = topics.new("crossed")
        sinks = [counts(topic, topics), counts(topic, topics)]
        delivery = Delivery("crossed", "out", "ledger", COUNTS, (), False)
        delivered: list[int] = []
        for turn in range(6):
            with ThreadPoolExecutor(2) as pool:
                opening = [(sink, pool.submit(sink.open, delivery)) for sink in sinks]
            opened = [sink for sink, future in opening if future.exception() is None]  # one may be fenced in between
            for commit in (2 * turn + 1, 2 * turn + 2):
                for sink in opened:
                    with contextlib.suppress(SinkError):
                        sink.deliver(Parcel.of(commit, stream(("rain", commit))))
                        delivered.append(commit)
                        break
            for sink in sinks:
                sink.close()
        assert delivered
        assert [json.loads(m.value() or b"")["n"] for m in topics.read(topic)] == delivered

    def test_a_driver_that_rests_between_its_two_ids_doubles_nothing(
        self, topics: Topics, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        topic = topics.new("rested")
        slow, quick = counts(topic, topics), counts(topic, topics)
        delivery = Delivery("rested", "out", "ledger", COUNTS, (), False)
        library = kafka_producer.load()
        opened: list[str] = []

        class Resting:
            """While the first driver rests before its second id, the other one opens both, and writes."""

            def __getattr__(self, name: str) -> Any:
                return getattr(library, name)

            def Producer(self, settings: dict[str, Any]) -> Any:
                opened.append(settings["transactional.id"])
                if len(opened) == 2:
                    quick.open(delivery)
                    quick.deliver(Parcel.of(1, stream(("rain", 1))))
                return library.Producer(settings)

        resting = Resting()
        monkeypatch.setattr(kafka_producer, "load", lambda: resting)
        slow.open(delivery)
        assert got(slow) == 1
        written = [1]
        for sink in (quick, slow):  # both have commit 2, and the first one does not know yet that it was taken over
            with contextlib.suppress(SinkError):
                sink.deliver(Parcel.of(2, stream(("hail", 2))))
                written.append(2)
        quick.close()
        slow.close()
        assert written == [1, 2]
        assert [json.loads(m.value() or b"")["n"] for m in topics.read(topic)] == written

    def test_a_transaction_that_timed_out_is_delivered_again_while_the_ledger_is_ours(self, topics: Topics) -> None:
        topic = topics.new("slow")
        sink = counts(topic, topics, options={"transaction.timeout.ms": "1000"})
        delivery = Delivery("slow", "out", "ledger", COUNTS, (), False, has_ledger=lambda: True)

        def slowly() -> Iterator[pa.Table]:
            for word in ("rain", "hail"):
                yield stream((word, 1))
                time.sleep(2.5)  # as a driver that is suspended, or that has very much to say

        sink.open(delivery)
        with pytest.raises(TransientSinkError, match="took too long"):
            sink.deliver(Parcel(1, 2, slowly))
        sink.close()
        sink.open(delivery)
        assert got(sink) is None
        sink.deliver(Parcel.of(1, stream(("rain", 1), ("hail", 1))))
        sink.close()
        assert [json.loads(m.value() or b"")["word"] for m in topics.read(topic)] == ["rain", "hail"]

    def test_a_broker_that_allows_only_short_transactions_gets_short_ones(
        self, topics: Topics, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(kafka_producer, "_LONG_TRANSACTION", 900_001)  # the broker takes at most 900,000
        sink = counts(topics.new("short"), topics)
        sink.open(Delivery("short", "out", "ledger", COUNTS, (), False))
        sink.deliver(Parcel.of(1, stream(("rain", 1))))
        assert got(sink) == 1
        sink.close()

    def test_a_transaction_timeout_that_the_broker_refuses_is_told(self, topics: Topics) -> None:
        sink = counts(topics.new("long"), topics, options={"transaction.timeout.ms": "900001"})
        with pytest.raises(SinkError, match=r"transaction\.max\.timeout\.ms") as caught:
            sink.open(Delivery("long", "out", "ledger", COUNTS, (), False))
        assert not isinstance(caught.value, TransientSinkError)

    def test_a_cursor_behind_another_ones_open_transaction_is_waited_for(self, topics: Topics) -> None:
        cursors, topic = topics.new("cursors", cleanup_policy="compact"), topics.new("held")
        settings = {"bootstrap.servers": topics.server.servers, "transactional.id": "a slow sink"}
        slow = Producer(settings)
        sink = counts(topic, topics, cursor_topic=cursors)
        sink.open(Delivery("held", "out", "ledger", COUNTS, (), False))
        slow.init_transactions(30)
        slow.begin_transaction()
        slow.produce(cursors, b"{}", b"not ours")
        slow.flush(30)
        sink.deliver(Parcel.of(1, stream(("rain", 1))))
        sink.close()
        again = counts(topic, topics, cursor_topic=cursors)
        with pytest.raises(TransientSinkError, match="open transaction"):
            again.open(Delivery("held", "out", "ledger", COUNTS, (), False))
        slow.abort_transaction(30)
        topics.settle(cursors)
        again.open(Delivery("held", "out", "ledger", COUNTS, (), False))
        assert got(again) == 1
        again.close()

    def test_a_topic_of_cursors_that_forgets_is_refused(self, topics: Topics) -> None:
        cursors, topic = topics.new("forgetful", cleanup_policy="delete"), topics.new("out")
        with pytest.raises(SinkError, match="HS-SNK-065") as caught:
            counts(topic, topics, cursor_topic=cursors).open(Delivery("t", "out", "ledger", COUNTS, (), False))
        assert "cleanup.policy=compact" in caught.value.hint

    def test_a_topic_that_was_made_again_has_lost_its_table(self, topics: Topics) -> None:
        topic = topics.new("again")
        delivery = Delivery("again", "out", "ledger", COUNTS, ("word",), True)
        sink = counts(topic, topics)
        sink.open(delivery)
        sink.deliver(Parcel.of(1, changes(("insert", "rain", 1))))
        sink.close()
        topics.delete(topic)
        topics.create(topic)
        again = counts(topic, topics)
        with pytest.raises(SinkError, match="HS-SNK-063") as caught:
            again.open(delivery)
        assert "hailstorm resend APP out" in caught.value.hint

    def test_a_partition_that_the_topic_does_not_have_is_a_dead_letter_and_no_wait(self, topics: Topics) -> None:
        rejected: list[Rejected] = []
        sink = counts(topics.new("parts", 2), topics, partition="n")
        reject = lambda commit, rows: rejected.extend(rows)  # noqa: E731
        sink.open(Delivery("parts", "out", "ledger", COUNTS, (), False, reject=reject))
        sink.deliver(Parcel.of(1, stream(("rain", 1), ("hail", 2), ("snow", -1), ("sleet", None))))
        assert got(sink) == 1
        sink.close()
        assert [one.row for one in rejected] == [1, 2, 3]
        assert rejected[0].reason == "'n' is 2, which is no partition of the topic: it has 2"

    def test_a_partition_that_the_topic_has_got_meanwhile_is_written_to(self, topics: Topics) -> None:
        sink = counts(topics.new("growing", 1), topics, partition="n")
        sink.open(Delivery("growing", "out", "ledger", COUNTS, (), False))
        sink.deliver(Parcel.of(1, stream(("rain", 0))))
        topics.grow(str(sink.topic), 2)
        sink.deliver(Parcel.of(2, stream(("hail", 1))))
        sink.close()
        assert [message.partition() for message in topics.read(str(sink.topic), 2)] == [0, 1]

    def test_a_partition_that_is_no_integer_is_refused_at_opening(self, topics: Topics) -> None:
        sink = counts(topics.new("words"), topics, partition="word")
        with pytest.raises(SinkError, match="HS-SNK-014"):
            sink.open(Delivery("words", "out", "ledger", COUNTS, (), False))

    def test_keys_without_digits_are_keys_of_their_own(self, topics: Topics) -> None:
        schema = pa.schema([("ratio", pa.float64())])
        rows = pa.table({"ratio": [math.nan, math.inf, -math.inf, None]}, schema=schema)
        table = counts(topics.new("ratios"), topics)
        table.open(Delivery("ratios", "out", "ledger", schema, ("ratio",), True))
        table.deliver(Parcel.of(1, rows.append_column(KIND, pa.array(["insert"] * 4))))
        table.close()
        bare = counts(topics.new("bare"), topics, key="ratio")
        bare.open(Delivery("bare", "out", "ledger", schema, (), False))
        bare.deliver(Parcel.of(1, rows))
        bare.close()
        names = ["NaN", "Infinity", "-Infinity"]
        found = [json.loads(message.key()) for message in topics.read(str(table.topic))]
        assert found == [*({"ratio": name} for name in names), {"ratio": None}]
        assert [message.key() for message in topics.read(str(bare.topic))] == [*(n.encode() for n in names), None]

    def test_a_topic_that_is_not_there_is_named(self, topics: Topics) -> None:
        with pytest.raises(SinkError, match="'nowhere' is not there"):
            counts("nowhere", topics).open(Delivery("t", "out", "ledger", COUNTS, (), False))

    def test_a_broker_that_is_down_is_tried_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kafka_producer, "PATIENCE", 2.0)
        sink = Kafka("t", servers=f"127.0.0.1:{free_ports(1)[0]}")
        with pytest.raises(TransientSinkError, match="cannot be reached"):
            sink.open(Delivery("t", "out", "ledger", COUNTS, (), False))

    def test_a_wrong_password_stops_the_sink_and_is_not_shown(self, topics: Topics) -> None:
        options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
        sink = Kafka("t", servers=topics.server.guarded_servers, options={**options, "sasl.password": "wrong-one"})
        with pytest.raises(SinkError, match="refuses us") as caught:
            sink.open(Delivery("t", "out", "ledger", COUNTS, (), False))
        assert not isinstance(caught.value, TransientSinkError)
        assert "wrong-one" not in str(caught.value) + str(sink.describe())

    @pytest.mark.parametrize("more", [{"key": "wrod"}, {"headers": {"x": "wrod"}}, {"partition": "wrod"}, {"key": "n"}])
    def test_columns_that_do_not_fit_are_found_when_it_opens(self, topics: Topics, more: dict[str, Any]) -> None:
        with pytest.raises(SinkError, match=r"wrod|names others"):
            counts("t", topics, **more).open(Delivery("t", "out", "ledger", COUNTS, ("word",), True))

    def test_a_pattern_is_no_place_to_write_to(self, topics: Topics) -> None:
        sink = Kafka(pattern="a.*", servers=topics.server.servers)
        with pytest.raises(SinkError, match="one topic"):
            sink.open(Delivery("t", "out", "ledger", COUNTS, (), False))
