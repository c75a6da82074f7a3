"""What mypy must find: every line that is marked, and no other."""

from __future__ import annotations

import hailstorm as hs
from hailstorm.testing import Drivr  # wrong

storm = hs.Topology("wrong", latncy="1 second")  # wrong
other = hs.Topology("other", max_tick_rows="many")  # wrong
lines = storm.spout("lines", "data/lines", schema="text STRING")  # wrong
more = storm.spout("more", hs.Log("x"), schema="text STRING", on_error="ignore")  # wrong
n = hs.cuont()  # wrong
mean = hs.avg("n")  # wrong
lines.map(len)  # wrong
lines.sink("out", print)  # wrong
lines.fold("counts", by="text", n=len)  # wrong
lines.select("select", text=5)  # wrong
lines.top("top", 3, by="text")  # wrong
storm.run(untill="caught-up")  # wrong
driver = Drivr(storm)
rows = storm.run().rowz  # wrong
first: int = hs.open_ledger("ledger").state("counts").duckdb()  # wrong


@lines.bolt(returns="n INT")  # wrong
def count(row: hs.Row) -> int:
    return len(row.text)
