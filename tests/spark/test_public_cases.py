"""Situations of the public test suites of other stream processors, in our words: those that no other test here has.

What they expect is written out by hand. Where ours differs by design, docs/coming-from says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


@dataclass
class Seen:
    n: int = 0


class Told(hs.Process):
    """Does what its events say: `set:name@second`, `system:name@second`, `cancel:name`."""

    state = Seen
    returns = "k STRING, what STRING"

    def on_event(self, key: str, event: Any, state: Seen, timers: Any) -> Any:
        state.n += 1
        for order in event.orders.split():
            verb, _, rest = order.partition(":")
            name, _, second = rest.partition("@")
            if verb == "cancel":
                timers.cancel(name)
            else:
                timers.set(name, at(float(second)), clock="system" if verb == "system" else "event")

    def on_timer(self, key: str, timer: Any, state: Seen, timers: Any) -> Any:
        yield {"k": key, "what": f"{key}.{timer.name}@{(timer.time - BEGIN).total_seconds():g}"}
        if timer.name == "killer":
            timers.cancel("victim")
        if timer.name == "mover":
            timers.set("victim", timer.time + timedelta(seconds=100))
        if timer.name == "swap" and timer.clock == "event":
            timers.set("swap", at(500), clock="system")


TIMERS = {
    # case: what the events of the first tick order, in their order; what has fired by second 50, by 200, and by 500
    "moved": (["set:x@10", "set:x@60"], [], ["moved.x@60"], []),
    "earlier": (["set:x@60", "set:x@10"], ["earlier.x@10"], [], []),
    "again": (["set:x@10 cancel:x set:x@12"], ["again.x@12"], [], []),
    "never": (["set:x@10", "cancel:x"], [], [], []),
    "names": (["set:z@10 set:y@10"], ["names.y@10", "names.z@10"], [], []),
    "killed": (["set:killer@10 set:victim@10"], ["killed.killer@10"], [], []),
    "too_late": (["set:killer@11 set:victim@10"], ["too_late.victim@10", "too_late.killer@11"], [], []),
    "pushed": (["set:mover@10 set:victim@11"], ["pushed.mover@10"], ["pushed.victim@110"], []),
    "swapped": (["set:swap@10"], ["swapped.swap@10"], [], ["swapped.swap@500"]),
    "one_name": (["set:x@10 system:x@300"], [], [], ["one_name.x@300"]),
    "past": (["set:x@-60"], ["past.x@-60"], [], []),
}


def test_timers_that_move_cancel_and_overtake_each_other(spark: SparkSession) -> None:
    """Each case is a key of its own; all run at once."""
    storm = hs.Topology("timers")
    events = storm.spout("events", hs.Log("x"), schema="k STRING, orders STRING, at TIMESTAMP", event_time="at")
    events.process("told", by="k", using=Told).sink("out", hs.Console())
    with Driver(storm, spark, tasks=(0,), now=BEGIN) as driver:
        driver.feed(
            "events",
            [
                {"k": key, "orders": orders, "at": at(number).isoformat()}
                for key, (given, *_) in TIMERS.items()
                for number, orders in enumerate(given)
            ],
        )
        driver.advance()
        seen = 0
        for place, second in ((1, 50), (2, 200), (3, 500)):
            driver.feed("events", [{"k": "clock", "orders": "", "at": at(min(second, 200)).isoformat()}])
            driver.advance_to(at(second) if second == 500 else BEGIN)
            fired = [row["what"] for row in driver.rows("told")]
            new, seen = fired[seen:], len(fired)
            for key, case in TIMERS.items():
                assert [what for what in new if what.startswith(f"{key}.")] == case[place], (key, second)
        assert driver.errors() == []
        assert {row["k"] for row in driver.table("told")} == {*TIMERS, "clock"}


VERSIONS = [  # a changelog in which an update is a removal and a row at one time
    ("+", "euro", 114, 1),
    ("+", "dollar", 102, 2),
    ("+", "yuan", 702, 4),
    ("-", "euro", 114, 60),
    ("+", "euro", 118, 60),
    ("-", "dollar", 102, 120),
    ("+", "dollar", 106, 120),
    ("-", "yuan", 702, 120),
]
ORDERS: list[tuple[int, str | None, int, int | None]] = [  # id, currency, second, rate
    (1, "euro", 30, 114),
    (2, "dollar", 119, 102),
    (3, "yuan", 119, 702),
    (4, "euro", 61, 118),
    (5, "yuan", 130, None),
    (6, "euro", 60, 118),
    (7, "euro", 0, None),
    (8, None, 30, None),
    (9, "yuan", 120, None),
    (10, "dollar", 120, 106),
]


@pytest.mark.parametrize(("tasks", "first"), [(0, "versions"), (1, "orders")], ids=["resident", "prepared"])
def test_look_ups_of_a_changelog_give_the_rate_of_the_moment(spark: SparkSession, tasks: int, first: str) -> None:
    storm = hs.Topology("rates")
    orders = storm.spout(
        "orders", hs.Log("x"), schema="id INT, currency STRING, at TIMESTAMP", event_time="at", lateness="1 hour"
    )
    rates = storm.table(
        "rates",
        hs.Log("x"),
        schema="currency STRING, rate INT, op STRING, at TIMESTAMP",
        key="currency",
        deletes="op = '-'",
        event_time="at",
        lateness="10 seconds",
    )
    priced = orders.lookup("priced", rates, on="currency", as_of="event time")
    twice = priced.lookup("twice", rates, on="currency", as_of="event time", how="inner", suffix="_2")
    twice.window("1 minute", emit="final", late="side").fold("per_minute", n=hs.count())
    fed = {
        "versions": [
            ("rates", {"currency": name, "rate": rate, "op": op, "at": at(second).isoformat()})
            for op, name, rate, second in VERSIONS
        ],
        "orders": [
            ("orders", {"id": number, "currency": name, "at": at(second).isoformat()})
            for number, name, second, _ in ORDERS
        ],
    }
    rest = "orders" if first == "versions" else "versions"
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        for number, (spout, row) in enumerate([*fed[first], *fed[rest]]):
            driver.feed(spout, [row])
            if number % 5 == 4:
                driver.advance()
        driver.complete()
        assert sorted((row["id"], row["rate"]) for row in driver.rows("priced")) == [
            (number, rate) for number, _, _, rate in ORDERS
        ]
        assert sorted((row["id"], row["rate"], row["rate_2"]) for row in driver.rows("twice")) == [
            (number, rate, rate) for number, _, _, rate in ORDERS if rate is not None
        ]
        # What a look-up has held back is late for nothing below.
        assert sorted((row["window_start"], row["n"]) for row in driver.table("per_minute")) == [
            (at(0), 1),
            (at(60), 4),
            (at(120), 1),
        ]


ZONES = {
    # Midnight of 15 October 2017 was never shown in Sao Paulo: the day began at one o'clock.
    "America/Sao_Paulo": [("2017-10-14T03:00", "2017-10-15T03:00"), ("2017-10-15T03:00", "2017-10-16T02:00")],
    # Samoa left 30 December 2011 out.
    "Pacific/Apia": [("2011-12-29T10:00", "2011-12-30T10:00"), ("2011-12-30T10:00", "2011-12-31T10:00")],
    # Half an hour of summer time.
    "Australia/Lord_Howe": [("2021-10-02T13:30", "2021-10-03T13:00"), ("2021-10-03T13:00", "2021-10-04T13:00")],
}


def test_days_of_zones_whose_clocks_jump_at_midnight_by_a_day_or_by_half_an_hour(spark: SparkSession) -> None:
    storm = hs.Topology("days")
    for number, zone in enumerate(ZONES):
        rows = storm.spout(f"rows{number}", hs.Log("x"), schema="at TIMESTAMP", event_time="at")
        rows.window("1 day", zone=zone, emit="final").fold(f"days{number}", n=hs.count())
    with Driver(storm, spark) as driver:
        for number, days in enumerate(ZONES.values()):
            # The first and the last moment of each day.
            last = [f"{datetime.fromisoformat(end) - timedelta(seconds=1)}Z" for _, end in days]
            driver.feed(f"rows{number}", [{"at": f"{start}:00Z"} for start, _ in days] + [{"at": end} for end in last])
        driver.complete()
        for number, days in enumerate(ZONES.values()):
            found = [
                (f"{row['window_start']:%Y-%m-%dT%H:%M}", f"{row['window_end']:%Y-%m-%dT%H:%M}", row["n"])
                for row in driver.rows(f"days{number}")
            ]
            assert sorted(found) == [(*day, 2) for day in days]


FOR_EVER = "99999999999 days"
LAST = "9999-12-31T23:59:59.999999Z"


def test_what_waits_for_a_time_after_the_end_of_time_comes_at_the_end_of_input(spark: SparkSession) -> None:
    """A join without a bound, as others have it, is one whose bound is longer than all of time."""
    storm = hs.Topology("for_ever")
    schema = "k STRING, v INT, at TIMESTAMP"
    left = storm.spout("left", hs.Log("x"), schema=schema, event_time="at", max_ahead=FOR_EVER)
    right = storm.table("right", hs.Log("x"), schema=schema, key="k", event_time="at", max_ahead=FOR_EVER)
    changes = right.sql("changes", "SELECT k, v, at FROM right")
    pairs = left.join("pairs", changes, on="k", within=FOR_EVER, how="full")
    pairs.window("10 seconds", emit="final", late="side", keep=FOR_EVER).fold("tens", n=hs.count())
    left.lookup("known", right, on="k", as_of="event time").sink("out", hs.Console())
    with Driver(storm, spark, tasks=(0,)) as driver:
        for spout, key, time in [
            ("left", "a", at(0).isoformat()),
            ("left", "b", at(5).isoformat()),
            ("right", "a", at(11).isoformat()),
            ("right", "c", at(12).isoformat()),
        ]:
            driver.feed(spout, [{"k": key, "v": 1, "at": time}])
        driver.advance()
        assert [row["k"] for row in driver.rows("pairs")] == ["a"]
        driver.feed("left", [{"k": "c", "v": 1, "at": LAST}])
        driver.complete()
        found = [(row["k"], row["v"], row["v_right"]) for row in driver.rows("pairs")]
        assert sorted(found, key=repr) == [("a", 1, 1), ("b", 1, None), ("c", 1, 1)]
        known = sorted((row["k"], row["v_right"]) for row in driver.rows("known"))
        assert known == [("a", None), ("b", None), ("c", 1)]
        assert sorted((row["window_start"], row["n"]) for row in driver.table("tens")) == [(at(0), 1), (at(10), 1)]
        assert [letter["step"] for letter in driver.errors()] == ["tens"], "the last window ends after the last moment"
        assert driver.ledger.head.late == 0
