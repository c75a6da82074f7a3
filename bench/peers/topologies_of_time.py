"""The works that go by event time, as Hailstorm topologies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import hailstorm as hs


def add_steps_of_time(kind: str, rows: hs.Stream) -> None:
    match kind:
        case "tumbling":
            rows.window("5 minutes").fold("counts", by="k", n=hs.count())
        case "sliding":
            rows.window("60 minutes", every="5 minutes", emit="final").fold("counts", by="k", n=hs.count())
        case "sessions":
            rows.session("5 minutes", emit="final").fold("counts", by="k", n=hs.count())
        case "views-and-clicks":
            views = rows.where("views", "value % 5 <> 0")
            clicks = rows.where("clicks", "value % 5 = 0")
            clicked = views.join("clicked", clicks, on="k", within=("0 seconds", "10 minutes"))
            clicked.fold("pairs", n=hs.count())  # somebody has to read them; theirs are read by nobody
        case "tables":
            left = rows.where("lefts", "value % 2 = 0").table("left", key="k")
            right = rows.where("rights", "value % 2 = 1").table("right", key="k")
            left.join("both", right, on="k")
        case "process":
            rows.process("watched", by="k", using=Totals)
        case "timers":
            rows.process("watched", by="k", using=Silence)


@dataclass
class Total:
    n: int = 0
    total: int = 0


class Totals(hs.Process):
    """Every tenth event of a key is told. `streaming_of_time.py` does the same."""

    state = Total
    returns = "n BIGINT, total BIGINT"

    def on_event(self, key: Any, event: Any, state: Total, timers: Any) -> Iterator[dict[str, int]]:
        state.n += 1
        state.total += event.value
        if state.n % 10 == 0:
            yield {"n": state.n, "total": state.total}


class Silence(hs.Process):
    """A timer per key, which is never due while the bench runs."""

    state = Total
    returns = "n BIGINT"

    def on_event(self, key: Any, event: Any, state: Total, timers: Any) -> None:
        if not state.n:
            timers.set("silent", event._time + timedelta(days=3_650))
        state.n += 1

    def on_timer(self, key: Any, timer: Any, state: Total, timers: Any) -> Iterator[dict[str, int]]:
        yield {"n": state.n}
