"""Windowed folds against plain Python: any cut into ticks, late rows, every way to run."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

MINUTE = 60
START = datetime(2026, 1, 1, tzinfo=UTC)
Row = tuple[str, int, int]  # key, value, second
Window = tuple[str, int, int]  # key, start, end


def counting(lateness: int, **window: Any) -> hs.Topology:
    storm = hs.Topology("windows")
    clicks = storm.spout(
        "clicks",
        hs.Log("clicks"),
        schema="u STRING, n INT, at TIMESTAMP",
        event_time="at",
        lateness=f"{lateness} seconds",
    )
    table = clicks.window(**window).fold("per", by="u", n=hs.count(), s=hs.sum("n"))
    assert table.late.name == "per.late"
    return storm


def as_json(rows: list[Row]) -> list[dict[str, object]]:
    return [{"u": u, "n": n, "at": (START + timedelta(seconds=at)).isoformat()} for u, n, at in rows]


def seconds(time: datetime) -> int:
    return round((time - START).total_seconds())


class Oracle:
    """The rules of design section 8, row by row."""

    def __init__(self, size: int, every: int, lateness: int, emit: str, late: str, keep: int) -> None:
        self.size, self.every, self.lateness, self.emit, self.late, self.keep = size, every, lateness, emit, late, keep
        self.highest: int | None = None
        self.windows: dict[Window, tuple[int, int]] = {}
        self.refused: Counter[Row] = Counter()

    def tick(self, rows: list[Row]) -> None:
        watermark = None if self.highest is None else self.highest - self.lateness
        for row in rows:
            u, n, at = row
            missed = False
            first = at // self.every * self.every
            for start in range(first, at - self.size, -self.every):
                end = start + self.size
                accepts = self.keep if self.late == "correct" else 0
                if watermark is not None and end + accepts <= watermark:
                    missed = True
                    continue
                count, total = self.windows.get((u, start, end), (0, 0))
                self.windows[(u, start, end)] = (count + 1, total + n)
            if missed:
                self.refused[row] += 1
        self.highest = max([*([] if self.highest is None else [self.highest]), *(at for _, _, at in rows)])

    def shown(self) -> dict[Window, tuple[int, int]]:
        """What those who read the table have by now."""
        assert self.highest is not None
        watermark = self.highest - self.lateness
        ended = {window: value for window, value in self.windows.items() if window[2] <= watermark}
        return self.windows if self.emit == "updates" else ended

    def open(self) -> dict[Window, tuple[int, int]]:
        assert self.highest is not None
        watermark = self.highest - self.lateness
        return {window: value for window, value in self.windows.items() if window[2] > watermark}

    def kept(self) -> dict[Window, tuple[int, int]]:
        assert self.highest is not None
        watermark = self.highest - self.lateness
        return {window: value for window, value in self.shown().items() if window[2] + self.keep > watermark}


def open_windows(driver: Driver) -> dict[Window, tuple[int, int]]:
    """What `state --open` shows."""
    rows = hs.open_ledger(driver.ledger.root).state("per", open=True).arrow().to_pylist()
    return {(row["u"], seconds(row["window_start"]), seconds(row["window_end"])): (row["n"], row["s"]) for row in rows}


def followed(changes: list[dict[str, Any]]) -> dict[Window, tuple[int, int]]:
    """What a sink has after these changes. Inserts of what is there, and updates of what is not, are mistakes."""
    held: dict[Window, tuple[int, int]] = {}
    for change in changes:
        window = (change["u"], seconds(change["window_start"]), seconds(change["window_end"]))
        assert (window in held) == (change["_kind"] != "insert"), change
        held[window] = (change["n"], change["s"])
    return held


@pytest.mark.parametrize("tasks", [0, 2], ids=["resident", "planned"])
@pytest.mark.parametrize(
    ("seed", "size", "every", "emit", "late", "keep"),
    [
        (1, 60, 60, "updates", "correct", 86_400),
        (2, 60, 60, "final", "correct", 120),
        (3, 60, 60, "final", "side", 0),
        (4, 90, 30, "final", "correct", 100),
        (5, 60, 20, "updates", "drop", 60),
        (6, 30, 60, "final", "side", 1_000),
        (7, 40, 15, "final", "correct", 50),
        (8, 90, 30, "final", "side", 0),
        (9, 60, 7, "final", "drop", 60),
    ],
)
def test_windows_are_what_the_rows_make_of_them(
    spark: SparkSession, tasks: int, seed: int, size: int, every: int, emit: str, late: str, keep: int
) -> None:
    chance = random.Random(seed)
    oracle = Oracle(size, every, 10, emit, late, keep)
    window = {"size": f"{size} seconds", "every": f"{every} seconds", "emit": emit, "late": late}
    with Driver(counting(10, keep=f"{keep} seconds", **window), spark, tasks=(tasks,)) as driver:
        now = 0
        for _ in range(6):
            now += chance.choice([5, 40, 90])
            rows = [
                (chance.choice("abc"), chance.randint(1, 9), max(0, now - chance.choice([0, 3, 9, 30, 200])))
                for _ in range(chance.randint(1, 6))
            ]
            driver.feed("clicks", as_json(rows))
            driver.advance()
            oracle.tick(rows)
        assert followed(driver.rows("per")) == oracle.shown()
        table = {
            (row["u"], seconds(row["window_start"]), seconds(row["window_end"])): (row["n"], row["s"])
            for row in driver.table("per")
        }
        assert table == oracle.kept()
        assert open_windows(driver) == oracle.open()
        late_rows = Counter((row["u"], row["n"], seconds(row["at"])) for row in driver.rows("per.late"))
        assert late_rows == (Counter() if late == "drop" else oracle.refused)
        assert driver.ledger.head.late == oracle.refused.total()
        driver.complete()
        assert followed(driver.rows("per")) == oracle.windows, "at the end of input every window closes"


def test_windows_of_final_windows_get_nothing_late(spark: SparkSession) -> None:
    storm = hs.Topology("cascade")
    clicks = storm.spout("clicks", hs.Log("x"), schema="u STRING, n INT, at TIMESTAMP", event_time="at")
    minutes = clicks.window("1 minute", emit="final", late="side").fold("minutes", by="u", n=hs.count())
    hours = (
        minutes.sql("counted", "SELECT u, n FROM minutes")
        .window("5 minutes", emit="final", late="side")
        .fold("fives", by="u", n=hs.sum("n"))
    )
    assert hours.late.name == "fives.late"
    with Driver(storm, spark) as driver:
        for at in range(0, 1_200, 17):
            driver.feed("clicks", as_json([("a", 1, at)]))
            if at % 3 == 0:
                driver.advance()
        driver.complete()
        assert driver.ledger.head.late == 0
        counts = {seconds(row["window_start"]): row["n"] for row in driver.table("fives")}
        assert counts == Counter(at // 300 * 300 for at in range(0, 1_200, 17))


def test_what_the_first_tick_lets_end_is_late_for_nothing_below(spark: SparkSession) -> None:
    storm = hs.Topology("cascade")
    clicks = storm.spout("clicks", hs.Log("x"), schema="u STRING, n INT, at TIMESTAMP", event_time="at")
    minutes = clicks.window("1 minute", emit="final", late="side").fold("minutes", by="u", n=hs.count())
    counted = minutes.sql("counted", "SELECT u, n FROM minutes")
    counted.window("5 minutes", late="side").fold("fives", by="u", n=hs.sum("n"))
    with Driver(storm, spark) as driver:
        driver.feed("clicks", as_json([("a", 1, at) for at in range(0, 1_200, 17)]))
        driver.advance()
        driver.complete()
        assert driver.ledger.head.late == 0
        counts = {seconds(row["window_start"]): row["n"] for row in driver.table("fives")}
        assert counts == Counter(at // 300 * 300 for at in range(0, 1_200, 17))


def test_a_day_in_a_zone_has_23_24_or_25_hours(spark: SparkSession) -> None:
    storm = hs.Topology("days")
    clicks = storm.spout("clicks", hs.Log("x"), schema="at TIMESTAMP", event_time="at")
    clicks.window("1 day", zone="Europe/Berlin", keep="1000 days").fold("days", n=hs.count())
    with Driver(storm, spark) as driver:
        times = ["2026-03-28T22:59:59Z", "2026-03-28T23:00:00Z", "2026-03-29T21:59:59Z", "2026-03-29T22:00:00Z"]
        driver.feed("clicks", [{"at": at} for at in (*times, "2026-10-25T12:00:00Z")])
        driver.advance()
        found = [(row["window_end"] - row["window_start"], row["n"]) for row in driver.table("days")]
        hours = [(length // timedelta(hours=1), n) for length, n in sorted(found)]
        assert hours == [(23, 2), (24, 1), (24, 1), (25, 1)]


@pytest.mark.parametrize("tasks", [0, 2], ids=["resident", "planned"])
def test_a_row_of_a_table_that_changes_leaves_its_old_window(spark: SparkSession, tasks: int) -> None:
    storm = hs.Topology("moving")
    clicks = storm.spout("clicks", hs.Log("x"), schema="u STRING, n INT, at TIMESTAMP", event_time="at")
    last = clicks.fold("last", by="u", n=hs.latest("n"))
    last.window("1 minute", keep="100 days").fold("sums", n=hs.count(), s=hs.sum("n"))
    last.window("1 minute", keep="100 days", emit="final").fold("best", best=hs.max("n"))
    chance = random.Random(3)
    rows: list[Row] = [(chance.choice("abcd"), chance.randint(1, 9), at) for at in range(0, 300, 11)]
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        given = list(rows)
        while given:
            cut = chance.randint(1, 6)
            driver.feed("clicks", as_json(given[:cut]))
            driver.advance()
            given = given[cut:]
        driver.complete()
        newest = {u: (n, at) for u, n, at in rows}
        expected: dict[int, list[int]] = {}
        for n, at in newest.values():
            expected.setdefault(at // 60 * 60, []).append(n)
        sums = {seconds(row["window_start"]): (row["n"], row["s"]) for row in driver.table("sums")}
        assert sums == {start: (len(found), sum(found)) for start, found in expected.items()}
        best = {seconds(row["window_start"]): row["best"] for row in driver.table("best")}
        assert best == {start: max(found) for start, found in expected.items()}


@pytest.mark.parametrize("tasks", [0, 1, 2])
def test_a_row_with_a_null_key_is_one_dead_letter_however_many_windows_it_is_in(
    spark: SparkSession, tasks: int
) -> None:
    storm = hs.Topology("nulls", error_limit=1)
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, at TIMESTAMP", event_time="at")
    rows.window("1 minute", every="10 seconds").fold("sliding", by="k", n=hs.count())
    rows.window("1 second", every="1 hour").fold("apart", by="k", n=hs.count())
    rows.session("1 minute").fold("sessions", by="k", n=hs.count())
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("rows", [{"k": None, "at": "2026-01-01T00:30:00Z"}, {"k": "a", "at": "2026-01-01T00:30:00Z"}])
        driver.advance()
        assert Counter(letter["step"] for letter in driver.errors()) == {"sliding": 1, "apart": 1, "sessions": 1}
        assert [len(driver.table(name)) for name in ("sliding", "apart", "sessions")] == [6, 0, 1]


class Longest(hs.Monoid):
    state = "STRING"

    def zero(self) -> str:
        return ""

    def lift(self, text: str) -> str:
        return text

    def merge(self, a: str, b: str) -> str:
        return max(a, b, key=lambda text: (len(text), text))


@pytest.mark.parametrize("tasks", [0, 2], ids=["resident", "planned"])
def test_sliding_windows_that_share_panes_and_those_that_cannot_hold_the_same_rows(
    spark: SparkSession, tasks: int
) -> None:
    storm = hs.Topology("sliding")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, d DOUBLE, at TIMESTAMP", event_time="at")
    days = {"every": "1 day", "zone": "Europe/Berlin", "emit": "final", "keep": "1000 days"}
    rows.window("2 days", **days).fold("shared", by="k", n=hs.count(), low=hs.min("k"), mean=hs.mean("length(k)"))
    rows.window("2 days", **days).fold("own", by="k", n=hs.count(), long=Longest("k"), ks=hs.set("k"))
    rows.window("2 days", **days).fold("nobody", n=hs.count())
    rows.window("2 days", **days).fold("decimal", by="d", n=hs.count())  # a key that only Spark hashes
    hours = {**days, "every": "1 hour"}  # where clocks skip an hour, two windows end at once
    rows.window("2 hours", **hours).fold("shared_hours", by="k", n=hs.count())
    rows.window("2 hours", **hours).fold("own_hours", by="k", n=hs.count(), long=Longest("k"))
    zone, chance = ZoneInfo("Europe/Berlin"), random.Random(5)
    start = datetime(2026, 3, 27, tzinfo=UTC)
    times = [start + timedelta(hours=hour, minutes=59) for hour in range(72)]
    times += [datetime(2026, 10, 24, tzinfo=UTC) + timedelta(hours=hour) for hour in range(60)]
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        expected: Counter[tuple[str, datetime]] = Counter()
        for number, at in enumerate(times):
            k = chance.choice(["a", "bb"])
            driver.feed("rows", [{"k": k, "d": float(len(k)), "at": at.isoformat()}])
            midnight = at.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0)
            for back in (0, 1):
                expected[(k, midnight - timedelta(days=back))] += 1
            if number % 20 == 19:
                driver.advance()
        driver.complete()

        def found(step: str, key: str) -> dict[tuple[Any, datetime], int]:
            return {(row[key], row["window_start"].astimezone(zone)): row["n"] for row in driver.table(step)}

        assert found("shared", "k") == found("own", "k") == expected
        assert {row["mean"] == len(row["k"]) and row["low"] == row["k"] for row in driver.table("shared")} == {True}
        assert {row["long"] == row["k"] and row["ks"] == [row["k"]] for row in driver.table("own")} == {True}
        assert found("decimal", "d") == {(float(len(k)), day): n for (k, day), n in expected.items()}
        assert sum(row["n"] for row in driver.table("nobody")) == 2 * len(times)
        windows = [
            [(row["k"], row["window_start"], row["window_end"], row["n"]) for row in driver.table(step)]
            for step in ("shared_hours", "own_hours")
        ]
        assert windows[0] == windows[1]
        assert sum(n for _, _, _, n in windows[0]) == 2 * len(times)
        lengths = {row["window_end"] - row["window_start"] for row in driver.table("shared")}
        assert lengths == {timedelta(hours=hours) for hours in (47, 48, 49)}


def test_a_window_outside_the_years_1_to_9999_makes_its_row_a_dead_letter(spark: SparkSession) -> None:
    storm = hs.Topology("ages", error_limit=1)
    rows = storm.spout("rows", hs.Log("x"), schema="at TIMESTAMP", event_time="at", lateness="1 hour")
    rows.window("2 days", every="1 day").fold("days", n=hs.count())
    rows.window("2 days", every="1 day", emit="final").fold("shared", n=hs.count())
    rows.window("1 day", zone="Asia/Tokyo").fold("zoned", n=hs.count())
    rows.session("1 hour").fold("sessions", n=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"at": at} for at in ("0001-01-01T01:10:00Z", "2026-01-05T00:00:00Z")])
        driver.advance()
        letters = Counter((letter["step"], letter["reason"]) for letter in driver.errors())
        outside = "its window is not within the years 1 to 9999"
        assert letters == {(step, outside): 1 for step in ("days", "shared", "zoned")}
        driver.complete()
        assert [len(driver.table(step)) for step in ("days", "shared", "zoned", "sessions")] == [2, 2, 1, 1]


@pytest.mark.filterwarnings("ignore:every row of 'rows' is in 1,440 windows")
@pytest.mark.parametrize("tasks", [1, 2])
def test_a_day_that_is_shown_every_minute(spark: SparkSession, tasks: int) -> None:
    storm = hs.Topology("minutes")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, at TIMESTAMP", event_time="at")
    rows.window("1 day", every="1 minute", emit="final").fold("daily", by="k", n=hs.count()).sink("out", hs.Console())
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        times = [begin + timedelta(minutes=minute) for minute in (0, 0, 90)]
        driver.feed("rows", [{"k": "a", "at": time.isoformat()} for time in times])
        driver.complete()
        shown = {row["window_end"]: row["n"] for row in driver.rows("out")}
        ends = [begin + timedelta(minutes=minute) for minute in range(1, 1440 + 91)]
        assert shown == {end: sum(end - timedelta(days=1) <= time < end for time in times) for end in ends}
