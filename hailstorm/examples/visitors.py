"""Visitors on a page now, a fold of a fold; and their visits, which are sessions.

`whereabouts` knows of every user the page that was entered or left last. A user who moves changes that row, and the
change takes the visitor off one page and puts it on another: `visitors` is exact at every commit.
A visit ends when a user has done nothing for two minutes: `visits` has when it began, when it ended, and what was last.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import hailstorm as hs

storm = hs.Topology("visitors")

moves = storm.spout(
    "moves",
    hs.Log("data/moves"),
    schema="user STRING, page STRING, kind STRING, at TIMESTAMP",
    event_time="at",
)

whereabouts = moves.fold("whereabouts", by="user", page=hs.latest("page"), kind=hs.latest("kind"))
present = whereabouts.where("present", "kind = 'enter'")
visitors = present.fold("visitors", by="page", now=hs.count())
visitors.top("busiest", 10, by="now").sink("board", hs.Console(title="Visitors now"))

visits = moves.session("2 minutes").fold("visits", by="user", moves=hs.count(), last=hs.latest("page"))


PAGES = ("home", "news", "weather", "sports", "music", "films", "recipes", "travel", "about", "jobs", "help", "shop")
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
GAP = timedelta(minutes=2)


def events(n: int, seed: int) -> list[dict[str, Any]]:
    """People who enter and leave pages, each at a moment of its own. Which page is popular drifts with the seed."""
    chance = random.Random(seed)
    popular = PAGES[(seed // 10) % len(PAGES)]
    begin = BEGIN + timedelta(minutes=seed)
    moves = []
    for number in range(n):
        page = popular if chance.random() < 0.3 else chance.choice(PAGES)
        moves.append(
            {
                "user": f"user{chance.randrange(5000)}",
                "page": page,
                "kind": "enter" if chance.random() < 0.6 else "leave",
                "at": (begin + timedelta(seconds=60 * number / n)).isoformat(),
            }
        )
    return moves


def feed(log: hs.Log, n: int, seed: int) -> None:
    """Append n moves, the same ones for the same seed."""
    log.append(events(n, seed), key="user", partitions=2)


def oracle(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the state must be after these moves, in plain Python."""
    last: dict[str, dict[str, Any]] = {}
    visits: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for move in sorted(events, key=lambda move: datetime.fromisoformat(move["at"])):
        last[move["user"]] = move
        at, mine = datetime.fromisoformat(move["at"]), visits[move["user"]]
        if not mine or at >= mine[-1]["window_end"]:
            mine.append({"user": move["user"], "window_start": at, "moves": 0})
        mine[-1] |= {"window_end": at + GAP, "moves": mine[-1]["moves"] + 1, "last": move["page"]}
    visitors = Counter(move["page"] for move in last.values() if move["kind"] == "enter")
    most = sorted(visitors.items(), key=lambda item: (-item[1], item[0]))[:10]
    return {
        "whereabouts": [{"user": user, "page": move["page"], "kind": move["kind"]} for user, move in last.items()],
        "visitors": [{"page": page, "now": now} for page, now in visitors.items()],
        "busiest": [{"page": page, "now": now, "rank": rank} for rank, (page, now) in enumerate(most, 1)],
        "visits": [visit for mine in visits.values() for visit in mine],
    }
