"""What a bolt's function takes and gives is looked at when it is declared: certain mistakes only, no false alarms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import hailstorm as hs
from hailstorm.cli.app import app
from hailstorm.errors import TopologyError
from hailstorm.topology.given import never_given
from hailstorm.topology.schema import Schema

RETURNS = "word STRING, n INT"
Function = Callable[..., Any]


def declare(function: Function, returns: str = RETURNS) -> hs.Stream:
    lines = hs.Topology("t").spout("lines", hs.Log("x"), schema="text STRING")
    return lines.bolt(function, name="bolt", returns=returns)


def plain(row: Any) -> Any:
    return {"word": row.text, "n": 1}


def partly(row: Any) -> Any:
    if not row.text:
        return None
    if row.text == "a":
        return {"word": "a"}
    return {"n": 2}


def computed(row: Any) -> Any:
    made = {"nothing": 1}
    return {**made, "word": 1} if row else dict(made)


def generator(row: Any) -> Iterator[Any]:
    yield {"word": row.text}
    yield from ({"anything": 1} for _ in ())
    return "the value of return is nothing here"


def with_inner(row: Any) -> Any:
    def inner() -> Any:
        return {"other": "names", "of": "its own"}

    return [{"word": str(inner()), "n": i} for i in range(3)]


def with_default(row: Any, factor: int = 2, *rest: Any, **more: Any) -> Any:
    return {"n": factor}


class Callable_:
    def __call__(self, row: Any) -> Any:
        return {"word": "x"}


def logged(function: Function) -> Function:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args, "more")

    return wrapper


@logged
def wrapped(row: Any, more: Any) -> Any:
    return {"else": 1}


@pytest.mark.parametrize(
    "function",
    [
        plain,
        partly,
        computed,
        generator,
        with_inner,
        with_default,
        Callable_(),
        wrapped,
        functools.partial(lambda more, row: {"n": more}, 1),
        lambda row: None,
        lambda row: [{"n": 1}, {"word": "a"}],
        lambda *rows: rows[0].asdict(),
        dict,
        len,
    ],
)
def test_a_function_that_may_be_right_is_taken(function: Function) -> None:
    declare(function)


def two(row: Any, other: Any) -> Any:
    return {}


def text(row: Any) -> Any:
    return f"<{row.text}>" if row.text else None


def misspelt(row: Any) -> Iterator[Any]:
    for word in row.text.split():
        yield {"wrd": word, "n": 1}


@pytest.mark.parametrize(
    ("function", "returns", "code", "says"),
    [
        (two, RETURNS, "032", "(row: 'Any', other: 'Any')"),
        (lambda: {"n": 1}, RETURNS, "032", "()"),
        (text, RETURNS, "033", "a text"),
        (misspelt, RETURNS, "034", "Did you mean 'word'?"),
        (lambda row: [{"n": 1}, {"m": 1}], RETURNS, "034", "gives 'm'"),
        (lambda row: {"word": "a"}, "word STRING, n INT NOT NULL", "034", "does not give 'n', which is NOT NULL"),
    ],
)
def test_what_can_never_be_right_is_refused(function: Function, returns: str, code: str, says: str) -> None:
    with pytest.raises(TopologyError, match=f"HS-TOP-{code}") as caught:
        declare(function, returns)
    assert says in str(caught.value)


def test_columns_that_no_result_has_are_known() -> None:
    returns = Schema.parse("word STRING, n INT, at TIMESTAMP")
    assert never_given(plain, returns) == never_given(partly, returns) == ("at",)
    assert never_given(computed, returns) == never_given(generator, returns) == ()


def test_check_finds_a_column_that_no_result_has(tmp_path: Path) -> None:
    file = tmp_path / "app.py"
    file.write_text("""
import hailstorm as hs

storm = hs.Topology("t")
lines = storm.spout("lines", hs.Log("x"), schema="text STRING")


@lines.bolt(returns="word STRING, n INT")
def words(line):
    for word in line.text.split():
        yield {"word": word}


words.fold("counts", by="word", n=hs.sum("n"))
""")
    done = CliRunner().invoke(app, ["check", str(file)])
    assert isinstance(done.exception, TopologyError)
    assert "bolt 'words' never gives 'n'" in str(done.exception)


def test_an_arrow_function_takes_one_batch() -> None:
    lines = hs.Topology("t").spout("lines", hs.Log("x"), schema="text STRING")
    with pytest.raises(TopologyError, match="called with a batch"):
        lines.arrow("bolt", two, returns=RETURNS)  # type: ignore[arg-type]
