"""Cars at junctions: how many pass per minute, how fast they are, and where it is busiest.

Sensors send their cars up to half a minute late, and the minute waits for those. Some were offline and send them much
later: their minute has been closed, and they are counted beside it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import hailstorm as hs

storm = hs.Topology("junctions")

cars = storm.spout(
    "cars",
    hs.Log("data/cars"),
    schema="junction STRING, plate STRING, speed INT, at TIMESTAMP",
    event_time="at",
    lateness="30 seconds",
)

# A sensor that shows 0 or less has not seen a car.
passed = cars.where("passed", "speed > 0")
minutes = passed.window("1 minute", late="side")
per_minute = minutes.fold("per_minute", by="junction", cars=hs.count(), speed=hs.mean("speed"))
per_minute.sink("archive", hs.Sqlite("data/traffic.db", table="per_minute"))
per_minute.late.fold("offline", by="junction", cars=hs.count())

traffic = passed.fold("traffic", by="junction", cars=hs.count(), fastest=hs.max("speed"))
traffic.top("busiest", 5, by="cars").sink("board", hs.Console(title="Busiest junctions"))


JUNCTIONS = tuple(
    f"{street} & {number}th" for street in ("Elm", "Oak", "Pine", "Main", "Park") for number in range(4, 9)
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
OFFLINE = 600  # seconds for which a sensor kept its cars


def events(n: int, seed: int) -> list[dict[str, Any]]:
    """Cars of one minute. Rush hour wanders through the town with the seed. Some cars are of ten minutes ago."""
    chance = random.Random(seed)
    weights = [1 + 5 * (abs(place - seed // 10 % len(JUNCTIONS)) < 3) for place in range(len(JUNCTIONS))]
    begin = BEGIN + timedelta(minutes=seed)
    return [
        {
            "junction": junction,
            "plate": f"{chance.choice('ABCDEFGH')}{chance.randrange(10_000):04}",
            "speed": chance.choice((0, *range(5, 90))),
            "at": (begin + timedelta(seconds=60 * number / n - _delay(chance, seed))).isoformat(),
        }
        for number, junction in enumerate(chance.choices(JUNCTIONS, weights, k=n))
    ]


def _delay(chance: random.Random, seed: int) -> float:
    """How many seconds a sensor takes. None was offline in the first minute: nothing is late before there is a time."""
    return OFFLINE if seed and chance.random() < 0.02 else chance.choice((0, 0, 1, 20))


def feed(log: hs.Log, n: int, seed: int) -> None:
    """Append n cars, the same ones for the same seed."""
    log.append(events(n, seed), key="junction", partitions=2)


def oracle(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the state must be after these cars, in plain Python, if they came minute by minute."""
    speeds: dict[str, list[int]] = defaultdict(list)
    minutes: dict[tuple[str, datetime], list[int]] = defaultdict(list)
    offline: Counter[str] = Counter()
    newest = BEGIN
    for car in events:
        if car["speed"] > 0:
            junction, at = car["junction"], datetime.fromisoformat(car["at"])
            newest = max(newest, at)
            speeds[junction].append(car["speed"])
            if newest - at > timedelta(seconds=OFFLINE / 2):
                offline[junction] += 1
            else:
                minutes[junction, at.replace(second=0, microsecond=0)].append(car["speed"])
    traffic: list[dict[str, Any]] = [
        {"junction": junction, "cars": len(seen), "fastest": max(seen)} for junction, seen in speeds.items()
    ]
    most = sorted(traffic, key=lambda row: (-row["cars"], row["junction"]))[:5]
    return {
        "per_minute": [
            {
                "junction": junction,
                "window_start": minute,
                "window_end": minute + timedelta(minutes=1),
                "cars": len(seen),
                "speed": sum(seen) / len(seen),
            }
            for (junction, minute), seen in minutes.items()
        ],
        "offline": [{"junction": junction, "cars": cars} for junction, cars in offline.items()],
        "traffic": traffic,
        "busiest": [{**row, "rank": rank} for rank, row in enumerate(most, 1)],
    }
