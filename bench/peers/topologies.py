"""The works as Hailstorm topologies: what a user would write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hailstorm as hs
from bench.peers.topologies_of_time import add_steps_of_time
from bench.work import Numbers, Work, keys

SPOUT = "rows"


@dataclass(frozen=True)
class KeyedNumbers:
    """What `Rate` calls in the tasks: the number of a row, its key, and where they are wanted five more keys."""

    work: Work

    def __call__(self, offsets: Numbers, partition: int) -> Mapping[str, Any]:
        key = keys(self.work, offsets)
        more = {f"k{place}": (key + place) % (self.work.keys - place) for place in range(_places(self.work))}
        return {"k": key, "value": offsets, **more}

    @property
    def columns(self) -> str:
        return ", ".join(["k BIGINT", "value BIGINT", *(f"k{place} BIGINT" for place in range(_places(self.work)))])


def _places(work: Work) -> int:
    return 6 if work.kind in ("six", "one-of-six") else 0


def topology_of(work: Work, folder: Path) -> hs.Topology:
    """The work as a topology; JSON comes from a log in the folder."""
    storm = hs.Topology("bench")
    if work.is_json:
        schema = "text STRING" if work.kind == "words" else "customer STRING, amount DECIMAL(10,2), level BIGINT"
        rows = storm.spout(SPOUT, hs.Log(folder / "log"), schema=schema)
    else:
        numbers = KeyedNumbers(work)
        source = hs.Rate(1e6 / work.apart, rows=numbers, columns=numbers.columns, limit=1 << 40)
        rows = storm.spout(SPOUT, source)
    match work.kind:
        case "count":
            rows.fold("counts", by="k", n=hs.count())
        case "top":
            rows.fold("counts", by="k", n=hs.count()).top("top", 10, by="n")
        case "purchases":
            rows.fold("customers", by="customer", n=hs.count(), total=hs.sum("amount"), highest=hs.max("level"))
        case "words":
            _trending(rows, folder)
        case "sketches":
            visitors, middle = hs.count_distinct("value % 1000"), hs.quantiles("value % 977", 0.5)
            rows.fold("sketches", by="k", visitors=visitors, middle=middle)
        case "one-of-six":
            rows.fold("by_0", by="k0", n=hs.count())
        case "six":
            for place in range(6):
                rows.fold(f"by_{place}", by=f"k{place}", n=hs.count())
        case "six-selected":
            for place in range(6):
                key = rows.select(f"key_{place}", key=f"(k + {place}) % {work.keys - place}")
                key.fold(f"by_{place}", by="key", n=hs.count())
        case "tumbling" | "sliding" | "sessions" | "views-and-clicks" | "tables" | "process" | "timers":
            add_steps_of_time(work.kind, rows)
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
