"""A topology between two topics: what an independent consumer sees is what a plain count over the input says."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.progress import Progress
from hailstorm.engine.run import run_topology
from hailstorm.errors import HailstormError
from hailstorm.ledger.commit import GONE, Hole
from hailstorm.spouts.kafka import source as kafka
from tests.connectors.kafka_topics import Topics

WORDS = ["rain", "hail", "snow", "sleet"]


def counting(source: hs.Kafka, target: hs.Kafka) -> hs.Topology:
    storm = hs.Topology("kafka-counts")
    words = storm.spout("words", source, schema="word STRING, kafka_key STRING, kafka_topic STRING")
    by_word = words.fold("by_word", by="word", n=hs.count())
    words.fold("by_topic", by="kafka_topic", n=hs.count(), keys=hs.count_distinct("kafka_key"))
    by_word.sink("out", target)
    return storm


def table_of(topics: Topics, topic: str) -> dict[str, int]:
    """What a compacted topic amounts to."""
    table: dict[str, Any] = {}
    for message in topics.read(topic, 2):
        table[json.loads(message.key() or b"")["word"]] = message.value()
    return {word: json.loads(value)["n"] for word, value in table.items() if value is not None}


def test_counts_go_from_topic_to_topic_over_several_runs(spark: SparkSession, topics: Topics, tmp_path: Path) -> None:
    source, target, cursors = topics.new("in", 2), topics.new("out", 2), topics.new("cursors", cleanup_policy="compact")
    servers = topics.server.servers
    storm = counting(
        hs.Kafka(source, servers=servers, metadata=True), hs.Kafka(target, servers=servers, cursor_topic=cursors)
    )
    chance, oracle = random.Random(5), Counter[str]()
    for run in range(3):
        for partition in range(2):
            words = chance.choices(WORDS, k=200)
            oracle.update(words)
            topics.write(source, [b'{"word": "%s"}' % w.encode() for w in words], partition, key=b"%d" % run)
        topics.transaction(source, [b'{"word": "rain"}'] * 3)
        topics.transaction(source, [b'{"word": "never"}'] * 3, commit=False)
        oracle["rain"] += 3
        topics.write(source, [b"not json"], 1)
        run_topology(storm, ledger=tmp_path / "ledger", until="caught-up")
    assert table_of(topics, target) == oracle
    ledger = hs.open_ledger(tmp_path / "ledger")
    [by_topic] = ledger.state("by_topic").arrow().to_pylist()
    assert by_topic["n"] == oracle.total()
    assert ledger.errors().num_rows == 3


def test_topologies_that_share_a_topic_go_their_own_ways_and_agree_with_spark_and_duckdb(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    """The oracles are other people's: they read a dump that another consumer wrote."""
    topic, chance = topics.new("shared", 3), random.Random(8)

    def shop(name: str) -> hs.Topology:
        storm = hs.Topology(name)
        source = hs.Kafka(topic, servers=topics.server.servers, group=f"{name} of {topic}")
        orders = storm.spout("orders", source, schema="item STRING, price DECIMAL(10,2), n BIGINT, kafka_key STRING")
        orders.fold("by_item", by="item", orders=hs.count(), n=hs.sum("n"), total=hs.sum("price"), most=hs.max("n"))
        keyed = orders.where("keyed", "kafka_key IS NOT NULL")
        keyed.fold("by_key", by="kafka_key", orders=hs.count(), items=hs.set("item"))
        return storm

    def order() -> bytes:
        item, price, n = chance.choice(WORDS), f"{chance.randint(0, 9999) / 100:.2f}", chance.randint(-5, 500)
        return b'{"item": "%s", "price": "%s", "n": %d}' % (item.encode(), price.encode(), n)

    runs = (["first"], ["second"], ["first", "second"])
    for number, names in enumerate(runs):
        for partition in range(3):
            topics.write(topic, [order() for _ in range(150)], partition, key=b"key %d" % (partition + number))
        topics.write(topic, [None], key=b"a tombstone")
        topics.transaction(topic, [order() for _ in range(5)])
        topics.transaction(topic, [order() for _ in range(5)], commit=False)
        for name in names:
            run_topology(shop(name), ledger=tmp_path / name, until="caught-up")

    dump = tmp_path / "dump.jsonl"
    messages = [message for message in topics.read(topic, 3) if message.value() is not None]
    lines = [{**json.loads(m.value() or b""), "kafka_key": (m.key() or b"").decode() or None} for m in messages]
    dump.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = "SELECT item, price::DECIMAL(10,2) AS price, n, kafka_key"
    by_item = "SELECT item, count(*) AS orders, sum(n) AS n, sum(price) AS total, max(n) AS most FROM t GROUP BY item"
    spark.read.json(str(dump)).createOrReplaceTempView("dumped")
    batch = spark.sql(f"WITH t AS ({table} FROM dumped) {by_item}").collect()
    expected = sorted(tuple(row) for row in batch)
    by_key = """SELECT kafka_key, count(*) AS orders, list_sort(list(DISTINCT item)) AS items
                FROM t WHERE kafka_key IS NOT NULL GROUP BY ALL"""
    keys = duckdb.sql(f"WITH t AS ({table} FROM read_json('{dump}')) {by_key}").fetchall()
    same = duckdb.sql(f"WITH t AS ({table} FROM read_json('{dump}')) {by_item}").fetchall()
    assert sorted(same) == expected, "Spark and DuckDB agree with each other"
    for name in ("first", "second"):
        ledger = hs.open_ledger(tmp_path / name)
        assert sorted(tuple(row.values()) for row in ledger.state("by_item").arrow().to_pylist()) == expected
        found = [(row["kafka_key"], row["orders"], sorted(row["items"])) for row in state_of(ledger, "by_key")]
        assert sorted(found, key=repr) == sorted(((k, n, list(items)) for k, n, items in keys), key=repr)
        tombstones = ledger.errors().to_pylist()
        assert [(letter["raw"], "null" in letter["reason"]) for letter in tombstones] == [(None, True)] * 3
        # Other people's dashboards see how far each of them is; they are told a moment later.
        clock = ledger.live().clock["orders"]
        reached = {(topic, int(partition)): offset for partition, offset in clock.items()}
        deadline = time.monotonic() + 10
        while topics.group_offsets(f"{name} of {topic}") != reached:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def state_of(ledger: Any, step: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ledger.state(step).arrow().to_pylist()
    return rows


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """New topics and partitions are looked for at every question."""
    monkeypatch.setattr(kafka, "_REFRESH", 0.0)
    monkeypatch.setattr(kafka, "_SETTLING", 0.3)


def by_topic(source: hs.Kafka) -> hs.Topology:
    storm = hs.Topology("by-topic")
    lines = storm.spout("lines", source, schema="line STRING, kafka_topic STRING", decode="text")
    lines.fold("counts", by="kafka_topic", n=hs.count())
    return storm


def counts(ledger: Path) -> dict[str, int]:
    return {row["kafka_topic"]: row["n"] for row in hs.open_ledger(ledger).state("counts").arrow().to_pylist()}


def test_topics_of_a_pattern_keep_their_numbers_over_runs(
    spark: SparkSession, topics: Topics, tmp_path: Path, at_once: None
) -> None:
    storm = by_topic(hs.Kafka(pattern="city-.*", servers=topics.server.servers, metadata=True))
    expected: dict[str, int] = {}
    for number, name in enumerate(["city-rome", "city-bonn", "city-oslo"], 1):
        topics.create(name)
        for known in (*expected, name):
            topics.write(known, [b"x"] * number)
            expected[known] = expected.get(known, 0) + number
        kafka._rosters.clear()  # as in a new process: only the ledger remembers
        run_topology(storm, ledger=tmp_path / "ledger", until="caught-up")
        assert counts(tmp_path / "ledger") == expected


def test_a_topic_of_a_pattern_that_is_deleted_while_it_is_read_stops_the_run_until_the_user_says_so(
    spark: SparkSession, topics: Topics, tmp_path: Path, at_once: None
) -> None:
    storm, ledger = by_topic(hs.Kafka(pattern="lake-.*", servers=topics.server.servers, metadata=True)), tmp_path / "l"
    for name in ("lake-como", "lake-bled"):
        topics.create(name)
        topics.write(name, [b"x"] * 4)

    def delete_when_it_was_read(progress: Progress) -> None:
        if progress.commit and "lake-bled" in topics.admin.list_topics(timeout=10).topics:
            topics.delete("lake-bled")

    with pytest.raises(HailstormError, match="topic 'lake-bled' was deleted") as caught:
        run_topology(storm, ledger=ledger, on_progress=delete_when_it_was_read)
    assert "--on-data-loss continue" in str(caught.value)
    topics.write("lake-como", [b"x"] * 2)
    kafka._rosters.clear()  # as in a new process: only the ledger remembers
    with pytest.raises(HailstormError, match="topic 'lake-bled' was deleted"):
        run_topology(storm, ledger=ledger, until="caught-up")
    run_topology(storm, ledger=ledger, until="caught-up", on_data_loss="continue")
    assert counts(ledger) == {"lake-como": 6, "lake-bled": 4}
    # Once accepted it is accepted; and when the topic is made again it is read from its beginning.
    topics.create("lake-bled")
    topics.write("lake-bled", [b"x"] * 3)
    run_topology(storm, ledger=ledger, until="caught-up")
    assert counts(ledger) == {"lake-como": 6, "lake-bled": 7}


def test_a_hole_and_a_topic_that_was_made_again_stop_the_run_until_the_user_says_so(
    spark: SparkSession, topics: Topics, tmp_path: Path, at_once: None
) -> None:
    topic, ledger = topics.new("lossy"), tmp_path / "ledger"
    storm = by_topic(hs.Kafka(topic, servers=topics.server.servers, metadata=True, group=f"of {topic}"))
    topics.write(topic, [b"x"] * 10)
    run_topology(storm, ledger=ledger, until="caught-up")
    topics.write(topic, [b"x"] * 10)
    topics.remove_before(topic, 15)
    with pytest.raises(HailstormError, match="no longer has the offsets 10 to 14"):
        run_topology(storm, ledger=ledger, until="caught-up")
    run_topology(storm, ledger=ledger, until="caught-up", on_data_loss="continue")
    assert counts(ledger) == {topic: 15}
    assert hs.open_ledger(ledger).live().holes == {"lines": {"0": [Hole(10, 15, GONE)]}}

    topics.delete(topic)
    topics.create(topic)
    topics.write(topic, [b"x"] * 3)
    with pytest.raises(HailstormError, match="deleted and made again"):
        run_topology(storm, ledger=ledger, until="caught-up")
    run_topology(storm, ledger=ledger, until="caught-up", on_data_loss="continue")
    assert counts(ledger) == {topic: 18}
    assert group_offset(topics, f"of {topic}", topic) == 3, "the group is told of the new topic"


def group_offset(topics: Topics, group: str, topic: str) -> int:
    """How far a consumer group is in partition 0. It is told beside the run."""
    asked = [ConsumerGroupTopicPartitions(group, [TopicPartition(topic, 0)])]
    until = time.monotonic() + 10
    while True:
        found = topics.admin.list_consumer_group_offsets(asked)[group].result(10)
        offset = int(found.topic_partitions[0].offset)
        if offset == 3 or time.monotonic() > until:
            return offset
        time.sleep(0.1)


def test_a_topology_begins_where_start_says_and_goes_on_from_its_ledger(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    topic, ledger = topics.new("begun"), tmp_path / "ledger"
    topics.write(topic, [b"old"] * 10)
    storm = by_topic(hs.Kafka(topic, servers=topics.server.servers, metadata=True, start={0: 6}))
    run_topology(storm, ledger=ledger, until="caught-up")
    topics.write(topic, [b"new"] * 2)
    run_topology(storm, ledger=ledger, until="caught-up")
    assert counts(ledger) == {topic: 6}


@pytest.mark.parametrize("start", ["latest", "a time"])
def test_what_arrives_after_the_first_start_is_read_from_the_end_of_the_topic_on(
    spark: SparkSession, topics: Topics, tmp_path: Path, at_once: None, start: str
) -> None:
    topic, ledger = topics.new("tail"), tmp_path / "ledger"
    topics.write(topic, [b"old"] * 10)
    # A time that no record has reached yet: it begins at the end, as "latest" does.
    where = start if start == "latest" else datetime.now(UTC) + timedelta(hours=1)
    storm = by_topic(hs.Kafka(topic, servers=topics.server.servers, metadata=True, start=where))
    run_topology(storm, ledger=ledger, until="caught-up")
    assert hs.open_ledger(ledger).live().clock == {"lines": {"0": 10}}
    for run in range(1, 3):
        topics.write(topic, [b"new"] * 2)
        run_topology(storm, ledger=ledger, until="caught-up")
        assert counts(ledger) == {topic: 2 * run}
    topics.grow(topic, 2)
    topics.write(topic, [b"new"] * 3, 1)
    run_topology(storm, ledger=ledger, until="caught-up")
    assert counts(ledger) == {topic: 7}


def test_a_topic_that_was_made_again_is_accepted_by_its_spouts_name(
    spark: SparkSession, topics: Topics, tmp_path: Path, at_once: None
) -> None:
    topic, ledger = topics.new("again"), tmp_path / "ledger"
    storm = by_topic(hs.Kafka(topic, servers=topics.server.servers, metadata=True))
    topics.write(topic, [b"x"] * 4)
    run_topology(storm, ledger=ledger, until="caught-up")
    topics.delete(topic)
    topics.create(topic)
    topics.write(topic, [b"x"] * 3)
    kafka._rosters.clear()  # as in a new process: only the ledger remembers
    with pytest.raises(HailstormError, match="--accept lines"):
        run_topology(storm, ledger=ledger, until="caught-up")
    run_topology(storm, ledger=ledger, until="caught-up", accept=("lines",))
    assert counts(ledger) == {topic: 7}
