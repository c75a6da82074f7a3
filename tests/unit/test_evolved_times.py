"""The watermarks of steps at the commit that brings them: they follow from those of the spouts above."""

from __future__ import annotations

import hailstorm as hs
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
