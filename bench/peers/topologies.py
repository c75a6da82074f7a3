"""The works as Hailstorm topologies: what a user would write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hailstorm as hs
from bench.work import Numbers, Work, keys

SPOUT = "rows"


@dataclass(frozen=True)
class KeyedNumbers:
    """What `Rate` calls in the tasks: the number of a row, and its key."""

    work: Work

    def __call__(self, offsets: Numbers, partition: int) -> Mapping[str, Any]:
        return {"k": keys(self.work, offsets), "value": offsets}


def topology_of(work: Work, folder: Path) -> hs.Topology:
    """The work as a topology; JSON comes from a log in the folder."""
    storm = hs.Topology("bench")
    if work.is_json:
        schema = "text STRING" if work.kind == "words" else "customer STRING, amount DECIMAL(10,2), level BIGINT"
        rows = storm.spout(SPOUT, hs.Log(folder / "log"), schema=schema)
    else:
        source = hs.Rate(1e6, rows=KeyedNumbers(work), columns="k BIGINT, value BIGINT", limit=1 << 40)
        rows = storm.spout(SPOUT, source)
    match work.kind:
        case "count":
            rows.fold("counts", by="k", n=hs.count())
        case "purchases":
            rows.fold("customers", by="customer", n=hs.count(), total=hs.sum("amount"), highest=hs.max("level"))
        case "words":
            _trending(rows, folder)
        case "sketches":
            visitors, middle = hs.count_distinct("value % 1000"), hs.quantiles("value % 977", 0.5)
            rows.fold("sketches", by="k", visitors=visitors, middle=middle)
        case "one-of-six":
            rows.fold("by_0", by="k", n=hs.count())
        case "six":
            for place in range(6):
                keyed = rows.select(f"keyed_{place}", k=f"(k + {place}) % {work.keys - place}")
                keyed.fold(f"by_{place}", by="k", n=hs.count())
        case "bolt":
            rows.bolt(doubled, returns="half BIGINT, double BIGINT").fold("total", n=hs.count(), sum=hs.sum("double"))
    return storm


def doubled(row: Any) -> dict[str, int]:
    """The function of the bolt bench; `peers/mapper.py` runs it, too."""
    return {"half": row.value // 2, "double": row.value * 2}


def words(line: Any) -> Iterator[dict[str, str]]:
    for word in line.text.lower().split():
        yield {"word": word}


def _trending(rows: hs.Stream, folder: Path) -> None:
    counts = rows.bolt(words, returns="word STRING").fold("counts", by="word", n=hs.count())
    counts.top("top", 10, by="n").sink("board", hs.Sqlite(folder / "board.db", table="board"))
    counts.sink("archive", hs.Parquet(folder / "archive"))
