"""Panes: no window cuts one in two, and the windows of a row's pane are the windows of the row."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hailstorm.clock.panes import Panes, can_share
from hailstorm.clock.windows import HOUR, Windows

MINUTE = 60_000_000


@pytest.mark.parametrize("zone", ["UTC", "America/St_Johns", "Pacific/Auckland"])
def test_all_windows_of_panes_that_are_over_have_ended(zone: str) -> None:
    panes = Panes(Windows(5 * HOUR, 2 * HOUR, 0, zone))
    moment = int(datetime(2026, 3, 29, 1, tzinfo=UTC).timestamp()) * 1_000_000
    _, _, ends = panes.windows_of(np.array([panes.over(moment), panes.over(moment) - HOUR]))
    assert (ends <= moment).all()


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


# The day before clocks change, in spring and in autumn; St_Johns changed a minute after midnight until 2011.
CHANGES = {
    "UTC": ["2026-03-28"],
    "Europe/Berlin": ["2026-03-28", "2026-10-24"],
    "America/St_Johns": ["2026-03-07", "2026-10-31", "2010-03-13", "2010-11-06"],
    "Australia/Lord_Howe": ["2026-04-04", "2026-10-03"],  # by half an hour
    "Asia/Kathmandu": ["1985-12-31"],  # by a quarter of an hour, once
}


def around_changes(zone: str, days: int) -> Iterator[np.ndarray]:
    for day in CHANGES[zone]:
        start = datetime.fromisoformat(day).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
        yield round(start.timestamp() * 1e6) + np.arange(0, days * 24 * 60, 5) * MINUTE + 1


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("offset", [0, 30, 150, 60 * 5 + 1])
@pytest.mark.parametrize(("size", "every"), [(48, 24), (3, 1), (5, 2), (24 * 7, 24)])
def test_panes_in_a_zone_follow_its_clocks(zone: str, offset: int, size: int, every: int) -> None:
    windows = Windows(size * HOUR, every * HOUR, offset * MINUTE, zone)
    assert can_share(windows)
    for times in around_changes(zone, days=3):
        assert of_panes(windows, times) == of_moments(windows, times)


@pytest.mark.parametrize("zone", CHANGES)
@pytest.mark.parametrize("offset", [0, 7, 30, 150])
@pytest.mark.parametrize(
    ("size", "every"),
    [(60, 60), (1440, 1440), (10, 10), (20, 20), (30, 10), (90, 60), (150, 30), (180, 60), (30, 120), (60, 120)],
)
def test_windows_are_of_one_piece_when_clocks_change(zone: str, offset: int, size: int, every: int) -> None:
    windows = Windows(size * MINUTE, every * MINUTE, offset * MINUTE, zone)
    if not windows.fits_its_zone():
        pytest.skip("refused when it is declared")
    if every > size and zone == "America/St_Johns":
        pytest.skip("with gaps between them, windows must begin or end when clocks change")
    for times in around_changes(zone, days=2):
        index, start, end = windows.of(times)
        assert ((start <= times[index]) & (times[index] < end)).all()
        found = set(zip(index.tolist(), start.tolist(), end.tolist(), strict=True))
        known = {window[1:] for window in found}
        assert {
            (place, *window) for window in known for place in np.flatnonzero((window[0] <= times) & (times < window[1]))
        } == found, "every moment of a window is in it"


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


def test_a_bound_within_an_hour_that_is_shown_twice_is_when_it_is_shown_first() -> None:
    moment = np.array([round(datetime(2026, 10, 25, 1, 10, tzinfo=UTC).timestamp() * 1e6)])  # 02:10 for the second time
    for hours, until in ((1, "2026-10-25T02:30:00+00:00"), (24, "2026-10-26T01:30:00+00:00")):
        windows = Windows(hours * HOUR, hours * HOUR, 150 * MINUTE, "Europe/Berlin")
        _, start, end = (datetime.fromtimestamp(bound.item() / 1e6, UTC).isoformat() for bound in windows.of(moment))
        assert (start, end) == ("2026-10-25T00:30:00+00:00", until)


@pytest.mark.parametrize("day", ["2026-03-27", "2026-10-23"])
@pytest.mark.parametrize("offset", [30, 150, 180])
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_the_window_of_a_moment_holds_it_where_windows_do_not_overlap(zone: str, offset: int, day: str) -> None:
    windows = Windows(24 * HOUR, 24 * HOUR, offset * MINUTE, zone)
    begin = round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() * 1e6)
    many = begin + np.arange(0, 72 * 60, 7) * MINUTE  # over the change of clocks
    for times in (many, many[:1], many[:100], many[150:250], np.array([begin, begin + 24 * HOUR - 1])):
        index, start, end = windows.of(times)
        assert index.tolist() == list(range(len(times)))
        assert ((start <= times) & (times < end)).all()
        singly = [windows.of(np.array([time]))[1:] for time in times.tolist()]
        assert start.tolist() == [int(one[0]) for one, _ in singly] and end.tolist() == [int(o[0]) for _, o in singly]
        if zone == "UTC":
            assert ((start - offset * MINUTE) % (24 * HOUR) == 0).all() and (end - start == 24 * HOUR).all()
