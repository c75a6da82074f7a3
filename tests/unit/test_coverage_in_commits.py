"""Coverage grows with what commits have read, and what would be counted twice is refused."""

from __future__ import annotations

from typing import Any

import pytest

from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine.ticks.covering import begun, refuse_overlap
from hailstorm.errors import RunError
from hailstorm.ledger.commit import Commit, Hole
from hailstorm.ledger.live import Live

BEGUN = {"counts": {"t": {}}}


def commit(number: int, start: int, end: int, **fields: Any) -> Commit:
    return Commit(
        commit=number,
        epoch=1,
        reason="tick",
        at="",
        now=0,
        start={"t": {"0": start}},
        end={"t": {"0": end}},
        **fields,
    )


def live(*commits: Commit) -> Live:
    head = Live()
    for one in commits:
        head = head.after(one)
    return head


def spans(*commits: Commit) -> Any:
    first = commit(1, 0, 0, coverage=BEGUN, fingerprints={"counts": "f"})
    return live(first, *commits).coverage["counts"]["t"].get("0", ())


def test_ticks_make_one_span_longer() -> None:
    assert spans() == ()
    assert spans(commit(2, 5, 8), commit(3, 8, 8), commit(4, 8, 20)) == ((5, 20),)


def test_what_was_skipped_is_inside_and_what_was_gone_is_not() -> None:
    dropped = {"t": {"0": [Hole(8, 100, "dropped")]}}
    gone = {"t": {"0": [Hole(8, 100, "gone"), Hole(100, 110, "sampled")]}}
    assert spans(commit(2, 5, 8), commit(3, 100, 120, holes=dropped)) == ((5, 120),)
    assert spans(commit(2, 5, 8), commit(3, 110, 120, holes=gone)) == ((5, 8), (100, 120))


def test_a_step_that_was_removed_stands_still() -> None:
    removed = commit(3, 8, 8, coverage={"counts": {"t": {"0": ((5, 8),)}}}, fingerprints={"others": "f"})
    assert spans(commit(2, 5, 8), removed, commit(4, 8, 20)) == ((5, 8),)


def test_an_interval_that_a_step_was_given_already_is_refused() -> None:
    head = live(commit(1, 0, 0, coverage=BEGUN, fingerprints={"counts": "f"}), commit(2, 5, 8))
    refuse_overlap(head, Interval(Clock({"t": {0: 8}}), Clock({"t": {0: 20}})))
    refuse_overlap(head, Interval(Clock({"others": {0: 5}}), Clock({"others": {0: 8}})))
    with pytest.raises(RunError, match="HS-RUN-031  step 'counts' would count records twice: 1 records from t/0@7"):
        refuse_overlap(head, Interval(Clock({"t": {0: 7}}), Clock({"t": {0: 20}})))


def test_a_new_step_begins_with_nothing_of_all_spouts_above_it() -> None:
    import hailstorm as hs

    storm = hs.Topology("t")
    rows = storm.spout("t", hs.Log("x"), schema="k STRING")
    others = storm.spout("u", hs.Log("y"), schema="k STRING")
    rows.fold("counts", by="k", n=hs.count()).top("best", 3, by="n")
    rows.union("both", others).fold("all", n=hs.count())
    known = {"counts": {"t": {"0": ((5, 8),)}}}
    assert begun(storm, ("counts", "best", "all"), known) == {**known, "best": {"t": {}}, "all": {"t": {}, "u": {}}}
