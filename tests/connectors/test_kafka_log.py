"""Kafka as a log: the contract, and what only Kafka does."""

from __future__ import annotations

import pickle
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from hailstorm.errors import LogError, TopologyError, TransientLogError, UsageError
from hailstorm.sinks.kafka.sink import Kafka
from hailstorm.spouts.kafka import reader as kafka_reader
from hailstorm.spouts.kafka import source as kafka
from hailstorm.spouts.source import LivingSource, holes
from tests.connectors.kafka_topics import Topics
from tests.connectors.log_contract import LogContract, read, some
from tests.connectors.servers.kafka import PASSWORD, USER, free_ports


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

    def remake(self) -> None:
        self.topics.delete(self.topic)
        self.topics.create(self.topic, self.partitions)
        kafka._layouts.clear()  # as in a new process
        kafka._rosters.clear()

    def forget(self) -> list[Path]:
        pytest.skip("what is on Kafka's disks is Kafka's")

    def expire(self) -> None:
        self.topics.remove_before(self.topic, 40)


class TestKafka(LogContract):
    @pytest.fixture
    def harness(self, topics: Topics) -> KafkaHarness:
        return KafkaHarness(topics)


def values(source: Kafka, start: int, end: int, partition: int = 0) -> list[Any]:
    found: list[Any] = read(source, partition, start, end)["value"].to_pylist()
    return found


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """New topics and partitions are looked for at every question."""
    monkeypatch.setattr(kafka, "_REFRESH", 0.0)
    monkeypatch.setattr(kafka, "_SETTLING", 0.3)


class TestGaps:
    def test_a_range_that_ends_in_transaction_markers_ends(self, topics: Topics) -> None:
        topic = topics.new("marked")
        topics.transaction(topic, some(3, "a"))
        topics.transaction(topic, some(2, "b"))
        source = Kafka(topic, servers=topics.server.servers)
        assert source.latest() == {0: 7}  # two markers
        began = time.monotonic()
        assert values(source, 0, 7) == some(3, "a") + some(2, "b")
        assert values(source, 3, 4) == []
        assert values(source, 5, 7) == [b'{"b": 1}']
        assert time.monotonic() - began < 5

    def test_an_aborted_transaction_is_not_there(self, topics: Topics) -> None:
        topic = topics.new("aborted")
        source = Kafka(topic, servers=topics.server.servers)
        topics.write(topic, some(5, "a"))
        assert values(source, 0, source.latest()[0]) == some(5, "a")
        # The consumer now stands at the end, and there is nothing but aborted records to come.
        topics.transaction(topic, some(4, "lost"), commit=False)
        assert source.latest() == {0: 10}
        assert values(source, 5, 10) == []
        topics.write(topic, some(2, "b"))
        assert values(source, 5, 12) == some(2, "b")
        uncommitted = Kafka(topic, servers=topics.server.servers, options={"isolation.level": "read_uncommitted"})
        assert values(uncommitted, 5, 12) == some(4, "lost") + some(2, "b")

    def test_an_open_transaction_holds_the_end_back(self, topics: Topics) -> None:
        topic = topics.new("open")
        topics.write(topic, some(2))
        producer = Producer({"bootstrap.servers": topics.server.servers, "transactional.id": topic})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce(topic, b"not yet")
        producer.flush(30)
        topics.write(topic, some(1, "after"))
        source = Kafka(topic, servers=topics.server.servers)
        assert source.latest() == {0: 2}
        producer.commit_transaction(30)
        topics.settle(topic)
        assert source.latest() == {0: 5}
        assert values(source, 2, 5) == [b"not yet", *some(1, "after")]

    def test_a_compacted_topic_reads_the_same_in_any_cut(self, topics: Topics) -> None:
        topic = topics.new(
            "compacted",
            cleanup_policy="compact",
            segment_ms="100",
            min_cleanable_dirty_ratio="0.01",
            segment_bytes="1048576",
        )
        for number in range(30):
            topics.write(topic, [b"%d" % number], key=b"same")
        source = Kafka(topic, servers=topics.server.servers)
        deadline = time.monotonic() + 60
        while len(topics.read(topic)) > 3:
            assert time.monotonic() < deadline, "the cleaner did not come"
            topics.write(topic, [b"more"], key=b"same")  # rolls the segment
            time.sleep(0.5)
        end = source.latest()[0]
        whole = read(source, 0, 0, end)
        assert 0 < whole.num_rows < end
        first = whole["offset"][0].as_py()
        assert values(source, 0, first) == []
        assert values(source, 0, 3) + values(source, 3, end) == whole["value"].to_pylist()


