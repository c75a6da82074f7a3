"""Row bolts: a row that fails is refused as a whole, every other row goes on, and the function runs once for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.columns import HIDDEN
from hailstorm.engine.stages import bolt
from hailstorm.engine.stages.bolt import RowBolt
from hailstorm.engine.stages.order import Order, Report
from hailstorm.engine.stages.task import Task

RETURNS = pa.schema([("n", pa.int64()), pa.field("word", pa.string(), nullable=False)])


def ran(function: Callable[[Any], Any], values: list[int | None]) -> tuple[list[tuple[Any, Any, Any]], dict[int, str]]:
    """What came out (n, word, offset), and why records were refused, by offset."""
    count = len(values)
    hidden = [
        pa.repeat("s", count),
        pa.repeat(pa.scalar(0, pa.int32()), count),
        pa.array(range(count)),
        pa.nulls(count),
    ]
    typed = [array.cast(field.type) for array, field in zip(hidden, HIDDEN, strict=True)]
    batch = pa.RecordBatch.from_arrays([pa.array(values, pa.int64()), *typed], names=["x", *HIDDEN.names])
    task = Task(Order(ledger="", cache="", scratch="", seq=1, epoch=1, now=0), 0, Report("test"))
    made = list(RowBolt("b", function, ("x",), RETURNS, "dead-letter", None)(iter([batch]), task))
    rows = [(r["n"], r["word"], r["_offset"]) for one in made for r in one.to_pylist()]
    return rows, {letter[2]: letter[4] for letter, _ in task.letters if letter[2] is not None}


@pytest.fixture(autouse=True, params=[2, 1000])
def _pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bolt, "_ROWS_AT_ONCE", request.param)


def test_a_row_that_raises_is_refused_and_the_others_are_called_once() -> None:
    calls = []

    def function(row: Any) -> dict[str, Any]:
        calls.append(row.x)
        return {"n": 10 // row.x, "word": "w"}

    rows, refused = ran(function, [1, 0, 2, 0, 5])
    assert rows == [(10, "w", 0), (5, "w", 2), (2, "w", 4)]
    assert calls == [1, 0, 2, 0, 5]
    assert sorted(refused) == [1, 3]
    assert refused[1].startswith("ZeroDivisionError")


def test_a_stop_iteration_does_not_end_the_batch() -> None:
    def function(row: Any) -> dict[str, Any]:
        if row.x == 2:
            raise StopIteration
        return {"n": row.x, "word": "w"}

    rows, refused = ran(function, [1, 2, 3])
    assert [n for n, _, _ in rows] == [1, 3]
    assert "StopIteration" in refused[1]


def test_a_result_that_cannot_be_gone_through_does_not_end_the_batch() -> None:
    class Ended:
        def __iter__(self) -> Iterator[dict[str, Any]]:
            raise StopIteration

    rows, refused = ran(lambda row: Ended() if row.x == 2 else [{"n": row.x, "word": "w"}], [1, 2, 3])
    assert [(n, offset) for n, _, offset in rows] == [(1, 0), (3, 2)]
    assert "StopIteration" in refused[1]


def test_a_generator_that_raises_half_way_gives_nothing() -> None:
    def function(row: Any) -> Iterator[dict[str, Any]]:
        yield {"n": 1, "word": "first"}
        if row.x is None:
            raise ValueError("half way")
        yield {"n": 2, "word": "second"}

    rows, refused = ran(function, [7, None, 8])
    assert [(n, offset) for n, _, offset in rows] == [(1, 0), (2, 0), (1, 2), (2, 2)]
    assert list(refused) == [1]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"n": 1, "word": "w", "z": 1}, "which it does not declare"),
        ({"n": 1, "wort": "w"}, "which it does not declare"),
        ({"n": 1}, "NOT NULL"),
        ({"n": 1, "word": None}, "NOT NULL"),
        ({"n": "one", "word": "w"}, "'n' is BIGINT, which does not hold 'one' (str)"),
        ({"n": 2**70, "word": "w"}, "'n' is BIGINT, which does not hold 1180591620717411303424 (int)"),
        ({"n": 0.5, "word": "w"}, "'n' is BIGINT, which does not hold 0.5 (float)"),
        ("text", "'b' gave 'text' (str), and a row is a dict"),
        ([5], "'b' gave 5 (int), and a row is a dict"),
        (5, "'b' gave 5 (int), and a row is a dict"),
    ],
)
def test_what_is_not_as_declared_is_refused_alone(bad: Any, reason: str) -> None:
    rows, refused = ran(lambda row: bad if row.x == 1 else [{"n": 5, "word": "w"}], [0, 1, 2])
    assert [(n, offset) for n, _, offset in rows] == [(5, 0), (5, 2)]
    assert reason in refused[1]


def test_columns_are_attributes_or_asked_for_by_name_and_what_is_no_column_says_which_there_are() -> None:
    odd = bolt.row_type(("text", "two words", "count"))(("a", 1, 2))
    assert (odd.text, odd["text"], odd["two words"], odd.count, odd["count"]) == ("a", "a", 1, 2, 2)
    assert (odd[0], odd[1:], [*odd]) == ("a", (1, 2), ["a", 1, 2])
    assert odd.asdict() == {"text": "a", "two words": 1, "count": 2}
    for wrong in (lambda: odd.txet, lambda: odd["txet"], lambda: odd["index"]):
        with pytest.raises(AttributeError, match=r"the row has no '(txet|index)'; it has: text, two words, count"):
            wrong()


def test_a_missing_column_that_may_be_null_is_null_and_none_is_no_row() -> None:
    rows, refused = ran(lambda row: {"word": "w"} if row.x else None, [0, 1])
    assert rows == [(None, "w", 1)]
    assert not refused


@pytest.mark.parametrize("type_", [pa.int64(), pa.float64(), pa.timestamp("us", tz="UTC"), pa.timestamp("us")], ids=str)
def test_columns_become_the_values_that_arrow_has_for_them_nulls_too(type_: pa.DataType) -> None:
    column = pa.array([1, None, -5, 0], pa.int64()).cast(type_)
    assert bolt.as_list(column) == column.to_pylist()
    assert bolt.as_list(column.slice(2)) == column.slice(2).to_pylist()
