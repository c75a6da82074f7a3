"""Monoids of one's own that fail: a dead letter for each bad row, and nothing else lost."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.advance import advance
from hailstorm.engine.ticks import attempts
from hailstorm.errors import RunError
from hailstorm.ledger.reader import open_ledger
from hailstorm.testing import Driver
from hailstorm.topology.settings import Settings


def test_a_record_on_which_a_monoid_of_ones_own_raises_is_a_dead_letter(spark: SparkSession) -> None:
    storm = hs.Topology("own")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    rows.fold("parsed", by="k", n=Parsed("k"))
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"k": "1"}, {"k": "one"}])
        driver.advance()
        assert driver.table("parsed") == [{"k": "1", "n": 1}]
        (letter,) = driver.errors()
        assert "Parsed of step 'parsed', column 'n', fails on ('one',): ValueError" in letter["reason"]


class Picky(hs.Monoid):
    """Adds, and goes wrong in every way that there is on some numbers."""

    state = "BIGINT"
    value = "STRUCT<total: BIGINT, text: STRING>"
    takes = ("INT",)

    def zero(self) -> int:
        return 0

    def lift(self, n: int) -> Any:
        if n == 3:
            raise ValueError("three")
        return "four" if n == 4 else n

    def merge(self, a: int, b: Any) -> Any:
        total = a + b if b != "four" else b
        return 0.5 if b == 5 else total

    def present(self, state: int) -> Any:
        if state < 0:
            raise ArithmeticError("below zero")
        if state > 1_000:
            return {"total": "too much"}
        return {"total": state, "text": str(state)} if state % 2 else (state, str(state))


@pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])
def test_rows_on_which_methods_of_a_monoid_go_wrong_are_dead_letters_and_the_others_of_their_key_count(
    spark: SparkSession, tasks: int
) -> None:
    storm = hs.Topology("picky")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    rows.fold("picky", by="k", of=Picky("n"), rows=hs.count())
    rows.fold("all", rows=hs.count())
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("rows", [{"k": "a", "n": n} for n in (1, 3, 7, 4, 10, 5)])
        # Neither of the last two is bad by itself.
        driver.feed("rows", [{"k": "b", "n": n} for n in (2, -50, 5, 600, 600)], partition=1)
        driver.advance()
        assert driver.table("picky") == [
            {"k": "a", "of": {"total": 18, "text": "18"}, "rows": 3},
            {"k": "b", "of": {"total": 602, "text": "602"}, "rows": 2},
        ]
        assert driver.table("all") == [{"rows": 5}]
        letters = {(letter["partition"], letter["offset"]): letter["reason"] for letter in driver.errors()}
        assert sorted(letters) == [(0, 1), (0, 3), (0, 5), (1, 1), (1, 2), (1, 4)]
        assert "fails on (3,): ValueError: three" in letters[0, 1]
        assert "fails on (4,): 'its state' is BIGINT, which does not hold 'four' (str)" in letters[0, 3]
        assert "'its state' is BIGINT, which does not hold 0.5 (float)" in letters[0, 5]
        assert "ArithmeticError: below zero" in letters[1, 1]
        assert "'its value.total' is BIGINT, which does not hold 'too much' (str)" in letters[1, 4]
        driver.feed("rows", [{"k": "a", "n": 1}])
        driver.advance()
        assert driver.table("all") == [{"rows": 6}]


class NoThrees(hs.Monoid):
    state = "BIGINT"
    takes = ("INT",)
    bad = 3

    def zero(self) -> int:
        return 0

    def lift(self, n: int) -> int:
        if n == self.bad:
            raise ValueError(str(n))
        return n

    def merge(self, a: int, b: int) -> int:
        return a + b


class NoFours(NoThrees):
    bad = 4


class NoFives(NoThrees):
    bad = 5


def test_tries_that_name_bad_records_have_the_budget_of_a_search_and_then_ticks_get_shorter(
    spark: SparkSession,
) -> None:
    storm = hs.Topology("picky")
    rows = storm.spout("rows", hs.Log("x"), schema="n INT")
    rows.fold("threes", total=NoThrees("n"))
    rows.fold("fours", total=NoFours("n"))
    rows.fold("fives", total=NoFives("n"))
    with Driver(storm, spark, settings=Settings(search_jobs=1)) as driver:
        driver.feed("rows", [{"n": n} for n in (1, 3, 1, 4, 1, 5, 1, 1)])
        assert driver.advance() == 8
        for step in ("threes", "fours", "fives"):
            assert driver.table(step) == [{"total": 5}]
        assert {letter["offset"] for letter in driver.errors()} == {1, 3, 5}
        ticks = [commit for commit in open_ledger(driver.ledger.root).commits() if commit.reason == "tick"]
        assert len(ticks) > 1


class Parsed(hs.Monoid):
    state = "BIGINT"
    takes = ("STRING",)

    def zero(self) -> int:
        return 0

    def lift(self, text: str) -> int:
        return int(text)

    def merge(self, a: int, b: int) -> int:
        return a + b


@pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])
def test_a_monoid_that_fails_on_most_rows_stops_the_run_at_the_first_try(
    spark: SparkSession, tasks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def counted(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        return advance(*arguments)

    monkeypatch.setattr(attempts, "advance", counted)
    storm = hs.Topology("parsing")
    storm.spout("rows", hs.Log("x"), schema="k STRING").fold("parsed", n=Parsed("k"))
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("rows", [{"k": "one"} for _ in range(400)])
        with pytest.raises(RunError, match=r"at least .* of 400 rows failed.*fails on \('one',\): ValueError") as error:
            driver.advance()
        assert error.value.code == "HS-RUN-005"
        assert tries == 1