class TestTopics:
    def test_several_topics_are_numbered_in_their_order(self, topics: Topics) -> None:
        first, second = topics.new("b", 2), topics.new("a", 1)
        topics.write(first, some(3, "b"), 1)
        topics.write(second, some(4, "a"))
        source = Kafka([first, second], servers=topics.server.servers)
        assert source.latest() == {0: 0, 1: 3, 10_000: 4}
        assert values(source, 0, 4, 10_000) == some(4, "a")

    def test_new_partitions_are_found(self, topics: Topics, at_once: None) -> None:
        topic = topics.new("growing", 1)
        source = Kafka(topic, servers=topics.server.servers)
        assert source.latest() == {0: 0}
        topics.grow(topic, 3)
        topics.write(topic, some(2), 2)
        assert source.latest() == {0: 0, 1: 0, 2: 2}
        assert values(source, 0, 2, 2) == some(2)

    def test_a_new_topic_of_a_pattern_gets_the_next_number(self, topics: Topics, at_once: None) -> None:
        topics.create("fruit-pear")
        topics.write("fruit-pear", some(1, "pear"))
        fresh = Kafka(pattern="fruit-.*", servers=topics.server.servers)
        source = fresh.remembering(fresh.roster())
        assert source.latest() == {0: 1}
        topics.create("fruit-apple")  # sorts first, and comes second all the same
        topics.create("not-a-fruit-")
        topics.write("fruit-apple", some(2, "apple"))
        assert source.latest() == {0: 1}  # until it is remembered, tasks would not know it
        source = source.remembering(source.roster())
        assert source.latest() == {0: 1, 10_000: 2}
        assert values(source, 0, 2, 10_000) == some(2, "apple")
        again = pickle.loads(pickle.dumps(fresh.remembering(source.remembered)))
        assert again.latest() == {0: 1, 10_000: 2}

    def test_a_pattern_that_nobody_remembers_is_not_read(self, topics: Topics) -> None:
        with pytest.raises(LogError, match="no numbers yet"):
            list(Kafka(pattern="fruit-.*", servers=topics.server.servers).read(0, 0, 1))

    def test_a_topic_that_was_made_again_is_another_one(self, topics: Topics, at_once: None) -> None:
        topic = topics.new("again")
        topics.write(topic, some(5, "old"))
        source = Kafka(topic, servers=topics.server.servers)
        remembered = source.roster()
        assert source.latest() == {0: 5}
        topics.delete(topic)
        with pytest.raises(LogError, match=f"topic '{topic}' was deleted"):
            source.latest()
        topics.create(topic)
        topics.write(topic, some(7, "new"))
        with pytest.raises(LogError, match="deleted and made again"):
            source.latest()
        # The same after a restart, from what the ledger remembers.
        kafka._rosters.clear()
        source = Kafka(topic, servers=topics.server.servers).remembering(remembered)
        with pytest.raises(LogError, match="--on-data-loss continue"):
            source.roster()
        source = source.remembering(source.roster(accept=True))
        assert source.latest() == {10_000: 7}
        assert values(source, 0, 7, 10_000) == some(7, "new")

    def test_a_topic_of_several_that_was_deleted_is_told_until_that_is_accepted(
        self, topics: Topics, at_once: None
    ) -> None:
        kept, lost = topics.new("kept"), topics.new("lost")
        source = Kafka([kept, lost], servers=topics.server.servers)
        source = source.remembering(source.roster())
        topics.delete(lost)
        for ask in (source.latest, source.roster):
            with pytest.raises(LogError, match=f"topic '{lost}' was deleted") as caught:
                ask()
            assert "--on-data-loss continue" in str(caught.value)
        source = source.remembering(source.roster(accept=True))
        assert source.latest() == {0: 0}
        assert source.roster() == source.remembered
        topics.create(lost)
        topics.write(lost, some(3))
        source = source.remembering(source.roster())
        assert source.latest() == {0: 0, 20_000: 3}
        assert values(source, 0, 3, 20_000) == some(3)

    def test_offsets_that_retention_took_are_holes(self, topics: Topics) -> None:
        topic = topics.new("holes", 2)
        topics.write(topic, some(10))
        topics.remove_before(topic, 6)
        source = Kafka(topic, servers=topics.server.servers)
        assert isinstance(source, LivingSource)
        assert holes(source, {0: 2, 1: 0}) == {0: range(2, 6)}
        assert holes(source, {0: 6}) == {}

    def test_committed_offsets_are_told_to_a_group(self, topics: Topics) -> None:
        first, second = topics.new("told", 2), topics.new("told")
        source = Kafka([first, second], servers=topics.server.servers, group=f"watchers of {first}")
        source.committed({0: 3, 1: 0, 10_000: 7})
        source.committed({0: 4})
        assert topics.group_offsets(f"watchers of {first}") == {(first, 0): 4, (first, 1): 0, (second, 0): 7}


