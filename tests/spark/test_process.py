"""Processes: state, timers, outputs and bad rows, in both ways to run, against what plain Python makes of the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
WAYS = pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])


def at(minute: float) -> datetime:
    return BEGIN + timedelta(minutes=minute)


def row(card: str | None, minute: float, amount: int = 1) -> dict[str, Any]:
    return {"card": card, "at": at(minute).isoformat(), "amount": amount}


@dataclass
class Seen:
    n: int = 0
    total: float = 0.0
    last: datetime | None = None
    amounts: list[int] = field(default_factory=list)
    by_amount: dict[str, int] = field(default_factory=dict)


class Watch(hs.Process):
    """Counts, and tells when a card was silent for ten minutes."""

    state = Seen
    returns = "card STRING, n BIGINT, at TIMESTAMP"
    outputs: ClassVar = {"silent": "card STRING, since TIMESTAMP, amounts ARRAY<BIGINT>"}

    def on_event(self, key: str, event: Any, state: Seen, timers: Any) -> Any:
        if event.amount < 0:
            state.n = 1_000_000  # all of this is undone
            state.amounts.append(-1)
            timers.cancel("silence")
            raise ValueError("negative")
        state.n += 1
        state.total += event.amount
        state.last = event.at
        state.amounts.append(event.amount)
        state.by_amount[str(event.amount)] = state.by_amount.get(str(event.amount), 0) + 1
        timers.set("silence", event._time + timedelta(minutes=10))
        yield {"card": key, "n": state.n, "at": event.at}

    def on_timer(self, key: str, timer: Any, state: Seen, timers: Any) -> Any:
        yield "silent", {"card": key, "since": state.last, "amounts": state.amounts}
        state.n, state.total, state.last = 0, 0.0, None
        state.amounts.clear()
        state.by_amount.clear()


def watching(using: type[hs.Process] = Watch) -> tuple[hs.Topology, hs.Stream]:
    storm = hs.Topology("cards")
    swipes = storm.spout(
        "swipes", hs.Log("x"), schema="card STRING, at TIMESTAMP, amount BIGINT", event_time="at", lateness="2 minutes"
    )
    return storm, swipes.process("watch", by="card", using=using)


@WAYS
def test_state_timers_and_outputs_over_several_ticks(spark: SparkSession, tasks: int) -> None:
    storm, watch = watching()
    watch.output("silent")
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("swipes", [row("a", 1, 5), row("b", 0.5), row("a", 0, 7), row(None, 1), row("a", 1.5, -1)])
        driver.advance()
        # In the order of time, whatever that of arrival; a row that fails leaves no trace.
        assert sorted((r["card"], r["n"], r["at"]) for r in driver.rows("watch")) == [
            ("a", 1, at(0)),
            ("a", 2, at(1)),
            ("b", 1, at(0.5)),
        ]
        assert driver.table("watch") == [
            {"card": "a", "n": 2, "total": 12.0, "last": at(1), "amounts": [7, 5], "by_amount": [("7", 1), ("5", 1)]},
            {"card": "b", "n": 1, "total": 1.0, "last": at(0.5), "amounts": [1], "by_amount": [("1", 1)]},
        ]
        assert sorted(letter["reason"].partition(" (")[0] for letter in driver.errors()) == [
            "ValueError: negative",
            "the key is null",
        ]
        # The watermark comes to 9:00 and then 10:45: b is silent, a was seen again in between.
        driver.feed("swipes", [row("a", 9, 1), row("c", 12.75, 1)])
        driver.advance()
        assert [(r["card"], r["since"], r["amounts"]) for r in driver.rows("watch.silent")] == [("b", at(0.5), [1])]
        assert [(r["card"], r["n"]) for r in driver.table("watch")] == [("a", 3), ("c", 1)]
        driver.complete()
        assert sorted((r["card"], r["amounts"]) for r in driver.rows("watch.silent")) == [
            ("a", [7, 5, 1]),
            ("b", [1]),
            ("c", [1]),
        ]
        # All states are as they began and no timer is set: nothing is kept.
        assert driver.table("watch") == []


class Hourly(hs.Process):
    """System timers: an hour after its first event a key tells how many there were."""

    @dataclass
    class Count:
        n: int = 0

    state = Count
    returns = "card STRING, n BIGINT, told STRING"

    def on_event(self, key: str, event: Any, state: Any, timers: Any) -> Any:
        if not state.n:
            timers.set("hour", timers.now + timedelta(hours=1), clock="system")
            timers.set("late", timers.now - timedelta(hours=1), clock="system")
        state.n += 1

    def on_timer(self, key: str, timer: Any, state: Any, timers: Any) -> Any:
        yield {"card": key, "n": state.n, "told": f"{timer.name} {timer.time:%H:%M}"}
        if timer.name == "hour":
            state.n = 0


@WAYS
def test_system_timers_fire_when_system_time_has_passed_and_those_in_the_past_in_the_next_tick(
    spark: SparkSession, tasks: int
) -> None:
    storm, _ = watching(Hourly)
    with Driver(storm, spark, tasks=(tasks,), now=at(0)) as driver:
        driver.feed("swipes", [row("a", 0), row("b", 0), row("a", 1)])
        driver.advance()
        told = [("a", 2, "late 23:00"), ("b", 1, "late 23:00")]
        assert sorted((r["card"], r["n"], r["told"]) for r in driver.rows("watch")) == told
        driver.advance_to(at(59))
        assert len(driver.rows("watch")) == 2
        driver.feed("swipes", [row("b", 2)])
        driver.advance_to(at(60))
        # Timers come before the events of their tick: b's event begins a new hour.
        told += [("a", 2, "hour 01:00"), ("b", 1, "hour 01:00"), ("b", 1, "late 00:00")]
        assert sorted((r["card"], r["n"], r["told"]) for r in driver.rows("watch")) == sorted(told)
        assert driver.table("watch") == [{"card": "b", "n": 1}]


def test_a_timer_that_fails_is_a_dead_letter_with_its_key_and_does_not_fire_again(spark: SparkSession) -> None:
    class Fails(Watch):
        def on_timer(self, key: str, timer: Any, state: Seen, timers: Any) -> Any:
            state.n = 77
            raise KeyError(key)

    storm, _ = watching(Fails)
    with Driver(storm, spark) as driver:
        driver.feed("swipes", [row("a", 0), row("b", 30)])
        driver.advance()
        (letter,) = driver.errors()
        assert letter["reason"].startswith("timer 'silence': KeyError: 'a'")
        assert b'"card":"a"' in letter["raw"]
        assert [(r["card"], r["n"]) for r in driver.table("watch")] == [("a", 1), ("b", 1)]
        assert driver.retry() == (1, 1)
        assert len(driver.errors()) == 1


def test_refused_events_get_their_second_chance_after_a_fix(spark: SparkSession) -> None:
    class Forgiving(Watch):
        def on_event(self, key: str, event: Any, state: Seen, timers: Any) -> Any:
            state.n += 10 if event.amount < 0 else 1
            yield {"card": key, "n": state.n, "at": event.at}

    with Driver(watching()[0], spark) as driver:
        driver.feed("swipes", [row("a", 0), row("a", 1, -5), row("b", 1, -5), row(None, 1)])
        driver.advance()
        assert len(driver.errors()) == 3
        driver.restart(watching(Forgiving)[0])
        assert driver.retry() == (3, 1)  # a null key stays one
        assert [(r["card"], r["n"]) for r in driver.table("watch")] == [("a", 11), ("b", 10)]
        assert [letter["reason"] for letter in driver.errors()] == ["the key is null"]


def test_a_new_field_begins_with_its_default_and_a_removed_or_retyped_one_is_explained(spark: SparkSession) -> None:
    @dataclass
    class More(Seen):
        limit: int = 5

    class WithMore(Watch):
        state = More

    @dataclass
    class Other:
        n: str = ""

    class Retyped(Watch):
        state = Other

    with Driver(watching()[0], spark) as driver:
        driver.feed("swipes", [row("a", 0), row("b", 0)])
        driver.advance()
        driver.restart(watching(WithMore)[0])
        driver.feed("swipes", [row("a", 1)])
        driver.advance()
        assert [(r["card"], r["n"], r["limit"]) for r in driver.table("watch")][:1] == [("a", 2, 5)]
        with pytest.raises(hs.HailstormError, match="no longer has 'limit'"):
            driver.restart(watching()[0])
        with pytest.raises(hs.HailstormError, match="'n' was BIGINT, and is STRING"):
            driver.restart(watching(Retyped)[0])
        driver.restart(watching()[0], accept=("watch",))
        driver.feed("swipes", [row("a", 2)])
        driver.advance()
        assert [(r["card"], r["n"]) for r in driver.table("watch")] == [("a", 3), ("b", 1)]


def test_system_time_that_jumps_back_loses_no_timer_and_fires_none_twice(spark: SparkSession) -> None:
    storm, _ = watching(Hourly)
    with Driver(storm, spark, now=at(0)) as driver:
        driver.feed("swipes", [row("a", 0)])
        driver.advance()
        driver.feed("swipes", [row("b", 0)])
        driver.advance_to(at(30))
        driver.feed("swipes", [row("c", 0)])
        driver.advance_to(at(-60))  # time stays at what was handled, 00:30, until the clock is there again
        driver.advance_to(at(45))
        driver.advance_to(at(20))
        told = [r["told"] for r in driver.rows("watch")]
        assert told == ["late 23:00", "late 23:30", "late 23:30"]
        driver.advance_to(at(60))
        driver.advance_to(at(10))
        driver.advance_to(at(89))
        assert [r["told"] for r in driver.rows("watch")][3:] == ["hour 01:00"]
        driver.advance_to(at(90))
        told = sorted((r["card"], r["told"]) for r in driver.rows("watch")[4:])
        assert told == [("b", "hour 01:30"), ("c", "hour 01:30")]


class Many(hs.Process):
    """As many timers as an event says, in reverse order, each for a second of its own; half of them are cancelled."""

    @dataclass
    class Nothing:
        fired: int = 0

    state = Nothing
    returns = "name STRING, fired BIGINT"

    def on_event(self, key: str, event: Any, state: Any, timers: Any) -> None:
        for number in reversed(range(event.amount)):
            timers.set(f"t{number}", event._time + timedelta(milliseconds=number))
        for number in range(1, event.amount, 2):
            timers.cancel(f"t{number}")

    def on_timer(self, key: str, timer: Any, state: Any, timers: Any) -> Any:
        state.fired += 1
        yield {"name": timer.name, "fired": state.fired}


def test_thousands_of_timers_of_one_key_fire_in_order_once_each(spark: SparkSession) -> None:
    storm, _ = watching(Many)
    with Driver(storm, spark) as driver:
        driver.feed("swipes", [row("a", 0, 4_000), row("a", 20, 0)])
        driver.advance()
        fired = [(r["fired"], r["name"]) for r in driver.rows("watch")]
        assert fired == [(place + 1, f"t{2 * place}") for place in range(2_000)]
