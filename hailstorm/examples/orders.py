"""Orders priced as of their time: what an item cost when it was ordered, not what it costs now.

Prices change while orders come, and both come out of order. An order waits until the watermark has passed its time, and
gets the price that was valid then. The turnover of each item is folded from that.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import hailstorm as hs

storm = hs.Topology("orders")

market = storm.spout(
    "market",
    hs.Log("data/market"),
    schema="kind STRING, item STRING, cents BIGINT, pieces BIGINT, at TIMESTAMP",
    event_time="at",
    lateness="10 seconds",
)
changed = market.where("changed", "kind = 'price'").select("listed", item="item", price="cents")
prices = changed.table("prices", key="item")
placed = market.where("placed", "kind = 'order'").select("asked", item="item", pieces="pieces")

priced = placed.lookup("priced", prices, on="item", as_of="event time", how="inner")
turnover = priced.fold("turnover", by="item", orders=hs.count(), cents=hs.sum("pieces * price"))
turnover.top("best", 5, by="cents").sink("board", hs.Console(title="Turnover"))


ITEMS = ("umbrella", "boots", "tea", "raincoat", "lamp", "chair")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
LATENESS = timedelta(seconds=10)


def events(n: int, seed: int) -> list[dict[str, Any]]:
    """Orders, and now and then a new price; some of both come up to eight seconds late."""
    chance = random.Random(seed)
    begin = BEGIN + timedelta(minutes=seed)
    rows = []
    for number in range(n):
        at = begin + timedelta(seconds=60 * number / n - 8 * (chance.random() < 0.2))
        row = {"item": chance.choice(ITEMS), "at": at.isoformat()}
        if chance.random() < 0.1:
            rows.append({**row, "kind": "price", "cents": chance.randrange(100, 5_000)})
        else:
            rows.append({**row, "kind": "order", "pieces": chance.randrange(1, 5)})
    return rows


def feed(log: hs.Log, n: int, seed: int) -> None:
    """Append n events, the same ones for the same seed."""
    log.append(events(n, seed))


def oracle(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the state must be after these events, in plain Python."""
    happened = [{**row, "at": datetime.fromisoformat(row["at"])} for row in rows]
    watermark = max(row["at"] for row in happened) - LATENESS
    prices = [(row["at"], place, row["item"], row["cents"]) for place, row in enumerate(happened) if "cents" in row]
    orders: Counter[str] = Counter()
    cents: Counter[str] = Counter()
    for row in happened:
        known = [price for price in prices if price[2] == row["item"] and price[0] <= row["at"]]
        if row["kind"] == "order" and row["at"] < watermark and known:
            orders[row["item"]] += 1
            cents[row["item"]] += row["pieces"] * max(known)[3]
    newest = {item: max(price for price in prices if price[2] == item)[3] for item in {price[2] for price in prices}}
    return {
        "prices": [{"item": item, "price": price} for item, price in newest.items()],
        "turnover": [{"item": item, "orders": count, "cents": cents[item]} for item, count in orders.items()],
    }