class TestStart:
    def test_a_log_begins_where_start_says(self, topics: Topics) -> None:
        topic = topics.new("start", 2)
        topics.write(topic, some(3, "old"))
        time.sleep(0.05)
        moment = datetime.now(UTC)
        time.sleep(0.05)
        topics.write(topic, some(2, "new"))

        def beginning(start: Any) -> dict[int, int]:
            return Kafka(topic, servers=topics.server.servers, start=start).beginning(first=True)

        assert beginning("earliest") == {0: 0, 1: 0}
        assert beginning("latest") == {0: 5, 1: 0}
        assert beginning(moment) == beginning(moment.isoformat()) == {0: 3, 1: 0}
        assert beginning({0: 4}) == beginning({topic: {0: 4}}) == {0: 4, 1: 0}
        with pytest.raises(LogError, match="offset 9 of partition 1"):
            beginning({1: 9})
        # What appears later is read from its beginning, whatever `start` says.
        assert Kafka(topic, servers=topics.server.servers, start="latest").beginning(first=False) == {0: 0, 1: 0}

    @pytest.mark.parametrize(
        "arguments",
        [
            {"topic": "a", "start": "yesterday"},
            {"topic": "a", "pattern": "b"},
            {},
            {"topic": []},
            {"topic": "a b"},
            {"pattern": "("},
        ],
    )
    def test_mistakes_are_found_when_it_is_declared(self, arguments: dict[str, Any]) -> None:
        with pytest.raises(TopologyError):
            Kafka(servers="nowhere:9092", **arguments)


