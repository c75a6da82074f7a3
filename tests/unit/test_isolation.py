"""Isolation finds exactly the records that fail by themselves, in few tries."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hailstorm as hs
from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine.advance import Outcome, Work
from hailstorm.engine.ticks import attempts
from hailstorm.engine.ticks.bad_records import Budget, Ranges, SearchStopped, bad_records, first_half
from hailstorm.errors import BadRecord, BadRecordsError, RunError, TransientRunError
from hailstorm.halving import failing_parts
from hailstorm.topology.settings import Settings


@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=4),
    bad=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 39)), max_size=6),
)
def test_the_records_that_fail_are_found_and_no_others(lengths: list[int], bad: set[tuple[int, int]]) -> None:
    interval = Interval(
        Clock({"s": dict.fromkeys(range(len(lengths)), 5)}), Clock({"s": {p: 5 + n for p, n in enumerate(lengths)}})
    )
    wanted = {(p, offset + 5) for p, offset in bad if p < len(lengths) and offset < lengths[p]}
    tries = 0

    def attempt(part: Ranges) -> RunError | None:
        nonlocal tries
        tries += 1
        inside = any(r.partition == p and r.start <= offset < r.end for r in part for p, offset in wanted)
        return RunError(10, "bad") if inside else None

    found = bad_records(interval.ranges(), attempt, Budget(10_000, 60))
    assert {(p, offset) for p, offsets in found.bad.get("s", {}).items() for offset in offsets} == wanted
    assert found.count == len(wanted)
    assert found.whole
    assert found.interval(interval) == interval
    assert tries <= 2 + 2 * 8 * max(1, len(wanted))


@given(jobs=st.integers(0, 60), bad=st.sets(st.integers(0, 31), min_size=1))
def test_what_was_looked_through_when_the_budget_is_spent_is_a_beginning(jobs: int, bad: set[int]) -> None:
    interval = Interval(Clock({"s": {0: 5, 1: 7}}), Clock({"s": {0: 21, 1: 23}}))
    records = [(one.partition, offset) for one in interval.ranges() for offset in range(one.start, one.end)]
    wanted = [record for index, record in enumerate(records) if index in bad]
    tries = 0

    def attempt(part: Ranges) -> RunError | None:
        nonlocal tries
        tries += 1
        inside = any(r.partition == p and r.start <= offset < r.end for r in part for p, offset in wanted)
        return RunError(10, "bad") if inside else None

    found = bad_records(interval.ranges(), attempt, Budget(jobs, 60))
    assert tries <= jobs
    kept = found.interval(interval)
    assert kept.start == interval.start
    read = [(one.partition, offset) for one in kept.ranges() for offset in range(one.start, one.end)]
    assert read == records[: len(read)]
    bad_ones = [(p, offset) for p, offsets in found.bad.get("s", {}).items() for offset in offsets]
    assert bad_ones == [record for record in read if record in wanted]
    assert found.whole == (read == records)


def test_a_search_ends_at_once_when_we_are_asked_to_stop() -> None:
    stop = threading.Event()
    interval = Interval(Clock({"s": {0: 0}}), Clock({"s": {0: 16}}))

    def attempt(part: Ranges) -> RunError | None:
        stop.set()
        return RunError(10, "bad")

    with pytest.raises(SearchStopped):
        bad_records(interval.ranges(), attempt, Budget(100, 60, stop))


def test_parts_are_tried_first_to_last() -> None:
    tried: list[str] = []

    def attempt(part: str) -> Exception | None:
        if "x" in part:
            return ValueError(part)
        tried.append(part)
        return None

    halves = lambda part: [part[: len(part) // 2], part[len(part) // 2 :]] if len(part) > 1 else []  # noqa: E731
    assert [part for part, _ in failing_parts(["abxcdexf"], attempt, halves)] == ["x", "x"]
    assert "".join(tried) == "abcdef"


def test_tries_that_name_bad_records_do_not_count_as_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """What may pass has its tries, however many rounds it took to find bad records."""
    named = [BadRecordsError(11, "bad", records=(BadRecord("s", 0, offset, "why"),)) for offset in range(5)]
    raised: list[RunError] = [*named, TransientRunError(1, "a worker was killed"), TransientRunError(1, "again")]

    def advance_(*_: Any) -> Outcome:
        if raised:
            raise raised.pop(0)
        return Outcome(interval)

    monkeypatch.setattr(attempts, "advance", advance_)
    monkeypatch.setattr(attempts, "retry_wait", lambda *_: 0.0)
    interval = Interval(Clock({"s": {0: 0}}), Clock({"s": {0: 1_000}}))
    nothing: Any = None
    tried = attempts.Attempts(nothing, hs.Topology("t"), nothing, Settings(), lambda message: None)
    work = Work(nothing, nothing, interval, 0)
    assert tried.advance(nothing, work, threading.Event()) == Outcome(interval)
    assert not raised


@given(starts=st.lists(st.integers(0, 9), min_size=1, max_size=3), lengths=st.lists(st.integers(0, 9), min_size=3))
def test_the_first_half_of_an_interval_is_a_beginning_of_it(starts: list[int], lengths: list[int]) -> None:
    ends = {p: start + lengths[p] for p, start in enumerate(starts)}
    interval = Interval(Clock({"s": dict(enumerate(starts))}), Clock({"s": ends}))
    half = first_half(interval)
    assert half.start == interval.start
    assert interval.end.covers(half.end)
    assert len(half) == -(-len(interval) // 2)


class Naming:
    """An advance that fails on a bad record and names it: one at each try, as a monoid of one's own may."""

    def __init__(self, bad: set[int]) -> None:
        self.bad, self.tries = bad, 0

    def __call__(self, spark: Any, plan: Any, work: Work, *_: Any) -> Outcome:
        self.tries += 1
        known = work.excluded.get("s", {}).get(0, {})
        (only,) = work.interval.ranges()
        for offset in range(only.start, only.end):
            if offset in self.bad and offset not in known:
                raise BadRecordsError(11, "bad", records=(BadRecord("s", 0, offset, f"why {offset}"),))
        return Outcome(work.interval)


