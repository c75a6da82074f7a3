"""The topology that test_cluster_faults.py hurts: a log in the store and one that is computed, folds of folds, a
window, and sinks of tables and of a stream."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import hailstorm as hs

KEYS, PER_SECOND, SECONDS = 500, 100, 5


def rows(offsets: Any, partition: int) -> Mapping[str, Any]:
    return {"k": (offsets * 7 + partition) % KEYS, "v": offsets % 11}


storm = hs.Topology("storm", publish="off")
source = hs.Rate(PER_SECOND, partitions=2, rows=rows, columns="k BIGINT, v BIGINT", start=os.environ["STORM_START"])
numbers = storm.spout("numbers", source, schema="k BIGINT, v BIGINT")


@numbers.bolt(returns="word STRING, v BIGINT")
def words(number: Any) -> Iterator[dict[str, Any]]:
    yield {"word": f"w{number.k}", "v": number.v}


counts = words.fold("counts", by="word", n=hs.count(), total=hs.sum("v"))
counts.fold("how_often", by="n", words=hs.count())
counts.top("top", 5, by="total").sink("board", hs.Sqlite("out/board.db", table="board"))
counts.sink("counts_sqlite", hs.Sqlite("out/board.db", table="counts"))
words.window(f"{SECONDS} seconds").fold("by_time", by="v", n=hs.count())
numbers.where("rare_numbers", f"k % {KEYS // 10} = 0").sink("rare", hs.Parquet("out/rare"))

heard = storm.spout("heard", hs.Log(os.environ["STORM_LOG"]), schema="word STRING")
heard.fold("heard_words", by="word", n=hs.count())
