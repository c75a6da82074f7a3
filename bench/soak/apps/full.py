"""Full load: a fold of a million keys and its top ten. All records are there from the beginning."""

from __future__ import annotations

from typing import Any

import hailstorm as hs

storm = hs.Topology("full", ledger="ledger")
numbers = storm.spout("numbers", hs.Rate(1e6, limit=1 << 60))
keyed = numbers.select("keyed", key="(value % 1000000) * 2654435761 % 1000000")
top = keyed.fold("counts", by="key", n=hs.count()).top("top", 10, by="n")


def forget(rows: list[Any]) -> None:
    """A target that costs nothing: what is looked at is the outbox."""


top.sink("board", hs.Call(forget))
