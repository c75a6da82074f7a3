"""Resident ticks that read ahead: random ticks over a real topic, with transactions, aborts and gaps, count every
record once, and what a consumer sees of the sink is the same."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.ticks.pacing import PREPARED, RESIDENT
from hailstorm.ledger.ledger import Ledger
from tests.connectors.kafka_topics import Topics

WORDS = ["rain", "hail", "snow", "sleet"]


def counting(topics: Topics, source: str, target: str, cursors: str) -> hs.Topology:
    servers, storm = topics.server.servers, hs.Topology(f"ahead-{source}")
    words = storm.spout("words", hs.Kafka(source, servers=servers), schema="word STRING")
    counts = words.fold("counts", by="word", n=hs.count())
    counts.sink("out", hs.Kafka(target, servers=servers, cursor_topic=cursors))
    return storm


def test_every_record_is_counted_once_whatever_is_read_ahead(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    source, target, cursors = topics.new("in", 2), topics.new("out", 1), topics.new("cursors", cleanup_policy="compact")
    chance, oracle = random.Random(3), Counter[str]()
    ledger = Ledger(tmp_path / "ledger", create=True)
    negotiator = Negotiator(spark, counting(topics, source, target, cursors), ledger, ways=(RESIDENT, PREPARED))

    def write(partition: int) -> None:
        words = chance.choices(WORDS, k=chance.randint(1, 30))
        values = [b'{"word": "%s"}' % word.encode() for word in words]
        if partition == 0 and chance.random() < 0.5:
            keep = chance.random() < 0.6
            topics.transaction(source, values, commit=keep)
            oracle.update(words if keep else [])
        else:
            topics.write(source, values, partition)
            oracle.update(words)

    def catch_up() -> None:
        target = negotiator.logs.look(negotiator.position()).ends
        while not negotiator.position().covers(target):
            if not negotiator.tick():
                negotiator.rest()

    try:
        negotiator.start()
        heard = 0
        for number in range(25):
            write(chance.randint(0, 1))
            if number % 7 == 6:  # a tick in another way goes on elsewhere: what was read ahead is of no more use
                negotiator._pace.ways = (PREPARED,)
            catch_up()
            negotiator._pace.ways = (RESIDENT, PREPARED)
            worker = negotiator._resident(wait=True)
            assert worker is not None
            heard += bool(worker.heard)
        assert heard > 10, "it is followed most of the time"
        assert worker.ticks > 15
        negotiator.stop()
    except BaseException:
        negotiator.fail()
        raise
    rows = hs.open_ledger(tmp_path / "ledger").state("counts").arrow().to_pylist()
    assert {row["word"]: row["n"] for row in rows} == oracle
    table: dict[str, Any] = {}
    for message in topics.read(target, 1):
        row = json.loads(message.value() or b"")
        assert row["n"] > table.get(row["word"], 0), "in the order of commits, none twice"
        table[row["word"]] = row["n"]
    assert table == oracle


def test_a_worker_that_waits_is_woken_by_a_record_and_not_by_a_clock(
    spark: SparkSession, topics: Topics, tmp_path: Path
) -> None:
    source, target, cursors = topics.new("in"), topics.new("out"), topics.new("cursors", cleanup_policy="compact")
    ledger = Ledger(tmp_path / "ledger", create=True)
    negotiator = Negotiator(spark, counting(topics, source, target, cursors), ledger, ways=(RESIDENT,))
    try:
        negotiator.start()
        topics.write(source, [b'{"word": "rain"}'])
        while not negotiator.tick():
            pass
        worker = negotiator._resident(wait=True)
        assert worker is not None
        while not worker.heard:
            worker.wait(10)
        assert negotiator.tick() is False
        writer = threading.Timer(0.3, topics.write, (source, [b'{"word": "hail"}']))
        writer.start()
        for _ in range(100):  # there may be word of what is old news by now
            worker.wait(60)
            if worker.heard["words"][0] > 1:
                break
        writer.join()
        asked = dict(negotiator.logs._asked)
        negotiator.logs._asked["words"] = float("inf")  # the log itself is not asked again
        assert negotiator.tick()
        assert asked
        assert negotiator.position().offset("words", 0) == 2
    finally:
        negotiator.fail()