class TestRecords:
    def test_null_keys_null_values_and_times(self, topics: Topics) -> None:
        topic = topics.new("nulls")
        topics.write(topic, [b"a", None, b""], key=b"k")
        topics.write(topic, [None])
        source = Kafka(topic, servers=topics.server.servers)
        rows = read(source, 0, 0, 4)
        assert rows["value"].to_pylist() == [b"a", None, b"", None]
        assert rows["key"].to_pylist() == [b"k", b"k", b"k", None]
        assert all(abs((datetime.now(UTC) - at).total_seconds()) < 60 for at in rows["time"].to_pylist())

    def test_metadata_are_columns(self, topics: Topics) -> None:
        topic = topics.new("meta", 2)
        topics.producer.produce(topic, b"x", b"k", 1, headers=[("a", b"1"), ("a", None)])
        topics.producer.flush(30)
        source = Kafka(topic, servers=topics.server.servers, metadata=True)
        row = read(source, 1, 0, 1).to_pylist()[0]
        assert (row["kafka_topic"], row["kafka_partition"]) == (topic, 1)
        assert row["kafka_headers"] == [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]

    def test_large_records_come_in_batches_of_bounded_bytes(self, topics: Topics) -> None:
        topic = topics.new("large")
        topics.write(topic, [b"%03d" % number + b"." * 900_000 for number in range(80)])
        batches = list(Kafka(topic, servers=topics.server.servers).read(0, 0, 80))
        assert sum(batch.num_rows for batch in batches) == 80
        assert max(batch.nbytes for batch in batches) < 40_000_000

    def test_a_reader_that_is_left_early_does_not_disturb_the_next(self, topics: Topics) -> None:
        topic = topics.new("left", 1)
        topics.write(topic, some(300_000))
        source = Kafka(topic, servers=topics.server.servers)
        batches = source.read(0, 0, 300_000)
        assert next(iter(batches)).num_rows
        batches.close()  # type: ignore[attr-defined]
        assert values(source, 150_000, 150_003) == some(150_003)[-3:]


class TestTrouble:
    @pytest.fixture(autouse=True)
    def _impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (kafka, kafka_reader):
            monkeypatch.setattr(module, "PATIENCE", 2.0)

    def test_a_topic_that_is_not_there_is_named(self, topics: Topics) -> None:
        with pytest.raises(LogError, match=r"'no-such-topic'.*is not there") as caught:
            Kafka("no-such-topic", servers=topics.server.servers).latest()
        assert caught.value.code == "HS-LOG-032"

    def test_a_broker_that_is_down_may_come_back(self) -> None:
        source = Kafka("t", servers=f"127.0.0.1:{free_ports(1)[0]}")
        with pytest.raises(TransientLogError, match="cannot be reached"):
            source.latest()
        with pytest.raises(TransientLogError, match="cannot be reached"):
            list(source.read(0, 0, 1))

    def test_a_setting_that_does_not_exist_is_named(self, topics: Topics) -> None:
        source = Kafka("t", servers=topics.server.servers, options={"fetch.wiat": 3})
        with pytest.raises(LogError, match=r"fetch\.wiat"):
            source.latest()

    def test_a_missing_package_names_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "confluent_kafka", None)
        with pytest.raises(LogError, match=r"hailstorm\[kafka\]"):
            Kafka("t", servers="nowhere:9092").latest()

    def test_passwords_come_from_the_environment(self, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        topic = topics.new("guarded")
        topics.write(topic, some(3))
        monkeypatch.setenv("STORM_PASSWORD", PASSWORD)
        source = guarded(topics, topic, "${env:STORM_PASSWORD}")
        assert values(source, 0, source.latest()[0]) == some(3)
        assert PASSWORD not in pickle.dumps(source).decode("latin-1") + repr(source) + str(source.describe())

    def test_a_wrong_password_is_told_and_not_shown(self, topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("STORM_PASSWORD", "not-the-password")
        source = guarded(topics, "anything", "${env:STORM_PASSWORD}")
        for ask in (source.latest, lambda: list(source.read(0, 0, 1))):
            with pytest.raises(LogError, match="refuses us") as caught:
                ask()
            assert not isinstance(caught.value, TransientLogError)
            assert "not-the-password" not in str(caught.value)
        written = guarded(topics, "anything", "open-sesame")
        assert "open-sesame" not in repr(written) + str(written.describe())
        assert written.cluster.cleaned("it said open-sesame") == "it said ***"

    def test_a_missing_variable_is_named(self, topics: Topics) -> None:
        with pytest.raises(UsageError, match="STORM_FORGOTTEN"):
            guarded(topics, "anything", "${env:STORM_FORGOTTEN}").latest()


def guarded(topics: Topics, topic: str, password: str) -> Kafka:
    options = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": USER}
    return Kafka(topic, servers=topics.server.guarded_servers, options={**options, "sasl.password": password})
