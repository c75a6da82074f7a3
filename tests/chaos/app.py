"""The topology that the chaos tests kill: folds, a fold of a fold, tops and every kind of sink.

The tests copy this file into a folder of its own, so that its log, its ledger and its sinks are there, too.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hailstorm as hs

CALLS = Path(__file__).parent / "out/calls.jsonl"

storm = hs.Topology("storm", max_tick_rows=80, ledger="ledger", publish="100 ms", retention="all")
events = storm.spout(
    "events",
    hs.Log("events"),
    schema="id STRING, words STRING, amount BIGINT, at TIMESTAMP",
    event_time="at",
    lateness="1 second",
)


@events.bolt(returns="id STRING, word STRING, amount BIGINT, at TIMESTAMP")
def words(event: Any) -> Iterator[dict[str, Any]]:
    if event.words == "poison":
        raise ValueError("poison")
    for place, word in enumerate(event.words.split()):
        yield {"id": f"{event.id}.{place}", "word": word, "amount": event.amount, "at": event.at}


def remember_calls(rows: list[Any]) -> None:
    """A service that is told the idempotency key of each row, and has it on disk when it says yes."""
    CALLS.parent.mkdir(exist_ok=True)
    with CALLS.open("a") as file:
        file.writelines(json.dumps({"key": row.key, "kind": row.kind, **row}, default=str) + "\n" for row in rows)
        file.flush()
        os.fsync(file.fileno())


counts = words.fold("counts", by="word", n=hs.count(), amount=hs.sum("amount"), last=hs.max("at"))
total = words.fold("total", n=hs.count(), amount=hs.sum("amount"))
sizes = counts.fold("sizes", by="n", words=hs.count(), largest=hs.max("amount"))
top = counts.top("top", 5, by="n")

words.sink("words_sqlite", hs.Sqlite("out/tables.db", table="words"))
counts.sink("counts_sqlite", hs.Sqlite("out/tables.db", table="counts"))
words.sink("words_parquet", hs.Parquet("out/words"))
counts.sink("counts_parquet", hs.Parquet("out/counts"))
total.sink("total_sqlite", hs.Sqlite("out/tables.db", table="total"))
sizes.sink("sizes_duckdb", hs.DuckDB("out/sizes.duckdb", table="sizes"))
top.sink("top_call", hs.Call(remember_calls))
