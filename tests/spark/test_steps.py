"""Each kind of step against what it must give, prepared and planned. One topology with many steps: ticks are dear."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.testing import Driver
from tests.spark.oracle import after_changes, as_set

Rows = list[dict[str, Any]]


class Longest(hs.Monoid):
    state = "STRING"
    value = "INT"
    takes = ("STRING",)

    def zero(self) -> str:
        return ""

    def lift(self, text: str | None) -> str:
        return text or ""

    def merge(self, a: str, b: str) -> str:
        return max(a, b, key=lambda text: (len(text), text))

    def present(self, state: str) -> int:
        return len(state)


def exploded(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.concat_arrays([batch.column("n"), batch.column("n")])], names=["n"])


def evens_only(batch: pa.RecordBatch) -> pa.Table:
    kept = pc.equal(pc.bit_wise_and(batch.column("n"), 1), 0)
    return pa.Table.from_batches([batch]).filter(kept).select(["n"])


def doubled(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    for piece in (batch.slice(0, 1), batch.slice(1)):
        yield pa.RecordBatch.from_arrays([pc.multiply(piece.column("n"), 2)], names=["n"])


def every_step() -> hs.Topology:
    storm = hs.Topology("steps")
    lines = storm.spout("lines", hs.Log("x"), schema="text STRING, n BIGINT")
    more = storm.spout("more", hs.Log("x"), schema="text STRING, n BIGINT")

    @lines.bolt(returns="word STRING, place INT")
    def words(line: Any) -> Any:
        for place, word in enumerate(line.text.split()):
            yield {"word": word, "place": place}

    lines.bolt(lambda row: {"m": row.n + 1}, name="one_dict", returns="m BIGINT")
    lines.bolt(lambda row: [{"m": row.n}] * 2 if row.n % 2 else None, name="list_or_none", returns="m BIGINT")
    lines.bolt(lambda row: {}, name="only_nulls", returns="m BIGINT")
    lines.arrow("filtered", evens_only, returns="n BIGINT")
    lines.arrow("exploded", exploded, returns="n INT")
    lines.arrow("doubled", doubled, returns="n BIGINT")
    lines.sql("sql_words", "SELECT explode(split(text, ' ')) AS word, n FROM lines WHERE n > 1")
    lines.sql("nested", "SELECT m + 1 AS m FROM (SELECT n * 10 AS m FROM lines) WHERE m < 50")
    lines.where("odd", "n % 2 = 1")
    lines.select("selected", n="n * n", loud="upper(text)")
    both = lines.union("both", more)
    lines.union("twice", lines)
    for kind, grouping in {
        "shuffled": hs.shuffle(3),
        "by_fields": hs.fields("text"),
        "to_everyone": hs.everyone(3),
        "to_one": hs.one(),
    }.items():
        lines.bolt(lambda row: {"n": row.n}, name=kind, returns="n BIGINT", grouping=grouping)
    words.fold("counts", by="word", n=hs.count(), first=hs.min("place"))
    words.fold("by_two", by=["word", "place"], n=hs.count())
    both.fold("overall", n=hs.count(), total=hs.sum("n"))
    words.fold("own", by="place", longest=Longest("word"))
    streams = {name for step in storm.steps for name in step.inputs}
    for step in storm.steps:
        if not step.is_table and step.name not in streams:
            hs.topology.stream.Stream(storm, step.name).sink(f"to_{step.name}", hs.Call(print))
    return storm


LINES: list[Rows] = [
    [{"text": "a b a", "n": 1}, {"text": "c", "n": 2}],
    [{"text": "a longer line", "n": 3}, {"text": "", "n": 4}, {"text": "b", "n": 5}],
]
MORE: list[Rows] = [[{"text": "z", "n": 100}], []]


@pytest.fixture(scope="module", params=[0, 1, 2], ids=["resident", "prepared", "planned"])
def driver(spark: SparkSession, request: pytest.FixtureRequest) -> Iterator[Driver]:
    with Driver(every_step(), spark, tasks=(request.param,)) as driver:
        for lines, more in zip(LINES, MORE, strict=True):
            driver.feed("lines", lines[:1], 0)
            driver.feed("lines", lines[1:], 2)
            driver.feed("more", more)
            driver.advance()
        yield driver


ALL = [row for rows in LINES for row in rows]
WORDS = [(word, place) for row in ALL for place, word in enumerate(row["text"].split())]
EXPECTED: dict[str, list[Any]] = {
    "words": WORDS,
    "one_dict": [row["n"] + 1 for row in ALL],
    "list_or_none": [1, 1, 3, 3, 5, 5],
    "only_nulls": [None] * 5,
    "filtered": [2, 4],
    "exploded": [1, 2, 3, 4, 5] * 2,
    "doubled": [2, 4, 6, 8, 10],
    "sql_words": [("c", 2), ("a", 3), ("longer", 3), ("line", 3), ("", 4), ("b", 5)],
    "nested": [11, 21, 31, 41],
    "odd": [("a b a", 1), ("a longer line", 3), ("b", 5)],
    "selected": [(row["n"] ** 2, row["text"].upper()) for row in ALL],
    "both": [(row["text"], row["n"]) for row in [*ALL, *MORE[0]]],
    "twice": [(row["text"], row["n"]) for row in ALL] * 2,
    "shuffled": [1, 2, 3, 4, 5],
    "by_fields": [1, 2, 3, 4, 5],
    "to_everyone": [1, 2, 3, 4, 5] * 3,
    "to_one": [1, 2, 3, 4, 5],
}


@pytest.mark.parametrize("step", EXPECTED)
def test_a_stream_has_exactly_its_rows(driver: Driver, step: str) -> None:
    got = [tuple(row.values()) if len(row) > 1 else next(iter(row.values())) for row in driver.rows(step)]
    assert Counter(got) == Counter(EXPECTED[step])


def test_a_record_is_counted_once_however_often_it_is_read(driver: Driver) -> None:
    assert driver.ledger.head.rows == len(ALL) + 1


def test_folds_by_one_key_by_two_and_by_none(driver: Driver) -> None:
    counted = Counter(word for word, _ in WORDS)
    first = {word: min(place for other, place in WORDS if other == word) for word in counted}
    assert as_set(driver.table("counts")) == as_set(
        {"word": word, "n": n, "first": first[word]} for word, n in counted.items()
    )
    assert as_set(driver.table("by_two")) == as_set(
        {"word": word, "place": place, "n": n} for (word, place), n in Counter(WORDS).items()
    )
    assert driver.table("overall") == [{"n": 6, "total": 115}]


def test_a_monoid_of_ones_own_keeps_its_state_and_shows_its_value(driver: Driver) -> None:
    assert driver.table("own") == [{"place": 0, "longest": 1}, {"place": 1, "longest": 6}, {"place": 2, "longest": 4}]


def test_changes_of_folds_fit_together(driver: Driver) -> None:
    assert as_set(after_changes(driver.rows("counts"), ["word"], ["n", "first"])) == as_set(driver.table("counts"))
    assert as_set(after_changes(driver.rows("overall"), [], ["n", "total"])) == as_set(driver.table("overall"))


def test_nothing_became_a_dead_letter(driver: Driver) -> None:
    assert driver.errors() == []


@pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])
def test_several_steps_behind_one_cost_one_read_and_one_run_of_user_code(
    spark: SparkSession, tmp_path: Path, tasks: int
) -> None:
    calls = tmp_path / "calls"

    def noted(row: Any) -> Any:
        with open(calls, "a") as file:
            file.write(f"{row.n}\n")
        return {"n": row.n}

    storm = hs.Topology("once")
    numbers = storm.spout("numbers", hs.Log("x"), schema="n BIGINT")
    bolt = numbers.bolt(noted, name="noted", returns="n BIGINT")
    bolt.fold("a", by="n", k=hs.count())
    bolt.fold("b", k=hs.sum("n"))
    bolt.where("c", "n > 1").sink("d", hs.Call(print))
    numbers.fold("e", k=hs.count())
    # Read by one step only, but twice.
    alone = storm.spout("alone", hs.Log("x"), schema="n BIGINT").bolt(noted, name="noted_alone", returns="n BIGINT")
    alone.union("twice", alone).fold("f", k=hs.sum("n"))
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        driver.feed("numbers", [{"n": 1}, {"n": 2}], 0)
        driver.feed("numbers", [{"n": 3}], 1)
        driver.feed("alone", [{"n": 100}])
        driver.advance()
        assert sorted(calls.read_text().split()) == ["1", "100", "2", "3"]
        assert driver.table("b") == [{"k": 6}]
        assert driver.table("e") == [{"k": 3}]
        assert driver.table("f") == [{"k": 200}]
        assert driver.ledger.head.rows == 4


def test_prepared_plans_have_nothing_that_spark_would_reuse(spark: SparkSession) -> None:
    """A shuffle, a broadcast or a subquery would give a tick the rows of the tick before."""
    plan = compile_topology(spark, every_step(), 1)
    for frame in (job.frame for job in plan.waves):
        text = frame._jdf.queryExecution().executedPlan().toString()
        for word in ("Exchange", "Subquery", "InMemory"):
            assert word not in text, text


def test_with_one_task_all_folds_of_a_stream_are_one_job(spark: SparkSession) -> None:
    storm = hs.Topology("fan")
    rows = storm.spout("rows", hs.Log("x"), schema="a STRING, x INT")
    for number in range(3):
        rows.select(f"key_{number}", key=f"x % {number + 2}").fold(f"by_{number}", by="key", n=hs.count())
    rows.fold("by_a", by="a", n=hs.count())
    assert len(compile_topology(spark, storm, tasks=1).waves) == 1
    assert len(compile_topology(spark, storm, tasks=2).waves) == 3  # read, group what each task has, and fold it
    with Driver(storm, spark, tasks=(1,)) as driver:
        driver.feed("rows", [{"a": "u", "x": 1}, {"a": None, "x": 2}, {"a": "u", "x": 3}])
        driver.advance()
        assert driver.table("by_a") == [{"a": "u", "n": 2}]
        assert sorted(row["n"] for row in driver.table("by_0")) == [1, 2]
        assert [error["reason"] for error in driver.errors()] == ["the key is null"]


@pytest.mark.parametrize("tasks", [0, 1, 2], ids=["resident", "prepared", "planned"])
def test_a_predicate_that_is_always_false_takes_nothing_from_the_steps_before_it(
    spark: SparkSession, tasks: int
) -> None:
    storm = hs.Topology("nothing")
    rows = storm.spout("rows", hs.Log("x"), schema="a STRING, n INT")
    counts = rows.fold("counts", by="a", n=hs.count())
    counts.where("none", "false").fold("of_none", by="n", n_keys=hs.count())
    rows.sql("unknown", "SELECT a FROM rows WHERE n > 1 AND cast(NULL AS BOOLEAN)").sink("out", hs.Call(print))
    with Driver(storm, spark, tasks=(tasks,)) as driver:
        for _ in range(2):
            driver.feed("rows", [{"a": "x", "n": 1}])
            driver.advance()
        assert driver.table("counts") == [{"a": "x", "n": 2}]
        assert len(driver.rows("rows")) == 2
        assert driver.rows("none") == driver.rows("unknown") == driver.table("of_none") == []
