"""Nexmark, a query at a time: Hailstorm and Structured Streaming over the same events as JSON, 1 : 3 : 46.

Events are made and written before a tick is timed. What Structured Streaming gets is the query as one would write it
there; `docs/nexmark.md` says of the others why it cannot be written. Results are thrown away.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import hailstorm as hs
from bench.peers.hailstorm import Hailstorm
from bench.peers.peer import Tick
from bench.peers.streaming import Streaming
from bench.work import Work
from hailstorm.clock.clock import Clock
from hailstorm.examples.nexmark import events as made
from hailstorm.examples.nexmark.queries import AUCTION, BID, PERSON, QUERIES, SIDE_INPUT, Events

_ROUND = 50
_PER_SECOND = 10_000.0  # of event time
_KINDS = {"person": (1, made.people, PERSON), "auction": (3, made.auctions, AUCTION), "bid": (46, made.bids, BID)}
_SPOUTS = {**{kind: kind for kind in _KINDS}, "bid_arrivals": "bid"}


def lines(kind: str, start: int, end: int) -> list[str]:
    """The events of some rounds of fifty, as JSON."""
    share, rows, _ = _KINDS[kind]
    table = pa.table(rows(np.arange(start * share, end * share), _PER_SECOND))
    return [msgspec.json.encode(row).decode() for row in table.to_pylist()]


def forget(rows: list[Any]) -> None:
    """The sink of all queries."""


class Nexmark(Hailstorm):
    def __init__(self, work: Work, query: str) -> None:
        super().__init__(work)
        self.query, self.rounds = query, 0

    def topology(self) -> hs.Topology:
        storm = hs.Topology("bench")
        self.logs = {kind: hs.Log(self.folder / kind) for kind in _KINDS}
        for log in self.logs.values():
            log.create()
        events = Events(storm, *self.logs.values(), side_log=made.side_input())
        QUERIES[self.query](events).sink("results", hs.Call(forget))
        return storm

    def _advance(self, rows: int) -> list[Tick]:
        """So many events more, as one tick once pacing has seen ticks of that size; and before them the side input."""
        known = {step.name for step in self.negotiator.topology.steps}
        spouts = {spout: kind for spout, kind in _SPOUTS.items() if spout in known}
        end = self.rounds + max(1, rows // _ROUND)
        for kind in set(spouts.values()):
            self.logs[kind].append(lines(kind, self.rounds, end), partition=0)
        self.rounds = end
        clock = {spout: {0: end * _KINDS[kind][0]} for spout, kind in spouts.items()}
        side = {"side_input": {0: 10_000}} if "side_input" in known else {}
        target, ticks = Clock({**clock, **side}), []
        while not self.negotiator.position().covers(target):
            began = time.perf_counter()
            self.negotiator.tick(target)
            ticks.append(Tick((time.perf_counter() - began) * 1000, self.progress.rows, dict(self.progress.timings)))
        return ticks


class NexmarkStreaming(Streaming):
    """A file per kind of event is a micro-batch."""

    def __init__(self, work: Work, query: str) -> None:
        super().__init__(work)
        self.query, self.rounds = query, 0
        self.reads, self.mode, _ = EXPRESSIBLE[query]
        self.skip = 1

    def _begin(self) -> None:
        for kind in self.reads:
            (self.folder / kind).mkdir()
        self._put(self.work.rows)

    def _put(self, rows: int) -> None:
        end = self.rounds + max(1, rows // _ROUND)
        for kind in self.reads:
            hidden = self.folder / kind / f".{self.rounds:012d}"
            hidden.write_text("\n".join(lines(kind, self.rounds, end)) + "\n")
            hidden.rename(self.folder / kind / f"{self.rounds:012d}.json")
        self.rounds = end

    @property
    def _has_files(self) -> bool:
        return True

    def _remove_old(self) -> None:
        for kind in self.reads:
            for old in (self.folder / kind).glob("*.json"):
                old.unlink()

    def _start(self, rows: int) -> list[Any]:
        streams = {kind: self._read(kind, self.folder / kind) for kind in self.reads}
        side = self.spark.createDataFrame([(key, f"value-{key}") for key in range(10_000)], SIDE_INPUT)
        streams["side_input"] = side
        result = EXPRESSIBLE[self.query][2](streams)
        writer = result.writeStream.format("noop").outputMode(self.mode)
        return [writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()]

    def _read(self, kind: str, folder: Path) -> DataFrame:
        files = self.spark.readStream.schema(_KINDS[kind][2]).option("maxFilesPerTrigger", 1)
        return files.json(str(folder)).withWatermark("date_time", "4 seconds")


_EUROS = "CAST(price AS DECIMAL(19, 0)) * 0.908"
_DAY = "date_format(date_time, 'yyyy-MM-dd') AS day"
_BANDS = ("price < 10000", "price >= 10000 AND price < 1000000", "price >= 1000000")


def _in_bands(function: str, column: str) -> list[Any]:
    banded = [F.expr(f"{function}(IF({band}, {column}, NULL))") for band in _BANDS]
    return [F.expr(f"{function}({column})"), *banded]


def _everything() -> list[Any]:
    distinct = "approx_count_distinct"
    return [*_in_bands("count", "price"), *_in_bands(distinct, "bidder"), *_in_bands(distinct, "auction")]


def _dated(bids: DataFrame) -> DataFrame:
    return bids.selectExpr("*", _DAY, "date_format(date_time, 'hh:MM') AS minute")


def _channel_ids(bids: DataFrame) -> DataFrame:
    known = " ".join(f"WHEN '{name}' THEN '{n}'" for n, name in enumerate(("apple", "google", "facebook", "baidu")))
    in_url = "nullif(regexp_extract(url, '(&|^)channel_id=([^&]*)', 2), '')"
    return bids.selectExpr("*", f"CASE lower(channel) {known} ELSE {in_url} END AS channel_id").where(
        "channel_id IS NOT NULL"
    )


def _sellers(streams: dict[str, DataFrame]) -> DataFrame:
    tens = streams["auction"].where("category = 10").selectExpr("id AS auction", "seller")
    here = streams["person"].where("state IN ('or', 'id', 'ca')").select("id", "name", "city", "state")
    return tens.join(here, F.expr("seller = id"))


def _expanded(streams: dict[str, DataFrame]) -> DataFrame:
    tens = streams["auction"].where("category = 10").select("id", "item_name", "seller")
    return streams["bid"].join(tens, F.expr("auction = id"))


def _dear(bids: DataFrame) -> DataFrame:
    hour = "hour(date_time)"
    night = f"WHEN {hour} <= 6 OR {hour} >= 20 THEN 'nightTime'"
    day = f"CASE WHEN {hour} BETWEEN 8 AND 18 THEN 'dayTime' {night} ELSE 'otherTime' END"
    dear = bids.where(f"{_EUROS} > 1000000 AND {_EUROS} < 50000000")
    return dear.selectExpr("auction", _EUROS, day, "date_time", "length(extra) - length(replace(extra, 'c', ''))")


def _prices(bids: DataFrame) -> DataFrame:
    prices = [F.expr(f"{function}(price)") for function in ("min", "max", "avg", "sum")]
    return _dated(bids).groupBy("auction", "day").agg(*_in_bands("count", "price"), *prices)


# What each reads, its output mode, and the query.
EXPRESSIBLE: dict[str, tuple[tuple[str, ...], str, Any]] = {
    "q0": (("bid",), "append", lambda s: s["bid"].select("auction", "bidder", "price", "date_time")),
    "q1": (("bid",), "append", lambda s: s["bid"].selectExpr("auction", "bidder", _EUROS, "date_time")),
    "q2": (("bid",), "append", lambda s: s["bid"].where("auction IN (1007, 1020, 2001, 2019, 2087)")),
    "q3": (("person", "auction"), "append", _sellers),
    "q10": (("bid",), "append", lambda s: s["bid"].selectExpr("*", _DAY, "date_format(date_time, 'hh:mm') AS time")),
    "q11": (
        ("bid",),
        "append",
        lambda s: s["bid"].groupBy(F.session_window("date_time", "10 seconds"), "bidder").count(),
    ),
    "q12": (
        ("bid",),
        "update",
        lambda s: (
            s["bid"].withColumn("at", F.current_timestamp()).groupBy(F.window("at", "10 seconds"), "bidder").count()
        ),
    ),
    "q13": (
        ("bid",),
        "append",
        lambda s: s["bid"].withColumn("key", F.expr("auction % 10000")).join(s["side_input"], "key"),
    ),
    "q14": (("bid",), "append", lambda s: _dear(s["bid"])),
    "q15": (("bid",), "update", lambda s: _dated(s["bid"]).groupBy("day").agg(*_everything())),
    "q16": (
        ("bid",),
        "update",
        lambda s: _dated(s["bid"]).groupBy("channel", "day").agg(F.expr("max(minute)"), *_everything()),
    ),
    "q17": (("bid",), "update", lambda s: _prices(s["bid"])),
    "q18": (
        ("bid",),
        "update",
        lambda s: s["bid"].groupBy("bidder", "auction").agg(F.expr("max_by(struct(price, channel, extra), date_time)")),
    ),
    "q20": (("bid", "auction"), "append", _expanded),
    "q21": (("bid",), "append", lambda s: _channel_ids(s["bid"])),
    "q22": (
        ("bid",),
        "append",
        lambda s: s["bid"].selectExpr("auction", "channel", *(f"split_part(url, '/', {n + 3})" for n in (1, 2, 3))),
    ),
}
