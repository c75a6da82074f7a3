"""The most effective ad: views joined with the clicks that followed them, and the rate of both.

A click belongs to a view of the same ad in the same session, up to ten minutes before it. Views and clicks are folded
by ad, and the two tables are joined on it: the rate follows every change of either.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import hailstorm as hs

storm = hs.Topology("ads")

traffic = storm.spout(
    "traffic",
    hs.Log("data/traffic"),
    schema="session STRING, ad STRING, kind STRING, at TIMESTAMP",
    event_time="at",
    lateness="1 minute",
)
views = traffic.where("views", "kind = 'view'")
clicks = traffic.where("clicks", "kind = 'click'")

followed = views.join("followed", clicks, on=["session", "ad"], within=("0 seconds", "10 minutes"), how="semi")
seen = views.fold("seen", by="ad", views=hs.count())
clicked = followed.fold("clicked", by="ad", clicks=hs.count())
rates = seen.join("rates", clicked, on="ad").select("shown", views="views", clicks="clicks", rate="clicks / views")
rates.top("best", 5, by="rate").sink("board", hs.Console(title="The most effective ads"))


ADS = ("umbrella", "boots", "tea", "raincoat", "holiday", "piano", "novel", "bicycle")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def events(n: int, seed: int) -> list[dict[str, Any]]:
    """Sessions that see ads and click on some of them, the earlier ones of the list more often."""
    chance = random.Random(seed)
    begin = BEGIN + timedelta(minutes=seed)
    rows = []
    for number in range(n):
        place = chance.randrange(len(ADS))
        kind = "click" if chance.random() < 0.5 / (place + 1) else "view"
        at = begin + timedelta(seconds=60 * number / n)
        rows.append({"session": f"s{chance.randrange(400)}", "ad": ADS[place], "kind": kind, "at": at.isoformat()})
    return rows


def feed(log: hs.Log, n: int, seed: int) -> None:
    """Append n events, the same ones for the same seed."""
    log.append(events(n, seed), key="session", partitions=2)


def oracle(rows: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the state must be after these events, in plain Python."""
    happened = [{**row, "at": datetime.fromisoformat(row["at"])} for row in rows]
    views = Counter(row["ad"] for row in happened if row["kind"] == "view")
    times: dict[tuple[str, str], list[datetime]] = {}
    for row in happened:
        if row["kind"] == "click":
            times.setdefault((row["session"], row["ad"]), []).append(row["at"])
    clicked: Counter[str] = Counter()
    for row in happened:
        after = times.get((row["session"], row["ad"]), []) if row["kind"] == "view" else []
        clicked[row["ad"]] += any(timedelta(0) <= at - row["at"] <= timedelta(minutes=10) for at in after)
    return {
        "seen": [{"ad": ad, "views": count} for ad, count in views.items()],
        "clicked": [{"ad": ad, "clicks": count} for ad, count in clicked.items() if count],
        "rates": [{"ad": ad, "views": views[ad], "clicks": count} for ad, count in clicked.items() if count],
    }
