"""Card fraud: too many swipes at once, two places too far apart, and a card that has fallen silent.

A process finds sequences of events: its state remembers what a card did last, and a timer fires when nothing comes.
Rows of alerts and of silence are counted; `hailstorm state app.py watch` shows what is known of each card.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import asin, cos, radians, sin, sqrt
from typing import Any, ClassVar

import hailstorm as hs

MANY, SPAN = 4, timedelta(minutes=1)  # more swipes than this in so long
FASTEST = 900.0  # km/h
SILENCE = timedelta(seconds=90)

storm = hs.Topology("fraud")

swipes = storm.spout(
    "swipes",
    hs.Log("data/swipes"),
    schema="card STRING, city STRING, latitude DOUBLE, longitude DOUBLE, at TIMESTAMP",
    event_time="at",
)


@dataclass
class Card:
    recent: list[datetime] = field(default_factory=list)
    last: datetime | None = None
    city: str = ""
    latitude: float = 0.0
    longitude: float = 0.0

    def forget(self) -> None:
        """As it began: then nothing of the card is kept."""
        self.recent, self.last, self.city, self.latitude, self.longitude = [], None, "", 0.0, 0.0


class Watch(hs.Process):
    state = Card
    returns = "card STRING, kind STRING, at TIMESTAMP, detail STRING"
    outputs: ClassVar = {"silent": "card STRING, since TIMESTAMP"}

    def on_event(self, key: str, event: Any, state: Card, timers: Any) -> Iterator[Any]:
        if state.last is not None and event.at >= state.last + SILENCE:  # the event has come before the watermark
            yield from self.on_timer(key, None, state, timers)
        if state.last is not None:
            hours = (event.at - state.last).total_seconds() / 3600
            far = kilometres(state.latitude, state.longitude, event.latitude, event.longitude)
            if far > FASTEST * hours:
                yield alert(key, "travel", event.at, f"{state.city} to {event.city}")
        state.recent = [*(at for at in state.recent if at > event.at - SPAN), event.at]
        if len(state.recent) > MANY:
            yield alert(key, "velocity", event.at, f"{len(state.recent)} swipes")
        state.last, state.city, state.latitude, state.longitude = event.at, event.city, event.latitude, event.longitude
        timers.set("silence", event.at + SILENCE)

    def on_timer(self, key: str, timer: Any, state: Card, timers: Any) -> Iterator[Any]:
        yield "silent", {"card": key, "since": state.last}
        state.forget()


def alert(card: str, kind: str, at: datetime, detail: str) -> dict[str, Any]:
    return {"card": card, "kind": kind, "at": at, "detail": detail}


def kilometres(latitude: float, longitude: float, to_latitude: float, to_longitude: float) -> float:
    north, east = radians(to_latitude - latitude) / 2, radians(to_longitude - longitude) / 2
    chord = sin(north) ** 2 + cos(radians(latitude)) * cos(radians(to_latitude)) * sin(east) ** 2
    return 2 * 6371 * asin(sqrt(chord))


watch = swipes.process("watch", by="card", using=Watch)
watch.fold("alerts", by="kind", n=hs.count(), cards=hs.count_distinct("card"))
watch.fold("suspects", by="card", alerts=hs.count()).top("worst", 10, by="alerts").sink(
    "board", hs.Console(title="Cards to look at")
)
watch.output("silent").fold("silences", n=hs.count())


CITIES = {"Bern": (46.95, 7.45), "Lyon": (45.76, 4.84), "Porto": (41.15, -8.61), "Riga": (56.95, 24.11)}
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def events(n: int, seed: int) -> list[dict[str, Any]]:
    """Swipes of one minute. Most are near home; a few cards are in a hurry, and a few are in two places at once."""
    chance = random.Random(seed)
    begin = BEGIN + timedelta(minutes=seed)
    swipes = []
    for number in range(n):
        card = chance.randrange(5) if chance.random() < 0.1 else 5 + chance.randrange(800)
        home = list(CITIES)[card % len(CITIES)]
        city = chance.choice(list(CITIES)) if chance.random() < 0.02 else home
        latitude, longitude = CITIES[city]
        at = begin + timedelta(seconds=60 * number / n)
        place = {"city": city, "latitude": latitude, "longitude": longitude}
        swipes.append({"card": f"card{card}", **place, "at": at.isoformat()})
    return swipes


def feed(log: hs.Log, n: int, seed: int) -> None:
    """Append n swipes, the same ones for the same seed."""
    log.append(events(n, seed))


def oracle(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the state must be after these swipes, in plain Python: over the whole list of a card's swipes at once."""
    of_card: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for swipe in events:
        of_card[swipe["card"]].append({**swipe, "at": datetime.fromisoformat(swipe["at"])})
    end = max(swipes[-1]["at"] for swipes in of_card.values())
    alerts, silences = Counter[tuple[str, str]](), 0
    for card, swipes in of_card.items():
        for place, swipe in enumerate(swipes):
            alerts[card, "velocity"] += sum(swipe["at"] - SPAN < one["at"] for one in swipes[: place + 1]) > MANY
        for before, after in pairwise(swipes):
            hours = (after["at"] - before["at"]).total_seconds() / 3600
            ends = (before["latitude"], before["longitude"], after["latitude"], after["longitude"])
            silent = after["at"] >= before["at"] + SILENCE
            silences += silent
            alerts[card, "travel"] += kilometres(*ends) > FASTEST * hours and not silent
        silences += swipes[-1]["at"] + SILENCE <= end
    kinds = {kind for (_, kind), n in alerts.items() if n}
    return {
        "alerts": [
            {
                "kind": kind,
                "n": sum(n for (_, one), n in alerts.items() if one == kind),
                "cards": sum(1 for (_, one), n in alerts.items() if one == kind and n),
            }
            for kind in kinds
        ],
        "silences": [{"n": silences}] if silences else [],
    }
