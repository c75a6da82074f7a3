"""Settings and durations: what people write, and what they are told when it is wrong."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

import hailstorm as hs
from hailstorm.clock.watermark import FIRST_MOMENT, LAST_MOMENT
from hailstorm.errors import Location, TopologyError
from hailstorm.topology.durations import duration_text, milliseconds, read_duration, read_signed_duration
from hailstorm.topology.settings import Settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("500 ms", 500),
        ("1s", 1_000),
        ("1.5 seconds", 1_500),
        ("10 minutes", 600_000),
        ("2h", 7_200_000),
        ("1 day", 86_400_000),
        (" 1 Week ", 604_800_000),
        ("0 seconds", 0),
    ],
)
def test_a_duration_is_a_number_and_a_unit(text: str, expected: int) -> None:
    assert milliseconds(text, "latency", Location("app.py", 1)) == expected


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "10 parsecs", "-1 s", "1 s 2 s", 10, None, "1,5 s"])
def test_anything_else_is_not_a_duration(text: Any) -> None:
    with pytest.raises(TopologyError, match="HS-TOP-013"):
        milliseconds(text, "latency", Location("app.py", 1))


@pytest.mark.parametrize(
    ("text", "expected"), [("-8 hours", -28_800_000), (" -1s", -1_000), ("1s", 1_000), ("--1s", None)]
)
def test_some_durations_may_go_back(text: str, expected: int | None) -> None:
    assert read_signed_duration(text) == expected


def test_what_is_longer_than_all_of_time_is_as_long_as_that() -> None:
    for_ever = read_duration("99999999999999 days")
    assert for_ever is not None
    assert for_ever == read_duration("9" * 400 + " weeks") == -(read_signed_duration("-99999999999999 days") or 0)
    assert for_ever * 1000 > LAST_MOMENT - FIRST_MOMENT
    # Tasks add a time, both bounds of a join, and twice as much for its slots.
    assert LAST_MOMENT + 6 * for_ever * 1000 < 1 << 63


def test_an_offset_that_goes_back_is_one_that_goes_on() -> None:
    storm = hs.Topology("t")
    rows = storm.spout("rows", hs.Log("x"), schema="k INT, at TIMESTAMP", event_time="at")
    back, on = (rows.window("1 day", offset=offset).windows for offset in ("-8 hours", "16 hours"))
    assert back == on


@pytest.mark.parametrize("amount", [0, 1, 999, 1_000, 1_500, 60_000, 90_000, 3_600_000, 86_400_000, 604_800_000])
def test_a_duration_is_written_so_that_it_can_be_read_again(amount: int) -> None:
    assert read_duration(duration_text(amount)) == amount


def test_settings_are_keywords_of_the_topology() -> None:
    storm = hs.Topology("t", latency="250 ms", max_tick_rows=5_000, error_limit="20%")
    assert storm.settings == Settings(latency_ms=250, max_tick_rows=5_000, error_limit=0.2)


def test_the_command_line_overrides_with_text() -> None:
    settings = Settings(latency_ms=250, max_tick_rows=16).with_options({"latency": "2s", "outbox_limit": "50"})
    assert settings == Settings(latency_ms=2_000, max_tick_rows=16, outbox_limit=50)


def test_publishing_can_be_off() -> None:
    assert Settings().publish_every == 10
    settings = Settings.from_options({"publish": "off"})
    assert settings.publish_every is None
    assert ("publish", "off") in [(name, shown) for name, shown, _ in settings.explain()]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("latency", "soon"),
        ("publish", "on"),
        ("outbox_limit", 0),
        ("outbox_limit", 1.5),
        ("max_tick_rows", "-1"),
        ("error_limit", 2),
    ],
)
def test_a_value_that_a_setting_cannot_have_is_refused(name: str, value: Any) -> None:
    with pytest.raises(TopologyError, match=f"HS-TOP-015  setting '{name}'"):
        Settings.from_options({name: value})


def test_an_unknown_setting_is_refused_with_the_nearest_known_one() -> None:
    with pytest.raises(TopologyError, match="Did you mean 'latency'"):
        Settings.from_options({"latenc": 16})


def test_every_setting_says_what_it_means() -> None:
    explained = Settings().explain()
    assert len(explained) == len(fields(Settings))
    assert ("latency", "1 second", "how long a tick should take; ticks are sized to it") in explained
