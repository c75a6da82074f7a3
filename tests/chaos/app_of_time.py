"""The topology that test_time_kills.py kills: everything that waits for time. It comes into a folder of its own.

Rows come at most ten seconds out of order, so none is late, and what must come out is a matter of the rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import hailstorm as hs

storm = hs.Topology("storm", max_tick_rows=80, ledger="ledger", publish="off", retention="all")
events = storm.spout(
    "events",
    hs.Log("events"),
    schema="id STRING, words STRING, amount BIGINT, at TIMESTAMP",
    event_time="at",
    lateness="11 seconds",
)


@events.bolt(returns="id STRING, word STRING, amount BIGINT")
def words(event: Any) -> Iterator[dict[str, Any]]:
    if event.words == "poison":
        raise ValueError("poison")
    for place, word in enumerate(event.words.split()):
        yield {"id": f"{event.id}.{place}", "word": word, "amount": event.amount}


@dataclass
class Fired:
    n: int = 0


class Echo(hs.Process):
    """Every word once more, thirty seconds later: a timer for each, however many a key has."""

    state = Fired
    returns = "id STRING, n BIGINT"

    def on_event(self, key: str, event: Any, state: Fired, timers: Any) -> None:
        timers.set(event.id, event._time + timedelta(seconds=30))

    def on_timer(self, key: str, timer: Any, state: Fired, timers: Any) -> Iterator[dict[str, Any]]:
        state.n += 1
        yield {"id": timer.name, "n": state.n}


FINAL = {"emit": "final", "keep": "1000 days"}
sliding = words.window("60 seconds", every="25 seconds", **FINAL).fold("sliding", by="word", n=hs.count())
sessions = words.session("20 seconds", **FINAL).fold("sessions", by="word", n=hs.count(), amount=hs.sum("amount"))
echo = words.process("echo", by="word", using=Echo)

sliding.sink("sliding_sqlite", hs.Sqlite("out/tables.db", table="sliding"))
sessions.sink("sessions_sqlite", hs.Sqlite("out/tables.db", table="sessions"))
echo.sink("echo_sqlite", hs.Sqlite("out/tables.db", table="echo"))
