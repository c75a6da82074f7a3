"""Control tables: each row of a stream with every row of a small table after the tick, against plain Python."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver
from tests.length import seeds

Row = dict[str, Any]
WAYS = pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])


def fraud() -> hs.Topology:
    storm = hs.Topology("fraud")
    paid = storm.spout("paid", hs.Log("x"), schema="card STRING, n INT")
    rules = storm.table("rules", hs.Log("y"), schema="id STRING, n INT, gone BOOLEAN", key="id", deletes="gone")
    for how in ("left", "inner"):
        ruled = paid.lookup(f"ruled_{how}", rules, on=[], how=how)
        ruled.sink(f"to-{how}", hs.Console())
        ruled.where(f"hits_{how}", "n >= n_right").fold(f"by_rule_{how}", by="id", n=hs.count())
    # Another reader of the table, through a filter; and a table that is one row.
    paid.lookup("strict", rules.where("low", "n < 3"), on=(), how="inner", suffix="_limit").sink("a", hs.Console())
    total = paid.fold("total", paid=hs.sum("n"))
    paid.lookup("shares", total, on={}).sink("b", hs.Console())
    return storm


def drawn(chance: random.Random) -> tuple[list[Row], list[Row]]:
    paid = [{"card": chance.choice("abc"), "n": chance.randint(0, 5)} for _ in range(chance.randint(0, 6))]
    rules = [
        {"id": chance.choice("pqrs"), "n": chance.randint(0, 5), "gone": chance.random() < 0.4}
        for _ in range(chance.choice([0, 0, 1, 3]))
    ]
    return paid, rules


def counted(rows: list[Row]) -> Counter[str]:
    return Counter(repr(sorted(row.items())) for row in rows)


def paired(paid: list[Row], rules: list[Row], how: str) -> list[Row]:
    others: list[Row] = [{"id": rule["id"], "n_right": rule["n"], "gone": rule["gone"]} for rule in rules]
    if not others and how == "left":
        others = [{"id": None, "n_right": None, "gone": None}]
    return [{**row, **other} for row in paid for other in others]


@WAYS
@pytest.mark.parametrize("seed", seeds(1, 6))
def test_each_row_meets_the_whole_table_as_it_is_after_the_tick(spark: SparkSession, tasks: int, seed: int) -> None:
    chance = random.Random(seed)
    known: dict[str, Row] = {}
    wanted: dict[str, list[Row]] = {"ruled_left": [], "ruled_inner": [], "strict": [], "shares": []}
    total = 0
    with Driver(fraud(), spark, tasks=(tasks,)) as driver:
        for _ in range(8):
            paid, rules = drawn(chance)
            driver.feed("paid", paid)
            driver.feed("rules", rules)
            if (paid or rules) and chance.random() < 0.3:
                driver.crash(at=chance.choice(["before-commit", "after-write"]))
            driver.advance()
            known |= {rule["id"]: rule for rule in rules}
            here = [rule for rule in known.values() if not rule["gone"]]
            for how in ("left", "inner"):
                wanted[f"ruled_{how}"] += paired(paid, here, how)
            low = paired(paid, [rule for rule in here if rule["n"] < 3], "inner")
            wanted["strict"] += [{("n_limit" if k == "n_right" else k): v for k, v in row.items()} for row in low]
            total += sum(row["n"] for row in paid)
            wanted["shares"] += [{**row, "paid": total} for row in paid]
        assert any(row["id"] is None for row in wanted["ruled_left"]), "the table was empty once"
        for step, rows in wanted.items():
            assert counted(driver.rows(step)) == counted(rows), step
        for how in ("left", "inner"):
            assert counted(driver.rows(f"to-{how}")) == counted(wanted[f"ruled_{how}"])
            hits = Counter(row["id"] for row in wanted["ruled_inner"] if row["n"] >= row["n_right"])
            assert {row["id"]: row["n"] for row in driver.table(f"by_rule_{how}")} == hits


def test_many_rows_meet_a_larger_table_in_pieces(spark: SparkSession) -> None:
    with Driver(fraud(), spark, tasks=(2,)) as driver:
        driver.feed("rules", [{"id": f"rule-{i}", "n": 3, "gone": False} for i in range(70)])
        driver.feed("paid", [{"card": "a", "n": i % 6} for i in range(3_000)])
        driver.advance()
        assert len(driver.rows("ruled_inner")) == 70 * 3_000
        assert [row["n"] for row in driver.table("by_rule_inner")] == [1_500] * 70


def test_what_needs_a_key_of_everyone_is_refused() -> None:
    storm = hs.Topology("fraud")
    paid = storm.spout("paid", hs.Log("x"), schema="id STRING, at TIMESTAMP", event_time="at")
    rules = storm.table("rules", hs.Log("y"), schema="id STRING, n INT, at TIMESTAMP", key="id", event_time="at")
    with pytest.raises(hs.HailstormError, match="asks for the past of all rows of 'rules'"):
        paid.lookup("then", rules, on=[], as_of="event time")
    with pytest.raises(hs.HailstormError, match=r"joins on \[\]"):
        rules.join("both", rules, on=[])
