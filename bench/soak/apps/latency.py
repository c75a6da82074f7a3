"""From one topic to another, exactly once, as records come: a running count, with default settings."""

from __future__ import annotations

import os

import hailstorm as hs

SERVERS = os.environ["SOAK_SERVERS"]

storm = hs.Topology("latency", ledger="ledger")
lines = storm.spout("lines", hs.Kafka("lines", servers=SERVERS), schema="k BIGINT, at BIGINT")
counts = lines.fold("counts", by="k", n=hs.count(), at=hs.max("at"))
counts.sink("out", hs.Kafka("counts", servers=SERVERS, key="k"))
