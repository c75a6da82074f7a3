"""Kafka Streams' truth tables of joins, record by record: `shared/vectors/kafka-joins`, no part of the project.

Each record is a tick. Values are compared; times are not, because a table by arrival has no event time of ours. Where
our semantics differ by design, the test says so and why.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

Row = dict[str, Any]
FOLDER = next(
    (found for up in Path(__file__).resolve().parents if (found := up / "shared/vectors/kafka-joins").is_dir()), None
)
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEMA = "k INT, value STRING, at TIMESTAMP"

pytestmark = pytest.mark.skipif(FOLDER is None, reason="shared/vectors is not here")


def vectors(name: str) -> Any:
    assert FOLDER is not None
    return json.loads((FOLDER / f"{name}.json").read_text())


def at(milliseconds: int) -> str:
    return (BEGIN + timedelta(milliseconds=milliseconds)).isoformat()


def record(given: Row) -> Row:
    return {"k": given["key"], "value": given["value"], "at": at(given["time"])}


def outputs(driver: Driver, step: str, seen: dict[str, int]) -> list[str | None]:
    """What has come out of a step since the last call, as `left-right`; null for a row that was removed."""
    rows = driver.rows(step)
    new, seen[step] = rows[seen.get(step, 0) :], len(rows)
    names = [name for name in ("value", "value_right", "value_again") if new and name in new[0]]
    return [None if row.get("_kind") == "delete" else "-".join(text(row[name]) for name in names) for row in new]


def named(case: Row) -> str:
    return f"case-{case['name']}"


def text(value: str | None) -> str:
    return "null" if value is None else value


def two_tables(storm: hs.Topology, cases: list[Row]) -> dict[tuple[str, bool], Any]:
    """Each side as a table that goes by event time (`versioned`), and as one that goes by arrival, where it is used."""
    tables = {}
    for side in ("left", "right"):
        records = storm.spout(side, hs.Log("x"), schema=SCHEMA)
        for versioned in {case[f"{side}_versioned"] for case in cases}:
            table = records.table(
                f"{side}-{'time' if versioned else 'arrival'}",
                key="k",
                at="at" if versioned else None,
                deletes="value IS NULL",
            )
            tables[side, versioned] = table.select(f"{table.name}-values", value="value")
    return tables


def test_joins_of_tables_are_kafka_s(spark: SparkSession) -> None:
    found, storm = vectors("table-table"), hs.Topology("tables")
    tables = two_tables(storm, found["cases"])
    for case in found["cases"]:
        left, right = tables["left", case["left_versioned"]], tables["right", case["right_versioned"]]
        left.join(named(case), right, on="k", how="full" if case["kind"] == "outer" else case["kind"])
    seen: dict[str, int] = {}
    with Driver(storm, spark) as driver:
        for number, given in enumerate(found["input"]):
            driver.feed(given["side"], [record(given)])
            driver.advance()
            for case in found["cases"]:
                expected = [one["value"] for one in case["expected"][number]]
                assert outputs(driver, named(case), seen) == expected, (case["name"], number)
        for case in found["cases"]:
            rows = driver.table(named(case))
            assert [f"{text(r['value'])}-{text(r['value_right'])}" for r in rows] == [case["final"]["value"]]


def test_chains_of_tables_are_the_batch_join_where_kafka_s_are_not(spark: SparkSession) -> None:
    """Kafka sends doubles and misses deletes in chains: after `differs_from_batch_after` it has another value than a
    batch join. We have the batch join's always: compared with Kafka's last value elsewhere, and with a join on paper
    everywhere."""
    found, storm = vectors("table-table-multi"), hs.Topology("chains")
    tables = two_tables(storm, found["cases"])
    for case in found["cases"]:
        first, second = case["kind"].replace("outer", "full").split("-then-")
        left, right = tables["left", case["left_versioned"]], tables["right", case["right_versioned"]]
        joined = left.join(f"{case['name']}-first", right, on="k", how=first)
        again = right.select(f"{case['name']}-again", again="value")
        joined.join(named(case), again, on="k", how=second)
    with Driver(storm, spark) as driver:
        values: dict[str, str | None] = {"left": None, "right": None}
        kafka: dict[str, str | None] = {}
        for number, given in enumerate(found["input"]):
            driver.feed(given["side"], [record(given)])
            driver.advance()
            if given["key"] is not None:  # or it is a dead letter
                values[given["side"]] = given["value"]
            for case in found["cases"]:
                rows = driver.table(named(case))
                shown = [f"{pair(r['value'], r['value_right'])}-{text(r['again'])}" for r in rows]
                assert shown == chained(values["left"], values["right"], case["kind"]), (case["name"], number)
                for one in case["expected"][number]:
                    kafka[case["name"]] = one["value"]
                if number + 1 not in case["differs_from_batch_after"]:
                    last = kafka.get(case["name"])
                    assert shown == ([] if last is None else [last]), (case["name"], number)


def chained(left: str | None, right: str | None, kind: str) -> list[str]:
    first, second = kind.split("-then-")
    has_first = {"inner": bool(left and right), "left": bool(left), "outer": bool(left or right)}[first]
    has = {"inner": has_first and bool(right), "left": has_first, "outer": has_first or bool(right)}[second]
    first_pair = pair(left, right) if has_first else "null"
    return [f"{first_pair}-{text(right)}"] if has else []


def pair(left: str | None, right: str | None) -> str:
    """The first join of a chain; where there is none, Kafka has one null."""
    return "null" if left is None and right is None else f"{text(left)}-{text(right)}"


def test_joins_by_a_foreign_key_are_kafka_s(spark: SparkSession) -> None:
    """All cases at once, each under a key of its own. The tables are compared at every moment at which Kafka's test
    looked, and not the outputs one by one: Kafka also sends needless deletes for rows that were never there."""
    cases, storm = vectors("table-table-fk")["cases"], hs.Topology("foreign")
    columns = "c STRING, k STRING, value STRING, at TIMESTAMP"
    tables: dict[tuple[str, bool], Any] = {}
    for side, extra in (("left", ", points_at STRING"), ("right", "")):
        records = storm.spout(side, hs.Log("x"), schema=columns + extra)
        for versioned in (True, False):
            name = f"{side}-{'time' if versioned else 'arrival'}"
            table = records.table(name, key=["c", "k"], at="at" if versioned else None, deletes="value IS NULL")
            kept = {"value": "value", **({"points_at": "points_at"} if side == "left" else {})}
            tables[side, versioned] = table.select(f"{name}-values", columns=kept)
    for kind in ("inner", "left"):
        for versions in [(x, y) for x in (True, False) for y in (True, False)]:
            left, right = tables["left", versions[0]], tables["right", versions[1]]
            joined = left.join(view(kind, versions), right, on={"c": "c", "points_at": "k"}, how=kind)
            rejoined = left.select(f"{joined.name}-again", again="value")
            joined.join(f"{joined.name}-rejoined", rejoined, on=["c", "k"])
    known: dict[Any, Any] = {}
    with Driver(storm, spark) as driver:
        for number in range(max(len(case["input"]) for case in cases)):
            for case in cases:
                if number < len(case["input"]):
                    given = case["input"][number]
                    row = {"c": case["name"], **record(given), "k": given["key"]}
                    if given["side"] == "left":
                        row["points_at"] = points_at(given["value"], case["foreign_key"])
                    driver.feed(given["side"], [row])
            driver.advance()
            check_foreign(driver, cases, number, known)


def view(kind: str, versions: tuple[bool, bool]) -> str:
    return f"{kind}-{'time' if versions[0] else 'arrival'}-{'time' if versions[1] else 'arrival'}"


def versions_of(case: Row) -> tuple[bool, bool]:
    left, right = (case[name] in (True, "either") for name in ("left_versioned", "right_versioned"))
    return left, right


def points_at(value: str | None, how: str) -> str | None:
    if value is None or how == "always null":
        return None
    part = value.partition("|")[2]
    return None if "returnNull" in how and part == "returnNull" else part


def check_foreign(driver: Driver, cases: list[Row], number: int, known: dict[Any, Any]) -> None:
    states = {}
    for case in cases:
        name = view(case["kind"], versions_of(case))
        for step, wanted in ((name, "table"), (f"{name}-rejoined", "rejoined")):
            if step not in states:
                states[step] = driver.table(step)
            shown = {row["k"]: foreign_text(row, wanted) for row in states[step] if row["c"] == case["name"]}
            if number >= len(case["input"]):
                continue
            if wanted == "table" and case["table"][number] is not None:
                assert shown == case["table"][number], (case["name"], number)
            if wanted == "rejoined" and case.get("rejoined", {number: None})[number] is not None:
                for one in case["rejoined"][number]:
                    known.setdefault(case["name"], {})[one["key"]] = one["value"]
                kafka = {key: value for key, value in known.get(case["name"], {}).items() if value is not None}
                assert shown == kafka, (case["name"], number, "rejoined")


def foreign_text(row: Row, wanted: str) -> str:
    joined = f"({row['value']},{text(row['value_right'])})"
    return joined if wanted == "table" else f"rejoin({joined},{row['again']})"


def test_joins_of_streams_are_kafka_s(spark: SparkSession) -> None:
    """Kafka skips records without a value; we do with `where`. Records without a key, which match nothing, Kafka gives
    out at once where a join keeps them: we do when their bound has passed, as with all rows without a match."""
    found, storm = vectors("stream-stream"), hs.Topology("streams")
    sides = {}
    for side in ("left", "right"):
        records = storm.spout(side, hs.Log("x"), schema=SCHEMA, event_time="at", lateness="1 day")
        sides[side] = records.where(f"{side}-valued", "value IS NOT NULL").select(f"{side}-slim", k="k", value="value")
    for case in found["cases"]:
        first, _, second = case["kind"].replace("outer", "full").partition("-then-")
        bound = f"{case['window_ms']} ms"
        name = f"{named(case)}-first" if second else named(case)
        joined = sides["left"].join(name, sides["right"], on="k", within=bound, how=first)
        if second:
            joined = joined.join(named(case), sides["right"], on="k", within=bound, how=second, suffix="_again")
        joined.sink(f"to-{case['name']}", hs.Console())
    seen: dict[str, int] = {}
    with Driver(storm, spark) as driver:
        for number, given in enumerate(found["input"]):
            driver.feed(given["side"], [record(given)])
            driver.advance()
            for case in found["cases"]:
                expected = sorted(one["value"] for one in case["expected"][number] if one["key"] is not None)
                got = sorted(str(value) for value in outputs(driver, named(case), seen))
                assert got == expected, (case["name"], number)
        driver.complete()
        for case in found["cases"]:
            without_key = sorted(one["value"] for outs in case["expected"] for one in outs if one["key"] is None)
            assert sorted(map(str, outputs(driver, named(case), seen))) == without_key, case["name"]


def test_a_stream_joined_with_itself_is_kafka_s(spark: SparkSession) -> None:
    found, storm = vectors("stream-stream-self"), hs.Topology("selves")
    records = storm.spout("left", hs.Log("x"), schema=SCHEMA, event_time="at", lateness="1 day")
    valued = records.where("valued", "value IS NOT NULL").select("slim", k="k", value="value")
    valued.join("self", valued, on="k", within="10 seconds").sink("out", hs.Console())
    seen: dict[str, int] = {}
    with Driver(storm, spark) as driver:
        for number, given in enumerate(found["input"]):
            driver.feed(given["side"], [record(given)])
            driver.advance()
            expected = sorted(one["value"] for one in found["cases"][0]["expected"][number])
            assert sorted(map(str, outputs(driver, "self", seen))) == expected, number


def test_lookups_are_kafka_s_or_better(spark: SparkSession) -> None:
    """Without history: the table by arrival, after each record. With history: as of the row's time.

    Kafka looks up at once, or once its own stream is `grace` further, and so misses versions that come later, and never
    gives out what still waits at the end. We wait for the table: every row gets the version that all records together
    say was valid at its time, once."""
    found, storm = vectors("stream-table"), hs.Topology("lookups")
    records = storm.spout("left", hs.Log("x"), schema=SCHEMA, event_time="at", lateness="1 day")
    rows = records.where("valued", "value IS NOT NULL").select("slim", k="k", value="value")
    arrived = storm.spout("right", hs.Log("x"), schema=SCHEMA)
    by_arrival = arrived.table("by_arrival", key="k", deletes="value IS NULL")
    by_time = storm.table(
        "by_time", hs.Log("x"), schema=SCHEMA, key="k", deletes="value IS NULL", event_time="at", lateness="1 day"
    )
    for case in found["cases"]:
        table, as_of = (by_time, "event time") if case["right_versioned"] else (by_arrival, "latest")
        looked = rows.lookup(named(case), table, on="k", as_of=as_of, how=case["kind"])
        looked.sink(f"to-{case['name']}", hs.Console())
    seen: dict[str, int] = {}
    with Driver(storm, spark) as driver:
        for number, given in enumerate(found["input"]):
            driver.feed(given["side"], [record(given)])
            if given["side"] == "right":
                driver.feed("by_time", [record(given)])
            driver.advance()
            for case in found["cases"]:
                if not case["right_versioned"]:
                    expected = [one["value"] for one in case["expected"][number]]
                    assert outputs(driver, named(case), seen) == expected, (case["name"], number)
        driver.complete()
        for case in found["cases"]:
            if case["right_versioned"]:
                got = sorted(map(str, outputs(driver, named(case), seen)))
                assert got == sorted(as_of_time(found["input"], case["kind"])), case["name"]
                kafka = {one["value"] for outs in case["expected"] for one in outs}
                assert kafka - set(got) <= BEFORE_IT_CAME[case["name"]], case["name"]


# What Kafka gave because the version that was valid then came only afterwards.
BEFORE_IT_CAME: dict[str, set[str]] = {
    "inner-versioned": set(),
    "left-versioned": {"A-null"},
    "inner-versioned-grace": set(),
    "left-versioned-grace": {"A-null"},
}


def as_of_time(given: list[Row], kind: str) -> list[str]:
    """Every row of the left with the newest record of the right that is not after it."""
    made = []
    for row in given:
        if row["side"] == "left" and row["value"] is not None:
            versions = [
                (one["time"], number, one["value"])
                for number, one in enumerate(given)
                if one["side"] == "right" and one["time"] <= row["time"]
            ]
            value = max(versions)[2] if versions else None
            if value is not None or kind == "left":
                made.append(f"{row['value']}-{text(value)}")
    return made
