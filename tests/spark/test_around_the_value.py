"""Columns from around a record's value (key, time, topic, headers): in the test driver, and in dead letters."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.errors import UsageError
from hailstorm.testing import Driver

AT = datetime(2024, 5, 1, tzinfo=UTC)
AROUND = {"kafka_key": "k", "kafka_timestamp": AT, "kafka_topic": "eu", "kafka_headers": {"a": b"\xff", "b": None}}
HEADERS = [{"key": "a", "value": b"\xff"}, {"key": "b", "value": None}]
COLUMNS = "kafka_key STRING, kafka_timestamp TIMESTAMP, kafka_topic STRING, kafka_partition INT, kafka_offset BIGINT"
SCHEMA = f"n INT, {COLUMNS}, kafka_headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def orders(mended: Path | None = None) -> hs.Topology:
    """Refuses text that is no number, and numbers below zero, until there is a file `mended`."""
    storm = hs.Topology("orders")

    def number(value: bytes) -> Any:
        return {"n": 7 if value == b"seven" and mended and mended.exists() else int(value)}

    def checked(row: Any) -> Any:
        if row.n < 0 and not (mended and mended.exists()):
            raise ValueError("below zero")
        yield {name: getattr(row, name) for name in names}

    found = storm.spout("orders", hs.Kafka("orders", servers="x:1", metadata=True), schema=SCHEMA, decode=number)
    names = [column.name for column in found.schema]
    found.bolt(checked, name="checked", returns=SCHEMA).sink("out", hs.Console())
    return storm


def expected(n: int, offset: int, partition: int = 0) -> dict[str, Any]:
    own = {"n": n, "kafka_partition": partition, "kafka_offset": offset, "kafka_headers": HEADERS}
    return {**AROUND, **own}


def test_a_test_says_what_is_around_its_rows(spark: SparkSession) -> None:
    with Driver(orders(), spark) as driver:
        driver.feed("orders", ["1"], partition=1, **AROUND)
        driver.feed("orders", ["2"])
        driver.advance()
        assert driver.errors() == []
        told, other = sorted(driver.rows("orders"), key=lambda row: row["n"])
        assert told == expected(1, 0, partition=1)
        assert (other["kafka_key"], other["kafka_topic"], other["kafka_headers"]) == (None, "orders", [])
        assert isinstance(other["kafka_timestamp"], datetime)


def test_what_no_record_has_is_refused(spark: SparkSession) -> None:
    with Driver(orders(), spark) as driver, pytest.raises(UsageError, match="kafka_headers"):
        driver.feed("orders", [{"n": 1}], kafka_header={})
    storm = hs.Topology("plain")
    storm.spout("plain", hs.Log("data"), schema="n INT").sink("out", hs.Console())
    with Driver(storm, spark) as driver, pytest.raises(UsageError, match="kafka_key"):
        driver.feed("plain", [{"n": 1}], kafka_key="k")


def test_a_second_chance_sees_what_was_around_the_record(spark: SparkSession, tmp_path: Path) -> None:
    """Letters of the spout and of a bolt; both fail once more, and then go through."""
    with Driver(orders(tmp_path / "mended"), spark) as driver:
        driver.feed("orders", ["seven", "-1"], **AROUND)
        driver.advance()
        assert [(letter["step"], letter["offset"]) for letter in driver.errors()] == [("orders", 0), ("checked", 1)]
        assert driver.retry() == (2, 2)
        (tmp_path / "mended").touch()
        assert driver.retry() == (2, 0)
        assert sorted(driver.rows("checked"), key=lambda row: row["n"]) == [expected(-1, 1), expected(7, 0)]
