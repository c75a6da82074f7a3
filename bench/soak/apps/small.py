"""Many small ticks: 20,000 records a second, read as soon as they are there."""

from __future__ import annotations

import os
from typing import Any

import hailstorm as hs

storm = hs.Topology("small", ledger="ledger")
numbers = storm.spout("numbers", hs.Rate(20_000, start=os.environ["SOAK_START"]))
keyed = numbers.select("keyed", key="(value % 100000) * 2654435761 % 100000")


def forget(rows: list[Any]) -> None:
    """A target that costs nothing: what is looked at is the outbox."""


keyed.fold("counts", by="key", n=hs.count()).sink("archive", hs.Call(forget))
