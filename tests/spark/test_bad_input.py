"""Bad input and bad code: a dead letter or a clear error for each, and nothing lost."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.tolerance import total
from hailstorm.errors import RunError, TopologyError
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.spouts.log import Log
from hailstorm.testing import Driver
from hailstorm.topology.settings import Settings

HUGE = "x" * 10_000_000


def inverse(row: Any) -> Any:
    yield {"q": 10 // row.n}
    yield {"q": row.n}


def typed(row: Any) -> Any:
    bad: dict[int, Any] = {
        1: {"i": "text"},
        2: {"i": 2**70},
        3: {"s": 5},
        4: {"s": "\ud800"},
        5: {"t": "yesterday"},
        6: {"l": 3},
        7: {"d": "1.123456789"},
        8: {"m": 3},
        9: {"unknown": 1},
        10: 7,
        11: "text",
        12: [None],
        13: {"l": [1, "x"]},
    }
    if row.n == 14:
        raise RuntimeError("\ud800 " + "long " * 10_000)
    if row.n == 15:
        return {"i": row.missing}
    return bad.get(row.n, {"i": row.n, "s": str(row.n)})


def picky(batch: pa.RecordBatch) -> pa.RecordBatch:
    if 0 in batch.column("n").to_pylist():
        raise ValueError("a zero")
    return batch.select(["n"])


def bad_input() -> hs.Topology:
    storm = hs.Topology("bad")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    rows.bolt(inverse, name="inverse", returns="q INT").fold("inverses", n=hs.count())
    returns = "i BIGINT, s STRING, t TIMESTAMP, l ARRAY<INT>, d DECIMAL(5,2), m MAP<STRING,INT>"
    rows.bolt(typed, name="typed", returns=returns).fold("typed_rows", n=hs.count(), s=hs.max("i"))
    rows.arrow("picky", picky, returns="n INT").fold("picky_rows", n=hs.count())
    rows.bolt(inverse, name="skipped", returns="q INT", on_error="skip").fold("skipped_rows", n=hs.count())
    rows.fold("by_k", by="k", n=hs.count(), size=hs.sum("length(k)"))
    rows.fold("all", n=hs.count())
    return storm


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["resident", "prepared", "planned"])
def driver(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Driver]:
    with Driver(bad_input(), spark, tasks=(request.param,)) as driver:
        # First: fifteen rows of which many fail; fewer than a hundred, so that the tick does not stop.
        driver.feed("rows", [{"k": "a", "n": n} for n in range(16)])
        # A second partition with records that are no rows at all.
        driver.feed(
            "rows",
            [
                b"not json",
                b'{"k": "b", "n": ',
                b'{"k": "\xff\xfe", "n": 1}',
                b'{"k": "b", "n": "seven"}',
                b'{"k": "b", "n": 99999999999}',
                b"[1, 2]",
                b"",
                b'{"k": null, "n": 20}',
                b'{"n": 21}',
                b'{"k": "b", "n": 22, "extra": true}',
                f'{{"k": "{HUGE}", "n": 23}}'.encode(),
            ],
            partition=1,
        )
        driver.advance()
        yield driver


def letters(driver: Driver, step: str) -> list[dict[str, Any]]:
    return sorted((row for row in driver.errors() if row["step"] == step), key=lambda row: row["offset"])


def test_records_that_do_not_decode_are_dead_letters_with_their_bytes(driver: Driver) -> None:
    found = letters(driver, "rows")
    assert [(row["spout"], row["partition"], row["offset"]) for row in found] == [("rows", 1, o) for o in range(7)]
    assert found[0]["raw"] == b"not json"
    assert found[2]["raw"] == b'{"k": "\xff\xfe", "n": 1}'
    assert all(row["reason"] for row in found)


def test_the_others_are_counted(driver: Driver) -> None:
    assert driver.table("all") == [{"n": 16 + 4}]


def test_a_ten_megabyte_value_is_a_key_like_others(driver: Driver) -> None:
    rows = open_ledger(driver.ledger.root).state("by_k").arrow()
    sizes = dict(zip([len(key) for key in rows.column("k").to_pylist()], rows.column("size").to_pylist(), strict=True))
    assert sizes == {1: 1, len(HUGE): len(HUGE)} or sizes == {1: 16, len(HUGE): len(HUGE)}


def test_a_null_key_and_a_missing_one_are_dead_letters_of_the_fold(driver: Driver) -> None:
    found = letters(driver, "by_k")
    assert [(row["partition"], row["offset"]) for row in found] == [(1, 7), (1, 8)]
    assert {row["reason"] for row in found} == {"the key is null"}


def test_a_row_on_which_a_function_raises_is_refused_as_a_whole(driver: Driver) -> None:
    (letter,) = letters(driver, "inverse")
    assert (letter["partition"], letter["offset"]) == (0, 0)
    assert "ZeroDivisionError" in letter["reason"]
    assert "test_bad_input.py:" in letter["reason"]
    assert driver.table("inverses") == [{"n": 2 * 19}]


def test_what_is_not_of_the_declared_type_is_a_dead_letter(driver: Driver) -> None:
    found = letters(driver, "typed")
    assert [row["offset"] for row in found] == list(range(1, 16))
    assert all(len(row["reason"]) <= 1_000 for row in found)
    reasons = {row["offset"]: row["reason"] for row in found}
    assert "'i' is BIGINT, which does not hold 'text' (str)" in reasons[1]
    assert "which it does not declare" in reasons[9]
    assert "the row has no 'missing'; it has: k, n" in reasons[15]
    assert driver.table("typed_rows") == [{"n": 5, "s": 23}]


def test_only_the_bad_row_of_a_batch_is_refused(driver: Driver) -> None:
    (letter,) = letters(driver, "picky")
    assert (letter["partition"], letter["offset"]) == (0, 0)
    assert "a zero" in letter["reason"]
    assert driver.table("picky_rows") == [{"n": 19}]


def test_a_skipped_row_is_counted_and_leaves_no_letter(driver: Driver) -> None:
    assert letters(driver, "skipped") == []
    assert driver.table("skipped_rows") == [{"n": 2 * 19}]
    commit = list(open_ledger(driver.ledger.root).commits())[-1]
    assert commit.errors == len(driver.errors()) + 1


# Ticks that stop


def numbers(**options: Any) -> hs.Topology:
    storm = hs.Topology("numbers")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    rows.bolt(lambda row: {"q": 10 // row.n}, name="inverse", returns="q INT", **options).fold("n", n=hs.count())
    return storm


def test_more_than_a_tenth_of_bad_rows_stops_the_tick_and_nothing_is_committed(spark: SparkSession) -> None:
    with Driver(numbers(), spark) as driver:
        driver.feed("rows", [{"n": 0}] * 10 + [{"n": 1}] * 90)
        driver.advance()
        assert driver.table("n") == [{"n": 90}]
        before = driver.ledger.head.commit
        driver.feed("rows", [{"n": 0}] * 11 + [{"n": 1}] * 89)
        with pytest.raises(RunError, match=r"11 of 100 rows failed, more than 10%.*'inverse'.*ZeroDivision") as error:
            driver.advance()
        assert error.value.at is not None
        assert Ledger(driver.ledger.root).head.commit == before
        assert len(driver.errors()) == 10


def test_a_step_that_says_fail_stops_at_the_first_bad_row(spark: SparkSession) -> None:
    with Driver(numbers(on_error="fail"), spark) as driver:
        driver.feed("rows", [{"n": 1}, {"n": 0}])
        before = driver.ledger.head.commit
        with pytest.raises(RunError, match="'inverse' failed on 1 rows: ZeroDivisionError"):
            driver.advance()
        assert driver.ledger.head.commit == before


def test_a_record_on_which_sql_fails_is_a_dead_letter_and_the_rest_goes_on(spark: SparkSession) -> None:
    storm = hs.Topology("sql")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    rows.select("cast", n="cast(k AS INT)").fold("total", n=hs.sum("n"))
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"k": "1"}, {"k": "one"}, {"k": "20"}])
        driver.feed("rows", [{"k": "300"}, {"k": "three"}], partition=1)
        assert driver.advance() == 5
        assert driver.table("total") == [{"n": 321}]
        letters = {(letter["partition"], letter["offset"]): letter for letter in driver.errors()}
        assert set(letters) == {(0, 1), (1, 1)}
        assert letters[0, 1]["raw"] == b'{"k":"one"}'
        assert "'one'" in letters[0, 1]["reason"]


def test_a_trickle_of_bad_rows_stops_the_run_at_every_start_until_somebody_sees_to_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    storm = hs.Topology("trickle")
    rows = storm.spout("rows", hs.Log(tmp_path / "log"), schema="n INT")
    rows.bolt(inverse, name="inverse", returns="q INT").fold("total", n=hs.count())
    log = Log(tmp_path / "log")

    def run(settings: Settings | None = None) -> None:
        negotiator = Negotiator(spark, storm, Ledger(tmp_path / "ledger", create=True), settings)
        negotiator.start()
        try:
            negotiator.tick()
        except RunError:
            negotiator.fail()
            raise
        negotiator.stop()

    for _ in range(3):
        log.append([{"n": 0}] * 30)
        run()
    log.append([{"n": 0}] * 30)
    for _ in range(2):
        with pytest.raises(RunError, match=r"120 of the last 120 rows failed, more than 10%.*'inverse'"):
            run()
    ledger = Ledger(tmp_path / "ledger")
    assert (ledger.head.rows, total(ledger.head.recent)) == (90, (90, 90))
    run(Settings(error_limit=1.0))
    log.append([{"n": 0}] * 30 + [{"n": 1}])
    run()
    assert total(Ledger(tmp_path / "ledger").head.recent) == (31, 30)


def test_a_worker_that_dies_in_the_middle_of_a_task_is_replaced_and_the_tick_tried_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    died = tmp_path / "died"
    storm = hs.Topology("dying")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING")

    @rows.bolt(returns="k STRING")
    def dies_once(row: Any) -> dict[str, str]:
        if not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"k": row.k}

    dies_once.fold("counts", by="k", n=hs.count())
    with Driver(storm, spark) as driver:
        driver.feed("rows", [{"k": "a"}, {"k": "b"}, {"k": "a"}])
        assert driver.advance() == 3
        assert died.exists()
        assert driver.table("counts") == [{"k": "a", "n": 2}, {"k": "b", "n": 1}]


def test_sql_that_fails_on_many_rows_is_a_clear_error(spark: SparkSession) -> None:
    storm = hs.Topology("sql")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    rows.select("cast", n="cast(k AS INT)").fold("total", n=hs.sum("n"))
    settings = Settings(error_limit=0.2, error_limit_rows=3)
    with Driver(storm, spark, settings=settings) as driver:
        driver.feed("rows", [{"k": "1"}, {"k": "one"}, {"k": "two"}, {"k": "three"}])
        with pytest.raises(RunError) as error:
            driver.advance()
        assert "an SQL expression fails" in error.value.what
        assert "try_cast" in error.value.hint
        assert driver.ledger.head.rows == 0


def test_sql_that_fails_on_half_of_the_rows_ends_soon_with_the_error_and_examples(spark: SparkSession) -> None:
    storm = hs.Topology("sql")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    rows.select("cast", n="cast(k AS INT)").fold("total", n=hs.sum("n"))
    with Driver(storm, spark, settings=Settings(search_time_ms=1_000)) as driver:
        driver.feed("rows", [{"k": "1" if n % 2 else "one"} for n in range(20_000)])
        before = set(driver.ledger.root.rglob("*.parquet"))
        with pytest.raises(RunError, match="an SQL expression fails") as error:
            driver.advance()
        assert re.search(r"bad records: \d+ of the first \d+ that were looked through", error.value.hint)
        assert "rows/0@0: an SQL expression fails on a row" in error.value.hint
        assert driver.ledger.head.rows == 0
        # The search leaves nothing. Of the tick itself, a pass that Spark gave up may have ended its file: vacuum's.
        assert len(set(driver.ledger.root.rglob("*.parquet")) - before) <= 1


def test_a_search_that_is_cut_short_goes_on_with_what_it_has_looked_through(spark: SparkSession) -> None:
    storm = hs.Topology("sql")
    rows = storm.spout("rows", hs.Log("x"), schema="k STRING, n INT")
    rows.select("cast", n="cast(k AS INT)").fold("total", n=hs.count())
    bad = {13, 31}
    with Driver(storm, spark, settings=Settings(search_jobs=8, search_time_ms=60_000)) as driver:
        driver.feed("rows", [{"k": "one" if n in bad else "1"} for n in range(32)])
        assert driver.advance() == 32
        assert driver.table("total") == [{"n": 30}]
        assert {letter["offset"] for letter in driver.errors()} == bad
        ticks = [commit for commit in open_ledger(driver.ledger.root).commits() if commit.reason == "tick"]
        assert len(ticks) > 1


@pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])
def test_a_time_that_python_has_no_value_for_makes_a_dead_letter_of_the_bolt_that_reads_it(
    spark: SparkSession, tasks: int
) -> None:
    storm = hs.Topology("late")
    rows = storm.spout("rows", hs.Log("x"), schema="n BIGINT")
    times = rows.select("times", n="n", at="timestamp_micros(n)", ats="array(timestamp_micros(n))")
    years = times.bolt(lambda row: {"year": row.at.year}, name="years", returns="year INT")
    years.fold("years_", by="year", n=hs.count())
    lists = times.bolt(lambda row: {"n": len(row.ats)}, name="lists", returns="n INT")
    lists.fold("lists_", n=hs.count())
    times.fold("kept", n=hs.count())
    far = 400_000_000_000_000_000
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("rows", [{"n": 0}, {"n": far}, {"n": -far}, {"n": None}, {"n": 1}])
        driver.advance()
        assert driver.table("years_") == [{"year": 1970, "n": 2}]
        assert driver.table("lists_") == [{"n": 3}]
        assert driver.table("kept") == [{"n": 5}]
        reasons = {(letter["step"], letter["offset"]): letter["reason"] for letter in driver.errors()}
        assert sorted(reasons) == [("lists", 1), ("lists", 2), ("years", 1), ("years", 2), ("years", 3)]
        assert reasons["years", 1].startswith("'at' has a time outside of the years 1 to 9999: 14645-06-30")


@pytest.mark.parametrize(
    "refused",
    [
        lambda rows: rows.where("refused", "array_contains(k, 1)").fold("n", n=hs.count()),
        lambda rows: rows.table("refused", key="k", deletes="n").fold("n", n=hs.count()),  # no predicate
        lambda rows: rows.select("refused", k="struct(n, n)").fold("n", by="k", n=hs.count()),  # two fields called n
    ],
    ids=["types", "predicate", "fields"],
)
def test_spark_refusing_a_step_is_shown_at_the_users_line(
    spark: SparkSession, refused: Callable[[hs.Stream], object]
) -> None:
    storm = hs.Topology("refused")
    refused(storm.spout("rows", hs.Log("x"), schema="k STRING, n INT"))
    with pytest.raises(TopologyError, match="'refused'") as error:
        Driver(storm, spark)
    assert error.value.at is not None
    assert error.value.at.short.startswith("test_bad_input.py:")


# Around a run
