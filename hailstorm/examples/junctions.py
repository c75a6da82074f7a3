"""Cars at junctions: how many pass, how fast they are, and where it is busiest. Two sinks read one fold."""

from __future__ import annotations

import random
from collections import defaultdict
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
)

# A sensor that shows 0 or less has not seen a car.
passed = cars.where("passed", "speed > 0")
traffic = passed.fold("traffic", by="junction", cars=hs.count(), speed=hs.mean("speed"), fastest=hs.max("speed"))
traffic.sink("archive", hs.Sqlite("data/traffic.db", table="traffic"))
traffic.top("busiest", 5, by="cars").sink("board", hs.Console(title="Busiest junctions"))


JUNCTIONS = tuple(
    f"{street} & {number}th" for street in ("Elm", "Oak", "Pine", "Main", "Park") for number in range(4, 9)
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def events(n: int, seed: int) -> list[dict[str, Any]]:
    """Cars of one minute. Rush hour wanders through the town with the seed."""
    chance = random.Random(seed)
    weights = [1 + 5 * (abs(place - seed // 10 % len(JUNCTIONS)) < 3) for place in range(len(JUNCTIONS))]
    begin = BEGIN + timedelta(minutes=seed)
    return [
        {
            "junction": junction,
            "plate": f"{chance.choice('ABCDEFGH')}{chance.randrange(10_000):04}",
            "speed": chance.choice((0, *range(5, 90))),
            "at": (begin + timedelta(seconds=60 * number / n)).isoformat(),
        }
        for number, junction in enumerate(chance.choices(JUNCTIONS, weights, k=n))
    ]


def feed(log: hs.Log, n: int, seed: int) -> None:
    """Append n cars, the same ones for the same seed."""
    log.append(events(n, seed), key="junction", partitions=2)


def oracle(events: Iterable[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """What the state must be after these cars, in plain Python."""
    speeds: dict[str, list[int]] = defaultdict(list)
    for car in events:
        if car["speed"] > 0:
            speeds[car["junction"]].append(car["speed"])
    traffic: list[dict[str, Any]] = [
        {"junction": junction, "cars": len(seen), "speed": sum(seen) / len(seen), "fastest": max(seen)}
        for junction, seen in speeds.items()
    ]
    most = sorted(traffic, key=lambda row: (-row["cars"], row["junction"]))[:5]
    return {"traffic": traffic, "busiest": [{**row, "rank": rank} for rank, row in enumerate(most, 1)]}
