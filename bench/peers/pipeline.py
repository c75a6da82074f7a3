"""A whole pipeline: Kafka, a row bolt, a fold, a fold of the fold, a top; to Kafka and to Postgres."""

from __future__ import annotations

from typing import Any

import hailstorm as hs
from bench.peers.kafka_counter import KafkaLive
from bench.peers.peer import Tick
from bench.work import Work


class Pipeline(KafkaLive):
    """A burst of 0 seconds is all that waits, up to its delivery to every sink."""

    partitions = 1

    def __init__(self, work: Work, servers: str, source: str, target: str, postgres: str, **options: str) -> None:
        super().__init__(work, servers, source, target, **options)
        self.postgres = postgres

    def burst(self, ticks: int) -> list[Tick]:
        return super().burst(ticks) if ticks else [self._catch_up()]

    def _topology(self) -> hs.Topology:
        storm = hs.Topology("bench")
        rows = storm.spout("rows", hs.Kafka(self.source, servers=self.servers), schema="k BIGINT, at BIGINT")
        seen = rows.bolt(seen_at, name="seen", returns="k BIGINT, at BIGINT")
        counts = seen.fold("counts", by="k", n=hs.count(), at=hs.max("at"))
        counts.sink("out", hs.Kafka(self.target, servers=self.servers, key="k"))
        counts.fold("sizes", by="n", keys=hs.count()).sink("sizes_out", hs.Postgres(self.postgres, table="sizes"))
        counts.top("top", 10, by="n").sink("top_out", hs.Postgres(self.postgres, table="top"))
        return storm


def seen_at(row: Any) -> dict[str, int]:
    return {"k": row.k, "at": row.at}
