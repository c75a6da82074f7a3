"""Plans as text: what a topology becomes, prepared (one task) and planned (two). No job is run.

A reviewer sees in the diff when a change of the compiler adds a wave, a pass or a stage.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.examples import junctions, trending

FOLDER = Path(__file__).parent / "plans"


def spout(storm: hs.Topology, name: str = "orders") -> hs.Stream:
    return storm.spout(name, hs.Log(name), schema="shop STRING, item STRING, price BIGINT, at TIMESTAMP")


def fold_of_a_fold() -> hs.Topology:
    """The second fold can take rows back, the third cannot: a maximum needs its members."""
    storm = hs.Topology("fold-of-a-fold")
    items = spout(storm).fold("items", by="item", n=hs.count())
    items.fold("how_often", by="n", items=hs.count())
    items.fold("most", n=hs.max("n"))
    return storm


def diamond() -> hs.Topology:
    """One spout, two ways, one union: the log is read once."""
    storm = hs.Topology("diamond")
    orders = spout(storm)
    cheap = orders.where("cheap", "price < 10")
    dear = orders.where("dear", "price >= 10")
    cheap.union("both", dear).fold("count", by="shop", n=hs.count())
    return storm


def union_of_spouts() -> hs.Topology:
    storm = hs.Topology("union-of-spouts")
    spout(storm, "here").union("both", spout(storm, "there")).sink("out", hs.Console())
    return storm


def table_of_a_table() -> hs.Topology:
    """`where` and `select` of a table keep its changes exact."""
    storm = hs.Topology("table-of-a-table")
    shops = spout(storm).fold("shops", by="shop", sold=hs.sum("price"))
    shops.where("large", "sold > 100").select("rounded", hundreds="sold div 100").sink("out", hs.Console())
    return storm


def top_of_an_expression() -> hs.Topology:
    storm = hs.Topology("top-of-an-expression")
    spout(storm).fold("items", by="item", n=hs.count(), price=hs.max("price")).top("dearest", 3, by="n * price")
    return storm


def only_in_the_jvm() -> hs.Topology:
    """Expressions, SQL and a sketch that Arrow does not compute as Spark does: each ends the Python pass."""
    storm = hs.Topology("only-in-the-jvm")
    named = spout(storm).select("named", shop="soundex(shop)", item="item")
    named.sql("some", "SELECT shop, item FROM named WHERE item RLIKE '^[a-m]'").fold(
        "items", by="shop", items=hs.count_distinct("item")
    )
    return storm


def groupings() -> hs.Topology:
    """How tuples reach tasks, and what a Python function over batches costs."""
    storm = hs.Topology("groupings")
    orders = spout(storm)
    orders.bolt(_same, name="by_shop", returns="item STRING", grouping=hs.fields("shop")).sink("a", hs.Console())
    orders.bolt(_same, name="to_all", returns="item STRING", grouping=hs.everyone(2)).sink("b", hs.Console())
    orders.arrow("batches", _same, returns="item STRING").sink("c", hs.Console())
    return storm


def timed(storm: hs.Topology, name: str = "orders") -> hs.Stream:
    schema = "shop STRING, item STRING, price BIGINT, at TIMESTAMP"
    return storm.spout(name, hs.Log(name), schema=schema, event_time="at")


def windows() -> hs.Topology:
    """Tumbling ones, sliding ones over panes, and sessions; of a stream, and tumbling ones of a table."""
    storm = hs.Topology("windows")
    orders = timed(storm)
    orders.window("1 minute").fold("by_minute", by="shop", n=hs.count())
    orders.window("1 hour", "5 minutes", emit="final").fold("by_hour", by="shop", n=hs.count())
    orders.session("10 minutes").fold("by_visit", by="shop", n=hs.count())
    newest = orders.table("newest", key="item")
    newest.window("1 minute").fold("by_minute_now", by="shop", n=hs.count())
    return storm


def joins() -> hs.Topology:
    """Two streams, a stream with a table as of now and as of its time, and tables on keys and by a foreign key."""
    storm = hs.Topology("joins")
    orders, returns = timed(storm), timed(storm, "returns")
    orders.join("returned", returns, on="item", within="10 minutes", how="left")
    items = returns.table("items", key="item")
    shops = returns.fold("shops", by="shop", n=hs.count())
    orders.lookup("as_it_is", items, on="item")
    orders.lookup("as_it_was", items, on="item", as_of="event time")
    items.join("by_key", orders.table("others", key="item"), on="item")
    items.join("by_foreign_key", shops, on="shop")
    return storm


def logs_as_tables() -> hs.Topology:
    """Tables that are read from logs: their past as of a row's time, a small one to everyone, and sessions of one."""
    storm = hs.Topology("logs-as-tables")
    orders = timed(storm)
    schema = "item STRING, shop STRING, at TIMESTAMP, gone BOOLEAN"
    items = storm.table("items", hs.Log("items"), schema=schema, key="item", deletes="gone", event_time="at")
    orders.lookup("as_it_was", items, on="item", as_of="event time")
    orders.lookup("each", items, on=[])
    items.session("10 minutes").fold("by_visit", by="shop", n=hs.count())
    return storm


def named_outputs() -> hs.Topology:
    """What comes beside a step's own rows, and keys that are forgotten."""
    storm = hs.Topology("named-outputs")
    orders = timed(storm)
    orders.errors.sink("bad", hs.Console())
    hourly = orders.window("1 hour", late="side").fold("hourly", by="shop", n=hs.count())
    hourly.late.sink("late", hs.Console())
    orders.distinct("once", by="item", within="1 hour").late.sink("too_late", hs.Console())
    orders.fold("recent", by="shop", ttl="30 days", n=hs.count())
    return storm


@dataclass
class Seen:
    n: int = 0


class Alarm(hs.Process):
    """One row for each event."""

    state = Seen
    returns = "item STRING"

    def on_event(self, key: Any, event: Any, state: Seen, timers: Any) -> Any:
        yield {"item": event.item}


def keyed_streams() -> hs.Topology:
    storm = hs.Topology("keyed-streams")
    orders = timed(storm)
    orders.process("alarms", by="shop", using=Alarm)
    orders.distinct("once", by="item", within="1 hour")
    orders.ordered("in_order")
    orders.fold("shops", by=("shop", "item"), n=hs.count()).top("best", 3, by="n", per="shop")
    return storm


def _same(rows: Any) -> Any:
    return rows


TOPOLOGIES: dict[str, Callable[[], hs.Topology]] = {
    "trending": lambda: trending.storm,
    "junctions": lambda: junctions.storm,
    "fold-of-a-fold": fold_of_a_fold,
    "diamond": diamond,
    "union-of-spouts": union_of_spouts,
    "table-of-a-table": table_of_a_table,
    "top-of-an-expression": top_of_an_expression,
    "only-in-the-jvm": only_in_the_jvm,
    "groupings": groupings,
    "windows": windows,
    "joins": joins,
    "keyed-streams": keyed_streams,
    "logs-as-tables": logs_as_tables,
    "named-outputs": named_outputs,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_a_topology_becomes(name: str, spark: SparkSession, golden: Callable[[Path, str], None]) -> None:
    plans = [compile_topology(spark, TOPOLOGIES[name](), tasks).text() for tasks in (1, 2)]
    golden(FOLDER / f"{name}.txt", "\n\n".join(plans))


def test_there_is_no_plan_of_topologies_that_are_gone() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(TOPOLOGIES)
