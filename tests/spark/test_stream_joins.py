"""Joins of streams, all six kinds, against a join on paper that knows the watermark with which each row came."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.ledger.compaction import compact
from hailstorm.testing import Driver
from tests.length import only_long
from tests.spark.test_tables import alternating

Row = dict[str, Any]
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
KINDS = ("inner", "left", "right", "full", "semi", "anti")
BOUNDS = (20, 50)  # seconds that a click may be before its view, and after it
SECOND = 1_000_000


def at(second: float) -> datetime:
    return BEGIN + timedelta(seconds=second)


def joins(bounds: tuple[int, int] = BOUNDS) -> hs.Topology:
    storm = hs.Topology("joins")
    views = storm.spout(
        "views", hs.Log("x"), schema="user STRING, ad INT, n INT, at TIMESTAMP", event_time="at", lateness="30 seconds"
    )
    clicks = storm.spout(
        "clicks", hs.Log("x"), schema="who STRING, ad BIGINT, n INT, at TIMESTAMP", event_time="at", lateness="30 s"
    )
    before, after = (f"{bound} seconds" for bound in bounds)
    for how in KINDS:
        joined = views.join(how, clicks, on={"user": "who", "ad": "ad"}, within=(before, after), how=how)
        joined.sink(f"to-{how}", hs.Console())
        joined.late.sink(f"late-{how}", hs.Console())
    return storm


@dataclass
class Paper:
    """A join of two lists, row by row, with what is open by the watermark."""

    before: int
    after: int
    rows: dict[str, list[Row]] = field(default_factory=lambda: {"views": [], "clicks": []})
    late: Counter[Any] = field(default_factory=Counter)
    pairs: list[tuple[Row, Row]] = field(default_factory=list)

    def tick(self, views: list[Row], clicks: list[Row], watermark: int | None) -> None:
        new = {"views": views, "clicks": clicks}
        for side, rows in new.items():
            for row in rows:
                row["late"] = watermark is not None and max(self.bound(side, row), micros(row)) < watermark
                row["released"] = max(self.bound(side, row), self.bound(side, row) if watermark is None else watermark)
                if row["late"]:
                    self.late[(side, row["n"])] += 1
        fresh = {side: [row for row in rows if not row["late"]] for side, rows in new.items()}
        opened = {
            side: [row for row in rows if not row["late"] and (watermark is None or self.bound(side, row) >= watermark)]
            for side, rows in self.rows.items()
        }
        self.pairs += [(v, c) for v in fresh["views"] for c in fresh["clicks"] + opened["clicks"] if self.match(v, c)]
        self.pairs += [(v, c) for v in opened["views"] for c in fresh["clicks"] if self.match(v, c)]
        for side, rows in new.items():
            self.rows[side] += rows

    def expected(self, how: str, watermark: int) -> Counter[Any]:
        """Pairs, and rows without a match whose bound has passed: (n of the view, n of the click)."""
        out: Counter[Any] = Counter()
        met = {"views": {v["n"] for v, _ in self.pairs}, "clicks": {c["n"] for _, c in self.pairs}}
        alone = {
            side: [
                row["n"]
                for row in rows
                if not row["late"] and row["n"] not in met[side] and row["released"] < watermark
            ]
            for side, rows in self.rows.items()
        }
        if how in ("inner", "left", "right", "full"):
            out.update((v["n"], c["n"]) for v, c in self.pairs)
        if how == "semi":
            out.update((n, None) for n in met["views"])
        if how in ("left", "full", "anti"):
            out.update((n, None) for n in alone["views"])
        if how in ("right", "full"):
            out.update((None, n) for n in alone["clicks"])
        return out

    def bound(self, side: str, row: Row) -> int:
        return micros(row) + (self.after if side == "views" else self.before) * SECOND

    def match(self, view: Row, click: Row) -> bool:
        if None in (view["user"], view["ad"]) or (view["user"], view["ad"]) != (click["who"], click["ad"]):
            return False
        return -self.before * SECOND <= micros(click) - micros(view) <= self.after * SECOND


def micros(row: Row) -> int:
    return int(row["time"].timestamp()) * SECOND


def draw(chance: random.Random, side: str, number: int, now: int) -> Row:
    # Most within the lateness, some far behind it; times meet at whole seconds, so that bounds are met exactly.
    second = now + chance.choice([0, 0, -5, -10, -30, -29, -60, -90, -150, 10])
    who = chance.choice(["a", "a", "a", "b", None])
    ad = chance.choice([1, 1, 2, None])
    return {"user" if side == "views" else "who": who, "ad": ad, "n": number, "time": at(second)}


def fed(row: Row) -> Row:
    return {
        **{name: value for name, value in row.items() if name not in ("time", "late", "released")},
        "at": row["time"].isoformat(),
    }


@pytest.mark.parametrize(
    ("tasks", "seed", "bounds"),
    [
        ((1,), 1, BOUNDS),
        only_long((1,), 2, BOUNDS),
        only_long((2,), 3, BOUNDS),
        ((1, 2), 4, BOUNDS),
        ((1,), 5, (-5, 40)),
        ((1, 2), 6, (60, -10)),
    ],
)
def test_every_kind_of_join_is_what_it_is_on_paper(
    spark: SparkSession, tasks: tuple[int, ...], seed: int, bounds: tuple[int, int]
) -> None:
    chance, paper, number, now = random.Random(seed), Paper(*bounds), 0, 100
    with alternating(Driver(joins(bounds), spark, tasks=tasks)) as driver:
        for tick in range(8):
            watermark = driver.ledger.head.watermarks.get("inner", (None, None))[0]
            new: dict[str, list[Row]] = {"views": [], "clicks": []}
            for _ in range(chance.choice([2, 8, 14])):
                side, number = chance.choice(["views", "clicks"]), number + 1
                row = draw(chance, side, number, now)
                new[side].append(row)
                driver.feed(side, [fed(row)], partition=chance.randrange(2))
            if tick == 4:
                driver.crash(at="before-commit")
            driver.advance()
            paper.tick(new["views"], new["clicks"], watermark)
            check(driver, paper, f"tick {tick}")
            now += chance.choice([0, 10, 40])
        driver.complete()
        check(driver, paper, "at the end")
        assert driver.ledger.head.late == sum(paper.late.values()) * len(KINDS) > 0


def check(driver: Driver, paper: Paper, place: str) -> None:
    for how in KINDS:
        watermark = driver.ledger.head.watermarks.get(how, (None, None))[0]
        found = Counter((row["n"], row.get("n_right")) for row in driver.rows(how))
        assert found == paper.expected(how, -(1 << 62) if watermark is None else watermark), f"{place}: {how}"
        late = Counter(
            ("views", row["n"]) if row["n"] is not None else ("clicks", row["n_right"])
            for row in driver.rows(f"{how}.late")
        )
        assert late == paper.late, f"{place}: late for {how}"


def test_a_row_without_a_match_has_the_columns_of_its_own_side(spark: SparkSession) -> None:
    with Driver(joins(), spark) as driver:
        driver.feed("views", [{"user": "a", "ad": 1, "n": 1, "at": at(0).isoformat()}])
        driver.feed("clicks", [{"who": "b", "ad": 2, "n": 2, "at": at(0).isoformat()}])
        driver.complete()
        full = sorted(driver.rows("full"), key=lambda row: row["user"])
        assert full == [
            {"user": "a", "ad": 1, "n": 1, "at": at(0), "n_right": None, "at_right": None},
            {"user": "b", "ad": 2, "n": None, "at": None, "n_right": 2, "at_right": at(0)},
        ]


@pytest.mark.parametrize("tasks", [(1,), (2,)])
def test_a_stream_joined_with_itself_pairs_each_row_with_itself_too(
    spark: SparkSession, tasks: tuple[int, ...]
) -> None:
    storm = hs.Topology("selves")
    views = storm.spout("views", hs.Log("x"), schema="user STRING, ad INT, n INT, at TIMESTAMP", event_time="at")
    narrow = views.select("narrow", user="user", n="n")
    narrow.join("self", narrow, on="user", within="20 seconds").sink("to-self", hs.Console())
    with Driver(storm, spark, tasks=tasks) as driver:
        for number, second in enumerate((0, 15, 30)):
            driver.feed("views", [{"user": "a", "ad": 1, "n": number, "at": at(second).isoformat()}])
            driver.advance()
        pairs = sorted((row["n"], row["n_right"]) for row in driver.rows("self"))
        assert pairs == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.parametrize(
    ("within", "how"),
    [
        (("60 seconds", "-10 seconds"), "left"),
        (("60 seconds", "-10 seconds"), "anti"),
        (("-1 second", "3 seconds"), "right"),
        (("-1 second", "3 seconds"), "full"),
    ],
)
def test_a_row_whose_negative_bound_has_passed_when_it_comes_is_not_lost(
    spark: SparkSession, within: tuple[str, str], how: str
) -> None:
    storm = hs.Topology("negative")
    words = {"schema": "k INT, at TIMESTAMP", "event_time": "at"}
    left = storm.spout("left", hs.Log("x"), **words)  # type: ignore[arg-type]
    right = storm.spout("right", hs.Log("x"), **words)  # type: ignore[arg-type]
    left.join("out", right, on="k", within=within, how=how).sink("to-out", hs.Console())
    with Driver(storm, spark) as driver:
        for tick in range(3):
            driver.feed("left", [{"k": 1, "at": at(tick * 0.5).isoformat()}])
            driver.feed("right", [{"k": 2, "at": at(tick * 0.5).isoformat()}])
            driver.advance()
        driver.complete()
        alone = {"left": [1], "anti": [1], "right": [2], "full": [1, 2]}[how]
        assert Counter(row["k"] for row in driver.rows("out")) == dict.fromkeys(alone, 3)
        assert driver.ledger.head.late == 0


@pytest.mark.parametrize("how", ["inner", "left", "semi"])
def test_a_pair_is_never_late_for_the_step_below(spark: SparkSession, how: str) -> None:
    storm = hs.Topology("below")
    words = {"schema": "k INT, at TIMESTAMP", "event_time": "at"}
    views = storm.spout("views", hs.Log("x"), **words)  # type: ignore[arg-type]
    clicks = storm.spout("clicks", hs.Log("x"), **words)  # type: ignore[arg-type]
    joined = views.join("pairs", clicks, on="k", within="10 minutes", how=how)
    joined.window("1 minute", late="side").fold("by_minute", by="k", n=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("clicks", [{"k": 1, "at": at(3 * 60).isoformat()}, {"k": 2, "at": at(10 * 60).isoformat()}])
        driver.feed("views", [{"k": 3, "at": at(10 * 60).isoformat()}])
        driver.advance()
        driver.feed("views", [{"k": 1, "at": at(2 * 60).isoformat()}])  # its bound is at 12 minutes
        driver.advance()
        minutes = {"inner": 3, "left": 3, "semi": 2}  # a semi join gives the view, at its own time
        found = [(row["k"], row["window_start"]) for row in driver.table("by_minute")]
        assert found == [(1, at(minutes[how] * 60))]
        assert driver.ledger.head.late == 0


def test_what_is_past_leaves_the_state(spark: SparkSession) -> None:
    storm = hs.Topology("past")
    words = {"schema": "k INT, at TIMESTAMP", "event_time": "at"}
    left = storm.spout("left", hs.Log("x"), **words)  # type: ignore[arg-type]
    right = storm.spout("right", hs.Log("x"), **words)  # type: ignore[arg-type]
    left.join("pairs", right, on="k", within="10 seconds", how="full").sink("out", hs.Console())
    with Driver(storm, spark) as driver:
        for hour in range(4):
            for side in ("left", "right"):
                rows = [{"k": n + 1000 * (side == "left"), "at": at(hour * 3600 + n).isoformat()} for n in range(50)]
                driver.feed(side, rows)
            driver.advance()
        head, ledger = driver.ledger.head, driver.ledger
        for table, key in head.steps["pairs"].tables.items():
            change = compact(
                ledger.store, ledger.cache, table, key, head.runs[table], ledger.stamp, everything=True,
                past=head.reached.get(table),
            )  # fmt: skip
            assert change is not None
            assert sum(run.rows for run in change.added) <= 50, table
