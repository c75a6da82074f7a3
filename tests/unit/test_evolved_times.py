"""The watermarks of steps at the commit that brings them: they follow from those of the spouts above."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import hailstorm as hs
from hailstorm.clock.watermark import END
from hailstorm.engine.stages.order import Seen
from hailstorm.engine.ticks.times import Times
from hailstorm.ledger.live import Live

AT = {"rows": (50, 50), "ends": (50, 40)}


def topology(*, edited: bool) -> hs.Topology:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, at TIMESTAMP", event_time="at")
    rows.window("1 hour", emit="final").fold("ends", by="k", n=hs.count())
    if edited:
        some = rows.where("some", "k > 'a'")
        some.distinct("once", by="k", within="1 hour").sink("out", hs.Console())
        others = storm.spout("others", hs.Log("y"), schema="k STRING, at TIMESTAMP", event_time="at")
        some.join("both", others, on="k", within="1 hour").fold("pairs", n=hs.count())
    return storm


def test_a_step_that_is_new_has_the_watermark_of_what_is_above_it() -> None:
    found = Times(topology(edited=True)).evolved(Live(commit=3, watermarks=AT))
    assert {name: found[name] for name in ("rows", "some", "once")} == dict.fromkeys(("rows", "some", "once"), (50, 50))
    # A spout that never had a record has none, and holds back what is below it. Sinks have no time.
    assert {name: found[name] for name in ("others", "both", "pairs")} == dict.fromkeys(
        ("others", "both", "pairs"), (None, None)
    )
    assert "out" not in found


def test_a_step_that_holds_rows_back_hands_on_what_it_has_released() -> None:
    def released(step: str, time: int | None) -> int | None:
        return 40 if step == "ends" else time

    assert Times(topology(edited=False)).evolved(Live(commit=3, watermarks=AT), released) == AT


def test_before_the_first_tick_there_is_no_watermark() -> None:
    assert Times(topology(edited=True)).evolved(Live()) == {}


@dataclass
class Count:
    n: int = 0


class Waits(hs.Process):
    state = Count
    returns = "k STRING"

    def on_event(self, key: str, event: Any, state: Any, timers: Any) -> Any:
        timers.set("day", datetime(2026, 1, 2, tzinfo=UTC))

    def on_timer(self, key: str, timer: Any, state: Any, timers: Any) -> Any:
        yield {"k": key}


def test_the_end_of_input_is_the_end_of_spouts_without_time_too() -> None:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Files("x/*.csv"), schema="k STRING", decode="csv")
    rows.process("waits", by="k", using=Waits).sink("out", hs.Console())
    times = Times(storm)
    before = times.after(Live(commit=3), {"rows": {0: Seen(rows=1)}}, 0)
    assert times.of_steps(before)["waits"] == (None, None)
    ended = times.at_the_end(Live(commit=3))
    assert times.of_steps(ended)["waits"] == (END, END)
    # What comes after it all the same is late.
    after = times.after(Live(commit=4, watermarks=times.of_steps(ended)), {}, 0)
    assert times.of_steps(after)["waits"] == (END, END)
