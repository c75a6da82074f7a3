"""Resident ticks give what prepared ones give, and are run by the worker that they should be run by."""

from __future__ import annotations

import random
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine import advance
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.plan.needs import Found
from hailstorm.engine.resident import resident as driver_side
from hailstorm.engine.ticks.pacing import RESIDENT
from hailstorm.examples import trending
from hailstorm.ledger.ledger import Ledger
from hailstorm.spouts.roster import OneLog
from hailstorm.testing import Driver
from tests.chaos import app as chaos
from tests.spark.oracle import SCHEMA, draw_rows
from tests.spark.test_properties import committed


def everything_without_the_jvm() -> hs.Topology:
    """Bolts that fail, folds, a fold of a fold, a top that runs short, and what reads that top."""
    storm = hs.Topology("resident", error_limit="100%")
    rows = storm.spout("rows", hs.Log("x"), schema=SCHEMA)
    inverse = rows.bolt(lambda row: {"a": row.a, "q": 60 // row.b}, name="inverse", returns="a STRING, q INT")
    counts = inverse.fold("counts", by=["a", "q"], n=hs.count())
    counts.fold("sizes", by="n", keys=hs.count(), most=hs.sum("q"))
    best = rows.fold("by_a", by="a", n=hs.count(), total=hs.sum("x"), mean=hs.mean("x")).top("best", 2, by="total")
    best.fold("of_the_best", n=hs.count())
    return storm


def refuse(*_: object) -> None:
    raise AssertionError("a Spark job")


def test_resident_and_prepared_execution_of_an_interval_commit_the_same_rows(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, storm = random.Random(5), everything_without_the_jvm()
    with Driver(storm, spark, tasks=(1,)) as prepared, Driver(storm, spark, tasks=(0,)) as resident:
        for tick in range(4):
            for partition in range(2):
                fed = draw_rows(chance, 40, nulls=True)
                moment = datetime(2026, 1, 1 + tick, tzinfo=UTC)
                for driver in (prepared, resident):
                    driver.logs["rows"].append(fed, partition=partition, partitions=partition + 1, time=moment)
            prepared.advance()
            with monkeypatch.context() as patch:
                patch.setattr(advance._Wave, "_run_in_spark", refuse)  # null keys and refills need no job, either
                resident.advance()
            left, right = committed(prepared), committed(resident)
            assert left.keys() == right.keys()
            for name in left:
                assert left[name] == right[name], f"tick {tick}: {name}"
            assert len(left["letters"]) > 2
        worker = resident._negotiator._resident()
        assert worker is not None
        assert worker.ticks >= 8


@dataclass(frozen=True)
class Refounded(OneLog):
    """A log that may be made again at any time, as topics of a pattern come and go."""

    def roster(self, accept: bool = False) -> dict[str, str]:
        return super().roster(accept=True)


def test_logs_that_come_and_go_need_no_new_plan_and_no_new_worker(spark: SparkSession, tmp_path: Path) -> None:
    storm, path = hs.Topology("refounded"), tmp_path / "log"
    hs.Log(path).append([{"word": "rain"}])
    storm.spout("lines", Refounded(hs.Log(path)), schema="word STRING").fold("counts", by="word", n=hs.count())
    negotiator = Negotiator(spark, storm, Ledger(tmp_path / "ledger", create=True), ways=(RESIDENT,))
    try:
        negotiator.start()
        assert negotiator.tick()
        worker, plan = negotiator._resident(), negotiator.plan(RESIDENT)
        for _ in range(2):
            shutil.rmtree(path)
            hs.Log(path).append([{"word": "rain"}, {"word": "hail"}])
            assert negotiator.tick()
            assert not negotiator.tick()
        assert negotiator.account.last.way == "resident"
        assert negotiator._resident() is worker
        assert negotiator.plan(RESIDENT) is plan
        assert len(negotiator.ledger.head.rosters["lines"]) == 3
        assert negotiator.tick() is False
    finally:
        negotiator.fail()
    rows = hs.open_ledger(tmp_path / "ledger").state("counts").arrow().to_pylist()
    assert {row["word"]: row["n"] for row in rows} == {"rain": 3, "hail": 2}


def of_rows(name: str, build: Callable[[Any], object]) -> hs.Topology:
    storm = hs.Topology("needs")
    build(storm.spout(name, hs.Log("x"), schema="a STRING, b INT, x DOUBLE, m MAP<STRING, INT>"))
    return storm


NEEDS: dict[str, tuple[Callable[[Any], object], str]] = {
    "sql": (lambda rows: rows.sql("s", "SELECT a FROM rows").fold("f", by="a", n=hs.count()), "an SQL query"),
    "where": (lambda rows: rows.where("s", "lower(a) = 'u'").fold("f", n=hs.count()), "lower(a) = 'u'"),
    "select": (lambda rows: rows.select("s", a="a", q="b / 2").fold("f", by="a", n=hs.count()), "computes: b / 2"),
    "monoid": (lambda rows: rows.fold("s", by="a", n=hs.count(), d=hs.count_distinct("b")), "the monoid of 'd'"),
    "input": (lambda rows: rows.fold("s", by="a", n=hs.sum("length(a)")), "length(a)"),
    "float": (lambda rows: rows.fold("s", by="a", n=hs.max("x")), "the monoid of 'n'"),
    "keyed": (lambda rows: rows.distinct("s", by="x", within="1 hour").fold("f", n=hs.count()), "the type of 'x'"),
    "top": (lambda rows: rows.fold("f", by="a", n=hs.sum("b")).top("s", 2, by="n / 2"), "n / 2"),
    "table": (lambda rows: rows.fold("f", by="a", n=hs.count()).where("s", "upper(a) = 'U'"), "upper(a) = 'U'"),
}


@pytest.mark.parametrize("case", NEEDS)
def test_a_step_that_needs_the_jvm_is_named_with_the_reason(spark: SparkSession, case: str) -> None:
    build, why = NEEDS[case]
    plan = compile_topology(spark, of_rows("rows", build), tasks=1)
    assert not plan.can_be_resident
    (need,) = plan.needs
    assert need.step == "s"
    assert why in need.why
    assert need.instead


@pytest.mark.parametrize("storm", [everything_without_the_jvm(), trending.storm, chaos.storm], ids=lambda s: s.name)
def test_topologies_of_python_and_simple_expressions_can_be_resident(spark: SparkSession, storm: hs.Topology) -> None:
    plan = compile_topology(spark, storm, tasks=1)
    assert plan.can_be_resident, plan.needs
    assert plan.needs == ()


def test_a_topology_that_needs_the_jvm_runs_as_prepared_whatever_was_asked_for(spark: SparkSession) -> None:
    with Driver(of_rows("rows", NEEDS["where"][0]), spark, tasks=(0,)) as driver:
        driver.feed("rows", [{"a": "U"}, {"a": "v"}])
        driver.advance()
        assert driver.table("f") == [{"n": 1}]
        assert driver._negotiator.account.last.way == "prepared"
        left = Found.left_in(driver.ledger.cache.folder)
    assert left is not None
    assert "Every tick is a Spark job" in left.text()
    assert "  s: only Spark computes: lower(a) = 'u'" in left.text()


def test_a_worker_on_another_machine_dials_a_port_of_the_driver(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_side, "is_on_this_machine", lambda spark: False)
    with Driver(everything_without_the_jvm(), spark, tasks=(0,)) as driver:
        driver.feed("rows", [{"a": "u", "b": 1, "x": 2}])
        driver.advance()
        assert driver._negotiator.account.last.way == "resident"
        worker = driver._negotiator._resident()
        assert worker is not None
        assert worker._wire._connection.family == socket.AF_INET
