"""Hailstorm between two topics: a running count, delivered in transactions. Exactly once, as always.

What is timed ends when a `read_committed` consumer can see the last count, not when the tick is committed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import hailstorm as hs
from bench.broker import Broker
from bench.peers.peer import CORES, Tick, scratch_folder
from bench.work import Work
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Progress
from hailstorm.engine.spark.session import start_session
from hailstorm.ledger.ledger import Ledger

_DELIVERY_SECONDS = 300.0


class KafkaCounter:
    """A burst is all that waits in the topic; `options` are settings of the topology."""

    partitions = 2  # of the topic that it writes

    def __init__(self, work: Work, servers: str, source: str, target: str, **options: str) -> None:
        self.folder = scratch_folder("kafka-counter")
        self.servers, self.source, self.target, self.options = servers, source, target, options
        self.parts: dict[str, float] = {}

    def prepare(self) -> Mapping[str, float]:
        storm = self._topology()
        self.spark = start_session("bench", self.folder / "spark.log", f"local[{CORES}]")
        self.broker = Broker(self.servers)
        settings = storm.settings.with_options(self.options)
        ledger = Ledger(self.folder / "ledger", create=True)
        self.negotiator = Negotiator(self.spark, storm, ledger, settings, self._watch)
        self.negotiator.start()
        return {}

    def burst(self, ticks: int) -> list[Tick]:
        return [self._catch_up() for _ in range(ticks)]

    def figures(self) -> Mapping[str, float]:
        return {"commits": self.negotiator.ledger.head.commit}

    def close(self) -> None:
        if hasattr(self, "negotiator"):
            self.negotiator.stop()
            self.spark.stop()

    def _topology(self) -> hs.Topology:
        storm = hs.Topology("bench")
        rows = storm.spout("rows", hs.Kafka(self.source, servers=self.servers), schema="k BIGINT")
        rows.fold("counts", by="k", n=hs.count()).sink("out", hs.Kafka(self.target, servers=self.servers, key="k"))
        return storm

    def _catch_up(self) -> Tick:
        self.parts, rows = {}, 0
        began = time.perf_counter()
        target = self.negotiator.logs.look(self.negotiator.position()).ends
        while not self.negotiator.position().covers(target):
            if self.negotiator.tick(target):
                rows += self.progress.rows
        ticked = time.perf_counter()
        # Not until the head: the last commit may be one of housekeeping, which has nothing for sinks.
        arrived = self.negotiator._beside.deliverer.drain(_DELIVERY_SECONDS)
        assert arrived, "delivery did not end"
        self.broker.settle(self.target, self.partitions)
        ended = time.perf_counter()
        parts = {**self.parts, "rest of delivery": (ended - ticked) * 1000}
        return Tick((ended - began) * 1000, rows, parts)

    def _watch(self, progress: Progress) -> None:
        self.progress = progress
        for name, ms in progress.timings.items():
            self.parts[name] = self.parts.get(name, 0.0) + ms


class KafkaLive(KafkaCounter):
    """A burst is so many seconds of a run that keeps up with its topic. Who measures stands at the other end."""

    def burst(self, ticks: int) -> list[Tick]:
        until = time.monotonic() + ticks
        while time.monotonic() < until:
            if not self.negotiator.tick():
                self.negotiator.rest()
        return []

    def _topology(self) -> hs.Topology:
        storm = hs.Topology("bench")
        rows = storm.spout("rows", hs.Kafka(self.source, servers=self.servers), schema="k BIGINT, at BIGINT")
        counts = rows.fold("counts", by="k", n=hs.count(), at=hs.max("at"))
        counts.sink("out", hs.Kafka(self.target, servers=self.servers, key="k"))
        return storm
