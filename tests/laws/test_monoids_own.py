"""check_laws as a product: good monoids pass, broken ones are refused with a small counterexample."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from hailstorm.algebra import Monoid
from hailstorm.errors import LawError
from hailstorm.testing import check_laws

pytestmark = pytest.mark.slow


class Longest(Monoid):
    state = "STRING"

    def zero(self) -> str:
        return ""

    def lift(self, text: str) -> str:
        return text

    def merge(self, a: str, b: str) -> str:
        return max(a, b, key=lambda s: (len(s), s))


class Mean(Monoid):
    state = "STRUCT<total: DOUBLE, n: BIGINT>"
    value = "DOUBLE"
    takes = ("DOUBLE",)
    exact = False

    def zero(self) -> dict[str, Any]:
        return {"total": 0.0, "n": 0}

    def lift(self, x: float) -> dict[str, Any]:
        return {"total": x, "n": 1}

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        return {"total": a["total"] + b["total"], "n": a["n"] + b["n"]}

    def present(self, state: dict[str, Any]) -> float | None:
        return state["total"] / state["n"] if state["n"] else None


class MeanOfMeans(Monoid):
    state = "DOUBLE"
    takes = ("DOUBLE",)

    def zero(self) -> None:
        return None

    def lift(self, x: float) -> float:
        return x

    def merge(self, a: float | None, b: float | None) -> float | None:
        if a is None or b is None:
            return b if a is None else a
        return (a + b) / 2


class First(Monoid):
    state = "STRING"
    takes = ("STRING",)

    def zero(self) -> None:
        return None

    def lift(self, text: str) -> str:
        return text

    def merge(self, a: str | None, b: str | None) -> str | None:
        return b if a is None else a


class Product(Monoid):
    state = "DOUBLE"
    takes = ("DOUBLE",)

    def zero(self) -> float:
        return 0.0

    def lift(self, x: float) -> float:
        return x

    def merge(self, a: float, b: float) -> float:
        return a * b


class Appends(Monoid):
    state = "ARRAY<BIGINT>"
    takes = ("BIGINT",)

    def zero(self) -> list[int]:
        return []

    def lift(self, x: int) -> list[int]:
        return [x]

    def merge(self, a: list[int], b: list[int]) -> list[int]:
        a.extend(b)
        a.sort()
        return a


class Seen(Monoid):
    """Works until a state comes back from the ledger: there are no sets in it, so that it comes back as a list."""

    state = "ARRAY<STRING>"
    takes = ("STRING",)

    def zero(self) -> Any:
        return set()

    def lift(self, x: str) -> Any:
        return {x}

    def merge(self, a: Any, b: Any) -> Any:
        return a | b


class Rounded(Monoid):
    state = "INT"
    takes = ("BIGINT",)

    def zero(self) -> int:
        return 0

    def lift(self, x: int) -> int:
        return x

    def merge(self, a: int, b: int) -> int:
        return a + b


class Reciprocals(Monoid):
    state = "DOUBLE"
    takes = ("BIGINT",)

    def zero(self) -> float:
        return 0.0

    def lift(self, x: int) -> float:
        return 1 / x

    def merge(self, a: float, b: float) -> float:
        return max(a, b)


@pytest.mark.parametrize("monoid", [Longest("text"), Mean("x")], ids=["Longest", "Mean"])
def test_a_lawful_monoid_passes(monoid: Monoid) -> None:
    check_laws(monoid)


def refused(monoid: Monoid, **how: Any) -> LawError:
    with pytest.raises(LawError) as caught:
        check_laws(monoid, **how)
    return caught.value


def test_a_mean_of_means_is_refused_with_the_smallest_counterexample() -> None:
    error = refused(MeanOfMeans("x"))
    assert error.code == "HS-LAW-004"
    assert error.what.startswith("MeanOfMeans is not associative")
    assert "a = 0.0, the state of [(0.0,)]" in error.hint
    assert "merge(merge(a, b), c) = " in error.hint
    assert "test_monoids_own.py" in error.render() and "def merge(self, a: float | None" in error.render()


def test_the_first_value_is_refused_because_ticks_have_no_order() -> None:
    error = refused(First("x"))
    assert error.code == "HS-LAW-003"
    assert error.hint.splitlines() == [
        "a = '', the state of [('',)]",
        "b = '0', the state of [('0',)]",
        "merge(a, b) = ''",
        "merge(b, a) = '0'",
    ]


def test_a_wrong_zero_is_refused() -> None:
    error = refused(Product("x"), inputs=st.floats(1, 2))
    assert error.code == "HS-LAW-002"
    assert error.hint.splitlines() == ["a = 1.0, the state of [(1.0,)]", "merge(zero, a) = 0.0", "a = 1.0"]


def test_a_merge_that_changes_its_arguments_is_refused() -> None:
    error = refused(Appends("x"))
    assert error.code == "HS-LAW-005"
    assert error.hint.splitlines() == ["before: a = [], b = [0]", "after:  a = [0], b = [0]"]


def test_a_state_that_the_ledger_cannot_hold_is_refused() -> None:
    error = refused(Rounded("x"))
    assert error.code == "HS-LAW-001"
    assert error.what == "Rounded gives from lift what does not fit INT"


def test_a_merge_that_forgets_what_the_ledger_gives_back_is_refused() -> None:
    error = refused(Seen("x"))
    assert error.code == "HS-LAW-006"
    assert error.hint == "merge([], []) raises TypeError: unsupported operand type(s) for |: 'list' and 'list'"


def test_a_lift_that_raises_is_refused_with_its_argument() -> None:
    error = refused(Reciprocals("x"))
    assert error.code == "HS-LAW-006"
    assert error.hint == "lift(0) raises ZeroDivisionError: division by zero"
    check_laws(Reciprocals("x"), inputs=st.integers(1, 9))


def test_types_can_be_given_and_are_guessed_from_what_lift_takes() -> None:
    assert Longest.takes is None
    check_laws(Longest("text"), types=["STRING"])
    assert refused(Longest("text"), types=["BIGINT"]).what.endswith("what does not fit STRING")


def test_a_monoid_whose_lift_takes_nothing_known_says_how_to_help() -> None:
    class Picky(Longest):
        def lift(self, text: Any) -> str:
            return str(text["deep"]["down"])

    error = refused(Picky("x"))
    assert error.code == "HS-LAW-007"
    assert "takes = " in error.hint


def test_the_search_finds_the_same_counterexample_every_time() -> None:
    assert refused(MeanOfMeans("x")).hint == refused(MeanOfMeans("x")).hint
