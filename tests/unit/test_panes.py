"""Panes: no window cuts one in two, and the windows of a row's pane are the windows of the row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hailstorm.clock.panes import Panes, can_share
from hailstorm.clock.windows import HOUR, Windows

MINUTE = 60_000_000


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    every=st.integers(1, 40),
    more=st.integers(1, 100),
    offset=st.integers(-50, 50),
    moments=st.lists(st.integers(-10_000, 10_000), min_size=1, max_size=30),
)
def test_the_windows_of_a_pane_are_those_of_each_of_its_moments(
    every: int, more: int, offset: int, moments: list[int]
) -> None:
    windows = Windows(every + more, every, offset)
    assert can_share(windows)
    assert of_panes(windows, np.array(moments)) == of_moments(windows, np.array(moments))


def test_panes_are_as_few_as_can_be() -> None:
    minutes = np.arange(0, 120) * MINUTE
    assert len(np.unique(Panes(Windows(60 * MINUTE, 5 * MINUTE)).of(minutes))) == 24
    assert len(np.unique(Panes(Windows(60 * MINUTE, 7 * MINUTE)).of(minutes))) == 35, "two for each that begins"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/St_Johns", "Asia/Kathmandu"])
@pytest.mark.parametrize(("size", "every"), [(48, 24), (3, 1), (5, 2), (24 * 7, 24)])
def test_panes_in_a_zone_follow_its_clocks(zone: str, size: int, every: int) -> None:
    windows = Windows(size * HOUR, every * HOUR, 0, zone)
    assert can_share(windows)
    for day in (datetime(2026, 3, 28), datetime(2026, 10, 24), datetime(2026, 3, 7), datetime(2026, 10, 31)):
        start = day.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        times = np.array([round((start + timedelta(minutes=17 * n)).timestamp() * 1e6) for n in range(200)])
        assert of_panes(windows, times) == of_moments(windows, times)


def test_windows_shorter_than_an_hour_in_a_zone_share_none() -> None:
    assert not can_share(Windows(30 * MINUTE, 10 * MINUTE, 0, "Europe/Berlin"))
    assert not can_share(Windows(HOUR, HOUR))
    assert not can_share(Windows(HOUR, 2 * HOUR))


def of_moments(windows: Windows, times: np.ndarray) -> set[tuple[int, int, int]]:
    index, start, end = windows.of(times)
    return set(zip(times[index].tolist(), start.tolist(), end.tolist(), strict=True))


def of_panes(windows: Windows, times: np.ndarray) -> set[tuple[int, int, int]]:
    panes = Panes(windows)
    index, start, end = panes.windows_of(panes.of(times))
    assert all((np.diff(end[index == place]) >= 0).all() for place in range(len(times))), "the first one first"
    return set(zip(times[index].tolist(), start.tolist(), end.tolist(), strict=True))


def test_windows_that_a_clock_of_summer_time_would_cut_do_not_fit_their_zone() -> None:
    def fits(size: int, every: int, offset: int = 0) -> bool:
        return Windows(size * MINUTE, every * MINUTE, offset * MINUTE, "Europe/Berlin").fits_its_zone()

    assert fits(1440, 60) and fits(30, 10) and fits(150, 30) and fits(30, 120)
    assert not fits(90, 90) and not fits(150, 120) and not fits(90, 120) and not fits(30, 120, 45)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_the_window_of_a_moment_holds_it_where_windows_do_not_overlap(zone: str) -> None:
    windows = Windows(24 * HOUR, 24 * HOUR, 3 * HOUR, zone)
    begin = round(datetime(2026, 3, 27, tzinfo=UTC).timestamp() * 1e6)
    many = begin + np.arange(0, 72 * 60, 7) * MINUTE  # over the change to summer time
    for times in (many, many[:1], many[:100], many[150:250], np.array([begin, begin + 24 * HOUR - 1])):
        index, start, end = windows.of(times)
        assert index.tolist() == list(range(len(times)))
        assert ((start <= times) & (times < end)).all()
        singly = [windows.of(np.array([time]))[1:] for time in times.tolist()]
        assert start.tolist() == [int(one[0]) for one, _ in singly] and end.tolist() == [int(o[0]) for _, o in singly]
        if zone == "UTC":
            assert ((start - 3 * HOUR) % (24 * HOUR) == 0).all() and (end - start == 24 * HOUR).all()
