"""Dead letters keep everything: a retry enters the step with exactly the row that failed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.testing import Driver

TYPES = (
    "n INT, f DOUBLE, g FLOAT, b BINARY, d DECIMAL(38,10), day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, "
    "m MAP<BOOLEAN, DOUBLE>, s STRUCT<a: DOUBLE, b: ARRAY<BINARY>>, e STRING"
)


def everything(row: Any) -> dict[str, Any]:
    """A row with what JSON has no words for."""
    return {
        "n": row.n,
        "f": [float("nan"), float("inf"), -0.0][row.n % 3],
        "g": float("-inf"),
        "b": b"\x00\xff",
        "d": Decimal("1234567890123456789012345678.0123456789"),
        "day": date(9999, 12, 31),
        "at": datetime(1, 1, 1, tzinfo=UTC),
        "local": datetime(2024, 2, 29, 23, 59, 59, 999999),
        "m": {True: float("nan"), False: None},
        "s": {"a": float("inf"), "b": [b"\xfe", None]},
        "e": "",
    }


def failing_until(fixed: Path) -> Callable[[Any], Any]:
    def passes(row: Any) -> dict[str, Any]:
        if not fixed.exists():
            raise RuntimeError("not fixed yet")
        return dict(row.asdict())

    return passes


def shown(rows: list[dict[str, Any]]) -> list[str]:
    """As text: NaN is not equal to itself, and 0.0 is equal to -0.0."""
    return sorted(map(repr, rows))


@pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])
def test_a_retried_row_is_the_row_that_failed(spark: SparkSession, tmp_path: Path, tasks: int) -> None:
    fixed = tmp_path / "fixed"
    storm = hs.Topology("letters")
    rows = storm.spout("rows", hs.Log("x"), schema="n INT").bolt(everything, name="everything", returns=TYPES)
    passed = rows.bolt(failing_until(fixed), name="passes", returns=TYPES)
    passed.fold("newest", by="n", **{name: hs.latest(name) for name in ("f", "g", "b", "d", "day", "at", "local", "e")})
    rows.fold("expected", by="n", **{name: hs.latest(name) for name in ("f", "g", "b", "d", "day", "at", "local", "e")})
    passed.fold("nested", by="n", texts=hs.latest("concat(to_json(m), to_json(s))"))
    rows.fold("expected_nested", by="n", texts=hs.latest("concat(to_json(m), to_json(s))"))
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("rows", [{"n": n} for n in range(6)])
        driver.advance()
        assert len(driver.errors()) == 6
        assert b'"f":"nan"' in driver.errors()[0]["raw"]
        fixed.touch()
        assert driver.retry() == (6, 0)
        assert driver.errors() == []
        assert shown(driver.table("newest")) == shown(driver.table("expected"))
        assert shown(driver.table("nested")) == shown(driver.table("expected_nested"))


def test_with_everyone_each_copy_is_retried_once(spark: SparkSession, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed"
    storm = hs.Topology("copies")
    rows = storm.spout("rows", hs.Log("x"), schema="n INT")
    passes = rows.bolt(failing_until(fixed), name="passes", returns="n INT", grouping=hs.everyone(3))
    passes.fold("copies", by="n", copies=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"n": 1}, {"n": 2}])
        driver.advance()
        assert len(driver.errors()) == 6
        fixed.touch()
        assert driver.retry() == (6, 0)
        assert driver.table("copies") == [{"n": 1, "copies": 3}, {"n": 2, "copies": 3}]


def test_a_letter_has_the_row_with_its_types_and_where_it_came_from(spark: SparkSession, tmp_path: Path) -> None:
    storm = hs.Topology("typed")
    rows = storm.spout("rows", hs.Log("x"), schema="at TIMESTAMP, n INT", event_time="at")
    rows.bolt(failing_until(tmp_path / "never"), name="passes", returns="n INT").fold("n", n=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"at": "2024-01-01T00:00:00Z", "n": 1}, b"nonsense"])
        driver.advance()
        files = [pq.read_table(driver.ledger.root / file.path) for file in driver.ledger.head.dead_letters]
        by_step = {file["step"][0].as_py(): file for file in files}
        row = by_step["passes"]["row"][0].as_py()
        at = datetime(2024, 1, 1, tzinfo=UTC)
        assert row == {"at": at, "n": 1, "_spout": "rows", "_partition": 0, "_offset": 0, "_time": at}
        assert by_step["passes"]["row"].type.field("n").type == pa.int32()
        assert by_step["rows"]["raw"][0].as_py() == b"nonsense"
        assert by_step["rows"]["row"][0].as_py()["time"] is not None


def test_a_record_that_did_not_decode_keeps_its_own_time(spark: SparkSession, tmp_path: Path) -> None:
    fixed = tmp_path / "fixed"

    def decode(value: bytes) -> dict[str, Any]:
        if not fixed.exists():
            raise RuntimeError("not fixed yet")
        return {"n": int(value)}

    storm = hs.Topology("times")
    rows = storm.spout("rows", hs.Log("x"), schema="n INT", decode=decode)
    rows.select("timed", n="n").fold("latest", n=hs.latest("n"), rows=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("rows", [b"1"])
        driver.advance()
        fixed.touch()
        driver.feed("rows", [b"2"])
        driver.advance()
        assert driver.retry() == (1, 0)
        # The first record is older than the second, also when it comes after it.
        assert driver.table("latest") == [{"n": 2, "rows": 2}]
