"""One ledger, sinks in Kafka, Postgres and Redis, and a driver that dies, freezes and loses its connections.

Every row has a number of its own, so an independent consumer and plain SQL see at once what is lost, doubled or out of
order. The last test wants all kinds of faults to have been there.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hailstorm.sinks.kafka.sink import Kafka
from hailstorm.sinks.postgres.sink import Postgres
from hailstorm.sinks.redis import Redis
from hailstorm.topology import ends
from tests.connectors.delivering import Outgoing, board
from tests.connectors.kafka_topics import Topics
from tests.connectors.log_contract import some
from tests.connectors.servers.postgres import PostgresServer
from tests.connectors.servers.proxy import Proxy
from tests.connectors.servers.redis import RedisServer
from tests.connectors.sink_contract import stream
from tests.connectors.tally import suffered

pytestmark = pytest.mark.chaos

SINKS = ("kafka", "postgres", "redis")


class Fire:
    """A ledger whose commits go to three servers, and what these have of it."""

    def __init__(self, folder: Path, topics: Topics, postgres: PostgresServer, redis: RedisServer) -> None:
        self.outgoing = Outgoing(folder / "ledger")
        self.topics, self.postgres, self.redis = topics, postgres, redis
        self.topic, self.url = topics.new("fire"), postgres.database()
        # Its own cursors: those of all tests together would take long to read.
        kafka = Kafka(self.topic, servers=topics.server.servers, cursor_topic=f"{self.topic}-cursors")
        targets = (kafka, Postgres(self.url, "words"), Redis(redis.url, self.topic))
        self.sinks = [board(sink, key=(), name=name) for name, sink in zip(SINKS, targets, strict=True)]
        self.rows = 0

    def sink(self, name: str) -> ends.Sink:
        return self.sinks[SINKS.index(name)]

    def commit(self, count: int) -> None:
        """So many commits of two rows, for every sink."""
        for _ in range(count):
            rows = stream((f"word {self.rows}", self.rows), (f"word {self.rows + 1}", self.rows + 1))
            self.outgoing.commit(rows, *SINKS)
            self.rows += 2

    def found(self, settled: bool = False) -> dict[str, list[int]]:
        """The numbers that each server has, in the order in which they came."""
        messages = self.topics.read(self.topic, settled=settled)
        with self.redis.client() as client:
            entries = [int(fields[b"n"]) for _, fields in client.xrange(self.topic)]
        return {
            "kafka": [json.loads(message.value() or b"")["n"] for message in messages],
            "postgres": [n for (n,) in self.postgres.query(self.url, "SELECT n FROM words ORDER BY ctid")],
            "redis": entries,
        }

    def judge(self) -> None:
        """As a dead driver has left them: whole commits from the first one on, each once."""
        for name, numbers in self.found().items():
            assert numbers == list(range(len(numbers))), name
            assert len(numbers) % 2 == 0, name

    def judge_the_end(self) -> None:
        states = self.outgoing.deliver(*self.sinks)
        assert [states[name].stopped for name in SINKS] == [None] * 3
        assert self.found(settled=True) == {name: list(range(self.rows)) for name in SINKS}


@pytest.fixture
def fire(tmp_path: Path, topics: Topics, postgres_server: PostgresServer, redis_server: RedisServer) -> Iterator[Fire]:
    with redis_server.client() as client:
        client.flushall()
    fire = Fire(tmp_path, topics, postgres_server, redis_server)
    fire.commit(1)
    fire.outgoing.deliver(*fire.sinks)
    yield fire


def test_a_driver_that_is_killed_at_every_point_of_delivery_and_at_random_loses_and_doubles_nothing(fire: Fire) -> None:
    chance = random.Random(7)
    points = [f"{when}-delivery:{pass_}" for when in ("before", "during", "after") for pass_ in (1, 3, 6)]
    for point in points:
        fire.commit(2)
        fire.outgoing.deliver_killed(point, *fire.sinks)
        fire.judge()
    killed = 0
    while killed < 6:
        fire.commit(12)
        process = fire.outgoing.start_delivery(*fire.sinks)
        time.sleep(chance.uniform(0.05, 0.6))
        process.kill()
        process.join(30)
        killed += process.exitcode == -signal.SIGKILL
        fire.judge()
    suffered("killed at random", killed)
    fire.judge_the_end()


@pytest.mark.parametrize(
    ("name", "point"),
    # What waits for Kafka goes in one transaction.
    [("kafka", "during-delivery:1"), ("redis", "during-delivery:2"), ("postgres", "before-delivery:2")],
)
def test_a_frozen_driver_that_wakes_up_after_another_took_over_adds_nothing(fire: Fire, name: str, point: str) -> None:
    """In Kafka and Redis in an open transaction; in Postgres that holds a lock: see test_postgres_faults."""
    fire.commit(3)
    zombie = fire.outgoing.start_delivery(fire.sink(name), fault=point, pause=True)
    assert zombie.pid is not None
    deadline = time.monotonic() + 60
    while Path(f"/proc/{zombie.pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline and zombie.is_alive()
        time.sleep(0.02)
    fire.commit(1)
    fire.outgoing.deliver(*fire.sinks)
    os.kill(zombie.pid, signal.SIGCONT)
    zombie.join(60)
    assert zombie.exitcode == 0
    suffered("zombie")
    fire.commit(1)
    fire.judge_the_end()


def test_connections_to_kafka_that_are_cut_anywhere_lose_and_double_nothing(fire: Fire) -> None:
    server = fire.topics.server
    with Proxy.to(server.behind_port, server.proxy_port) as proxy:
        through = f"127.0.0.1:{proxy.port}"
        sink = board(Kafka(fire.topic, servers=through, cursor_topic=f"{fire.topic}-cursors"), key=(), name="kafka")
        for number in range(14):
            fire.commit(1)
            proxy.cut_after(100 + 131 * number)  # in the greeting, the opening, the rows, the end of the transaction
            state = fire.outgoing.deliver(sink)["kafka"]
            assert state.stopped is None, state.stopped
            assert state.cursor == fire.outgoing.ledger.head.commit
        written = proxy.cuts
        assert written >= 12

        topic = fire.topics.new("cut")
        fire.topics.write(topic, some(150_000))
        source = Kafka(topic, servers=through)
        found = []
        for batch in source.read(0, 0, source.latest()[0]):
            found += batch.column("value").to_pylist()
            proxy.cut()
        assert found == some(150_000)
        assert proxy.cuts > written
    fire.judge_the_end()
