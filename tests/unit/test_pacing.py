"""Pacing on made-up machines: the size of ticks converges to the latency target, and the cheaper way is found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from hailstorm.engine.ticks.pacing import Line, Pace, idle_wait
from hailstorm.topology.settings import Settings

Seconds = Callable[[int, int], float]  # (way, rows) -> how long a tick takes on this machine


def machine(**ways: tuple[float, float]) -> Seconds:
    """A machine on which a tick takes fixed + per_row * rows, by way: `machine(w1=(0.1, 1e-5))`."""
    lines = {int(name[1:]): line for name, line in ways.items()}
    return lambda way, rows: lines[way][0] + lines[way][1] * rows


def run(pace: Pace, seconds: Seconds, ticks: int, waiting: int = 10**9) -> list[tuple[int, int]]:
    """So many ticks, each of (way, rows)."""
    done = []
    for _ in range(ticks):
        rows = min(pace.rows, waiting)
        way = pace.way(rows)
        pace.observe(way, rows, seconds(way, rows))
        done.append((way, rows))
    return done


@pytest.mark.parametrize("per_row", [1e-6, 1e-5, 1e-4])
def test_full_ticks_converge_to_the_latency_target(per_row: float) -> None:
    pace = Pace(1.0, 10**7, (1,))
    _, rows = run(pace, machine(w1=(0.1, per_row)), 30)[-1]
    assert 0.7 < 0.1 + per_row * rows < 1.3


def test_the_size_is_settled_once_a_full_tick_asks_for_no_larger_one() -> None:
    pace = Pace(1.0, 10**7, (1,))
    run(pace, machine(w1=(0.1, 1e-6)), 3)
    assert not pace.settled, "it still grows: what waits is not too much yet"
    run(pace, machine(w1=(0.1, 1e-6)), 10)
    assert pace.settled
    assert Pace(1.0, 10**7, (1,)).settled is False


def test_small_ticks_settle_nothing_and_the_largest_allowed_is_settled() -> None:
    idle = Pace(1.0, 10**7, (1,))
    run(idle, machine(w1=(0.1, 1e-6)), 10, waiting=50)
    assert not idle.settled
    bounded = Pace(1.0, 100, (1,))
    run(bounded, machine(w1=(0.1, 1e-6)), 2)
    assert (bounded.settled, bounded.rows) == (True, 100)


def test_ticks_shrink_at_once_when_the_machine_becomes_slow() -> None:
    pace = Pace(1.0, 10**7, (1,))
    run(pace, machine(w1=(0.1, 1e-6)), 20)
    before = pace.rows
    run(pace, machine(w1=(0.1, 1e-5)), 6)
    assert pace.rows < before / 5


def test_ticks_grow_again_when_the_machine_recovers() -> None:
    pace = Pace(1.0, 10**7, (1,))
    run(pace, machine(w1=(0.1, 1e-4)), 20)
    run(pace, machine(w1=(0.1, 1e-6)), 20)
    assert pace.rows > 500_000


def test_a_tick_never_takes_more_than_it_may() -> None:
    pace = Pace(1.0, 5_000, (1,))
    assert pace.rows == 5_000
    assert all(rows <= 5_000 for _, rows in run(pace, machine(w1=(0.001, 1e-9)), 20))


def test_small_quick_ticks_do_not_change_the_size() -> None:
    pace = Pace(1.0, 10**7, (1,))
    before = pace.rows
    run(pace, machine(w1=(0.1, 1e-6)), 50, waiting=10)
    assert pace.rows == before


def test_where_a_tick_of_nothing_takes_longer_than_the_target_throughput_is_kept() -> None:
    """A target that cannot be reached must not let the backlog grow for ever."""
    pace = Pace(0.1, 10**7, (1,))
    run(pace, machine(w1=(0.3, 1e-5)), 50, waiting=10)
    done = run(pace, machine(w1=(0.3, 1e-5)), 30)
    assert done[-1][1] >= 10_000, "at most about half of the time is the fixed part"


@pytest.mark.parametrize(
    ("small", "large"),
    [(machine(w1=(0.1, 1e-5), w2=(0.4, 3e-6)), 300_000), (machine(w1=(0.1, 2e-6), w2=(1.0, 1e-6)), 5_000_000)],
)
def test_small_ticks_run_prepared_and_large_ones_planned(small: Seconds, large: int) -> None:
    pace = Pace(1.0, 10**7, (1, 2))
    for rows in (10, 1_000, 20_000, large, 50_000, large, 100, 200_000, large, 1_000, large, large // 2, large):
        way = pace.way(rows)
        pace.observe(way, rows, small(way, rows))
    assert pace.way(100) == 1
    assert pace.way(large) == 2


def test_a_way_that_is_never_better_is_tried_a_few_times_only() -> None:
    pace = Pace(1.0, 10**7, (1, 2))
    done = run(pace, machine(w1=(0.1, 1e-5), w2=(0.5, 2e-5)), 100)
    assert sum(1 for way, _ in done if way == 2) <= 3


def test_small_ticks_never_try_the_other_way() -> None:
    pace = Pace(1.0, 10**7, (1, 2))
    assert {way for way, _ in run(pace, machine(w1=(0.1, 1e-5), w2=(0.1, 1e-9)), 50, waiting=100)} == {1}


def test_a_line_is_found_again() -> None:
    line = Line()
    line.observe(1, 99.0)  # warms up: not counted
    for rows in (100, 1_000, 5_000, 20_000):
        line.observe(rows, 0.2 + 1e-5 * rows)
    assert line.predict(0) == pytest.approx(0.2, abs=1e-6)
    assert line.predict(50_000) == pytest.approx(0.7, abs=1e-6)


def test_ticks_of_one_size_give_a_flat_line() -> None:
    line = Line()
    for _ in range(10):
        line.observe(1_000, 0.25)
    assert line.predict(10) == pytest.approx(0.25)
    assert line.predict(10**6) == pytest.approx(0.25)


def test_a_prediction_is_never_negative() -> None:
    line = Line()
    for rows, seconds in ((1, 9.0), (100, 0.5), (10_000, 0.1), (50, 0.6)):
        line.observe(rows, seconds)
    assert line.predict(10**7) >= 0
    assert line.predict(0) >= 0


def test_a_way_that_was_unlucky_once_is_looked_at_again() -> None:
    pace = Pace(latency=1.0, most_rows=1_000_000, ways=(1, 2))
    for _ in range(3):
        pace.observe(1, 500_000, 3.0)  # a busy moment
        pace.observe(2, 500_000, 1.0)
    took = {1: 0.3, 2: 1.0}
    chosen = []
    for _ in range(200):
        way = pace.way(500_000)
        pace.observe(way, 500_000, took[way])
        chosen.append(way)
    assert chosen[-20:].count(1) >= 19


def test_after_a_backlog_small_ticks_are_resident_whatever_large_ones_seem_to_say() -> None:
    pace = Pace(1.0, 10**7, (0, 1, 2))
    for rows, seconds in ((1_000_000, 3.0), (1_000_000, 3.0), (200_000, 2.9)):  # noise: "a tick of nothing takes 2.8 s"
        pace.observe(0, rows, seconds)
    for rows in (1_000, 2_000, 1_000):
        pace.observe(1, rows, 0.06)
    assert pace.way(1_000) == 0
    pace.observe(0, 1_000, 0.015)
    assert {way for way, _ in run(pace, machine(w0=(0.015, 0), w1=(0.06, 0), w2=(0.3, 0)), 200, 1_000)} == {0}


def test_small_ticks_that_were_unlucky_as_resident_are_looked_at_again() -> None:
    pace = Pace(1.0, 10**7, (0, 1, 2))
    for _ in range(3):
        pace.observe(0, 1_000, 0.5)  # a busy moment
        pace.observe(1, 1_000, 0.06)
    done = run(pace, machine(w0=(0.015, 0), w1=(0.06, 0), w2=(0.3, 0)), 100, 1_000)
    assert done[0][0] == 1 and done[-1][0] == 0
    assert 2 not in {way for way, _ in done}


def test_waits_between_looks_at_silent_logs_grow() -> None:
    waits = [idle_wait(looks) for looks in (0, 50, 60, 1_000, 10**9)]
    assert waits == sorted(waits)
    assert waits[0] == waits[1] == 0.02
    assert waits[-1] == 0.2


def test_who_wants_the_lowest_latency_looks_all_the_time() -> None:
    assert Settings.from_options({"latency": "lowest"}).latency_ms == 0
    assert {idle_wait(looks, eager=True) for looks in (0, 60, 10**9)} == {0.001}


def test_with_the_lowest_latency_ticks_are_small_where_time_goes_into_rows() -> None:
    pace = Pace(0.0, 10**7, (0, 1))
    done = run(pace, machine(w0=(0.005, 1e-5), w1=(0.03, 1e-5)), 50)
    assert 1_000 <= done[-1][1] <= 2_000


def test_the_resident_way_is_for_small_ticks_and_the_planned_one_for_large_ones() -> None:
    pace = Pace(1.0, 10**7, (0, 1, 2))
    small = machine(w0=(0.005, 1e-5), w1=(0.03, 1e-5), w2=(0.3, 5e-6))
    assert {way for way, _ in run(pace, small, 50, waiting=1_000)} == {0}
    assert run(pace, small, 50)[-1][0] == 2
    assert pace.way(1_000) == 0


def test_without_a_resident_worker_the_other_ways_are_compared() -> None:
    pace = Pace(1.0, 10**7, (0, 1, 2))
    for rows in (1_000, 2_000, 500_000, 1_000_000) * 3:
        for way, fixed, per_row in ((0, 0.005, 1e-5), (1, 0.03, 1e-5), (2, 0.3, 5e-6)):
            pace.observe(way, rows, fixed + per_row * rows)
    assert pace.way(1_000) == 0
    assert pace.way(1_000, resident=False) == 1
    assert pace.way(1_000_000, resident=False) == 2


def test_what_may_only_be_resident_is_prepared_while_there_is_no_worker() -> None:
    pace = Pace(1.0, 10**7, (0,))
    assert pace.way(1_000) == 0
    assert pace.way(1_000, resident=False) == 1
    pace.observe(1, 1_000, 0.1)  # and that is measured as what it was
    assert pace.lines[0].seen == 0


def test_other_cores_are_another_planned_way_of_which_nothing_is_known() -> None:
    pace = Pace(1.0, 10**7, (0, 1, 2))
    run(pace, machine(w0=(0.001, 2e-5), w1=(0.1, 1e-5), w2=(0.2, 2e-6)), 60)
    of_prepared = pace.lines[1]
    pace.replan(5)
    assert (pace.ways, set(pace.lines)) == ((0, 1, 5), {0, 1, 5})
    assert pace.lines[1] is of_prepared and not pace.lines[5].seen
    known = pace.lines[5]
    pace.replan(5)
    assert pace.lines[5] is known, "the same cores are no news"
    run(pace, machine(w0=(0.001, 2e-5), w1=(0.1, 1e-5), w5=(0.2, 1e-6)), 60)
    assert pace.lines[5].seen > 2


def test_where_no_way_is_planned_other_cores_change_nothing() -> None:
    pace = Pace(1.0, 10**7, (0, 1))
    pace.replan(5)
    assert pace.ways == (0, 1)
