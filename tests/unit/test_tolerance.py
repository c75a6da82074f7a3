"""The rule for bad rows: across ticks, alone, bounded, and after a restart."""

from __future__ import annotations

import random

import pytest

from hailstorm.engine.tolerance import Recent, Tolerance, total

TENTH = Tolerance(0.1, 100)


def ticks(*counts: tuple[int, int], rule: Tolerance = TENTH) -> tuple[int | None, Recent]:
    """The number of the first tick that is not borne, if one is not, and what is remembered before it."""
    recent: Recent = ()
    for number, (rows, bad) in enumerate(counts):
        if bad > rule.most(recent, rows):
            return number, recent
        recent = rule.after(recent, rows, bad)
    return None, recent


def test_fewer_rows_than_there_must_be_are_never_too_many() -> None:
    assert ticks((99, 99))[0] is None
    assert ticks((100, 10))[0] is None
    assert ticks((100, 11))[0] == 0


def test_a_trickle_of_bad_rows_stops_once_there_are_a_hundred() -> None:
    assert ticks(*[(1, 1)] * 200)[0] == 99
    assert ticks(*[(30, 30)] * 9)[0] == 3


def test_a_good_past_delays_nothing_beyond_the_last_hundred_rows() -> None:
    assert ticks((1_000_000, 0), *[(1, 1)] * 200)[0] == 100
    number, _ = ticks(*[(10, 0)] * 1_000, *[(10, 10)] * 9)
    assert number is not None and number - 1_000 <= 1
    assert ticks((1_000_000, 0), (100, 11))[0] == 1


def test_ten_percent_for_ever_are_borne() -> None:
    assert ticks(*[(10, 1)] * 1_000)[0] is None


@pytest.mark.parametrize("seed", range(20))
def test_a_tick_with_bad_rows_is_borne_only_while_the_last_rows_are_within_the_limit(seed: int) -> None:
    """The oracle remembers every tick. Windows begin between ticks, and may be somewhat larger than they must be."""
    chance, rule = random.Random(seed), Tolerance(0.1, 100)
    recent: Recent = ()
    past: list[tuple[int, int]] = []
    for _ in range(300):
        rows = chance.choice([1, 3, 20, 150])
        bad = sum(chance.random() < 0.15 for _ in range(rows))
        if bad > rule.most(recent, rows):
            continue
        past.append((rows, bad))
        recent = rule.after(recent, rows, bad)
        size = total(recent)[0]
        counted, wrong = 0, 0
        for one in reversed(past):
            if counted >= size:
                break
            counted, wrong = counted + one[0], wrong + one[1]
        assert (counted, wrong) == total(recent)
        assert counted < 100 or not bad or wrong <= 0.1 * counted
        assert len(recent) <= 12


def test_what_is_remembered_stays_small_however_many_rows_there_must_be() -> None:
    rule = Tolerance(0.1, 100_000)
    recent: Recent = ()
    for _ in range(250_000):
        recent = rule.after(recent, 1, 0)
    assert len(recent) <= 12
    assert 100_000 <= total(recent)[0] <= 120_000


def test_a_run_that_was_allowed_more_does_not_stop_the_next_one_at_once() -> None:
    generous = Tolerance(0.5, 100)
    _, recent = ticks((100, 40), rule=generous)
    assert TENTH.most(recent, 10) == 0
    assert TENTH.begun(recent) == ()
    assert TENTH.begun(((100, 10),)) == ((100, 10),)
