"""A topology between two topics: what an independent consumer sees is what a plain count over the input says."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.run import run_topology
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
    source, target, cursors = topics.new("in", 2), topics.new("out", 2), topics.new("cursors")
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
