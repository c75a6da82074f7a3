"""A topology with every kind of state, and random input for it: what tests of the time machine look back on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import hailstorm as hs
from hailstorm.ledger.reader import State
from hailstorm.testing import Driver

START = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = ("counts", "best", "sizes", "per", "sessions", "quiet", "firsts", "pairs")


@dataclass
class Seen:
    events: int = 0
    late: int = 0


class Quiet(hs.Process):
    """Says when a key was quiet for a while. Counts what came late: that depends on where ticks were cut."""

    state = Seen
    returns = "u STRING, events INT"

    def on_event(self, key: Any, event: Any, state: Seen, timers: Any) -> Iterator[dict[str, Any]]:
        state.events += 1
        state.late += event.is_late
        timers.set("quiet", event.at + timedelta(seconds=7))
        yield from ()

    def on_timer(self, key: Any, timer: Any, state: Seen, timers: Any) -> Iterator[dict[str, Any]]:
        yield {"u": key.u, "events": state.events}


def everything(ledger: str | None = None) -> hs.Topology:
    storm = hs.Topology("everything", ledger=ledger)
    clicks = storm.spout(
        "clicks", hs.Log("clicks"), schema="u STRING, n INT, at TIMESTAMP", event_time="at", lateness="5 seconds"
    )

    @clicks.bolt(returns="u STRING, n INT")
    def halves(click: hs.Row) -> Iterator[dict[str, Any]]:
        if click.n == 13:
            raise ValueError("thirteen")
        yield from ({"u": click.u, "n": n} for n in (click.n // 2, click.n - click.n // 2))

    counts = halves.fold("counts", by="u", n=hs.count(), s=hs.sum("n"), least=hs.min("n"))
    counts.top("best", 2, by="s")
    counts.fold("sizes", by="n", keys=hs.count(), most=hs.max("s"))
    clicks.window("10 seconds", late="drop").fold("per", by="u", n=hs.count())
    clicks.session("5 seconds", keep="1 minute").fold("sessions", by="u", n=hs.count(), s=hs.sum("n"))
    clicks.process("quiet", by="u", using=Quiet)
    clicks.distinct("once", by="u", within="20 seconds").fold("firsts", by="u", n=hs.count())
    joined = clicks.join("near", halves, on="u", within="3 seconds", suffix="_half")
    joined.fold("pairs", by="u", n=hs.count())
    return storm


def feed(driver: Driver, random: random.Random, ticks: int, bad: bool = True) -> None:
    """So many ticks of a few rows each, in two partitions, somewhat out of order, some far too late, and some bad."""
    second = getattr(driver, "second", 0)
    for _ in range(ticks):
        for partition in (0, 1):
            rows = []
            for _ in range(random.randrange(5)):
                second += random.randrange(3)
                at = START + timedelta(seconds=second - random.choice((0, 0, 0, 1, 4, 30)))
                n = random.randrange(20)
                rows.append({"u": random.choice("abcde"), "n": n if bad or n != 13 else 0, "at": at.isoformat()})
            driver.feed("clicks", rows, partition=partition)
        driver.advance()
    driver.second = second  # type: ignore[attr-defined]


def shown(state: State) -> list[str]:
    """The rows of a state, in an order of their own."""
    return sorted(map(repr, state.arrow().to_pylist()))