def attempts_with(monkeypatch: pytest.MonkeyPatch, naming: Naming, settings: Settings) -> attempts.Attempts:
    monkeypatch.setattr(attempts, "advance", naming)
    nothing: Any = None
    return attempts.Attempts(nothing, hs.Topology("t"), nothing, settings, lambda message: None)


def test_tries_that_name_bad_records_spend_the_budget_and_then_the_tick_gets_shorter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    naming = Naming(bad=set(range(0, 64, 2)))
    tried = attempts_with(monkeypatch, naming, Settings(search_jobs=5, error_limit=1.0))
    nothing: Any = None
    interval = Interval(Clock({"s": {0: 0}}), Clock({"s": {0: 64}}))
    outcome = tried.advance(nothing, Work(nothing, nothing, interval, 0), threading.Event())
    assert outcome is not None
    # Five are named, and a sixth; five more in half of it, and a sixth; and all in a quarter of it are known by now.
    assert outcome.interval == Interval(interval.start, Clock({"s": {0: 16}}))
    assert naming.tries == 13


def test_the_time_of_the_budget_counts_for_tries_that_name_bad_records_too(monkeypatch: pytest.MonkeyPatch) -> None:
    naming = Naming(bad=set(range(64)))
    tried = attempts_with(monkeypatch, naming, Settings(search_time_ms=0, error_limit=1.0))
    nothing: Any = None
    interval = Interval(Clock({"s": {0: 0}}), Clock({"s": {0: 64}}))
    outcome = tried.advance(nothing, Work(nothing, nothing, interval, 0), threading.Event())
    assert outcome is not None
    assert 0 < len(outcome.interval) < 64
    assert naming.tries < 20


def test_naming_ends_at_once_when_we_are_asked_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    naming = Naming(bad=set(range(8)))

    def stopped(*given: Any) -> Outcome:
        if naming.tries == 3:
            stop.set()
        return naming(*given)

    tried = attempts_with(monkeypatch, naming, Settings(error_limit=1.0))
    monkeypatch.setattr(attempts, "advance", stopped)
    nothing: Any = None
    interval = Interval(Clock({"s": {0: 0}}), Clock({"s": {0: 64}}))
    assert tried.advance(nothing, Work(nothing, nothing, interval, 0), stop) is None
    assert naming.tries == 4
