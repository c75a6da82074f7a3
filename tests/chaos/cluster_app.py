"""The topology that runs on a cluster: two waves, functions from a module beside it, a log in the store, a sink of the
driver's machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import own_words

import hailstorm as hs

KEYS = 500


def rows(offsets: Any, partition: int) -> Mapping[str, Any]:
    return {"k": (offsets * 7 + partition) % KEYS, "v": offsets % 11}


storm = hs.Topology("far", publish="off")
numbers = storm.spout(
    "numbers",
    hs.Rate(1500, partitions=2, rows=rows, columns="k BIGINT, v BIGINT", limit=40_000),
    schema="k BIGINT, v BIGINT",
)


@numbers.bolt(returns="word STRING, v BIGINT")
def words(number: Any) -> Iterator[dict[str, Any]]:
    yield {"word": own_words.word(number.k), "v": number.v}


counts = words.fold("counts", by="word", n=hs.count(), total=hs.sum("v"))
top = counts.top("top", 5, by="total")
top.sink("board", hs.Sqlite("out/board.db", table="board"))

heard = storm.spout("heard", hs.Log("s3://storms/heard"), schema="word STRING")
heard.fold("heard_words", by="word", n=hs.count())
