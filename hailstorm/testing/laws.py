"""The laws of monoids, checked with hypothesis: `check_laws(Longest("text"))`.

`hailstorm check` calls it for every monoid of the user's own, and users call it in their tests. A broken law is a
LawError with the smallest counterexample that was found:

    HS-LAW-001  a state does not fit its type       HS-LAW-004  merge is not associative
    HS-LAW-002  zero is not neutral                 HS-LAW-005  merge changes its arguments
    HS-LAW-003  merge is not commutative            HS-LAW-006  a method raises
    HS-LAW-007  nothing can be made to check it with
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from hailstorm.algebra.monoid import AnyMonoid, Monoid, SqlMonoid
from hailstorm.errors import LawError, Location
from hailstorm.testing.inputs import canonical, values
from hailstorm.topology.arrow_types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = tuple[Any, ...]
Cut = tuple[list[Row], list[Row], list[Row]]  # three ticks

_CUTTING = "is not associative: how the input is cut into ticks would change the result"
# What lift is tried with when nobody has said what it takes.
_GUESSES = ("string", "bigint", "double", "boolean", "timestamp", "decimal(10,2)", "date", "array<string>")


def check_laws(
    monoid: AnyMonoid,
    inputs: SearchStrategy[Any] | None = None,
    *,
    types: Sequence[str] | None = None,
    examples: int = 100,
    spark: SparkSession | None = None,
) -> None:
    """Look for rows on which the monoid breaks a law; raise LawError with the smallest found.

    Rows are made from `inputs` (a strategy for what lift takes: a tuple, or one value when it takes one), else from
    `types`, else from the monoid's own `takes`, else from types on which lift works. The same rows every time.
    A native monoid is checked in Spark, with three jobs however many examples.
    """
    if isinstance(monoid, SqlMonoid):
        from hailstorm.testing.native_laws import check_native_laws

        return check_native_laws(monoid, types, examples, spark)
    assert isinstance(monoid, Monoid)
    laws = _Laws(monoid, arrow_type(canonical(monoid.state)), arrow_type(canonical(monoid.value or monoid.state)))
    rows = _rows(laws, inputs, types)
    for law in laws.all():
        _search(law, rows, examples, monoid)


class Broken(Exception):
    """A law does not hold for these rows. Hypothesis looks for smaller rows that raise it, too."""

    def __init__(self, number: int, what: str, facts: Sequence[str], method: str = "merge") -> None:
        self.number, self.what, self.facts, self.method = number, what, facts, method
        super().__init__(what)


@dataclass(frozen=True)
class _Laws:
    monoid: Monoid
    state_type: pa.DataType
    value_type: pa.DataType

    def all(self) -> tuple[Callable[[Cut], None], ...]:
        """One after the other, so that a counterexample is not made smaller until it breaks another law."""
        return self.fits, self.neutral, self.commutative, self.associative, self.at_once

    def fits(self, cut: Cut) -> None:
        """Every state and value can be stored, and no method raises or changes its arguments."""
        a, b, _ = (self._state(rows) for rows in cut)
        self._stored(self._call("present", self._merge(a, b)), "present", self.value_type)

    def neutral(self, cut: Cut) -> None:
        (a, *_), facts = self._states(cut, 1)
        zero = self._stored(self._call("zero"), "zero")
        what = "has a zero that is not neutral: a key's first tick would change the result"
        self._equal(2, what, facts, ("merge(zero, a)", self._merge(zero, a)), ("a", a))

    def commutative(self, cut: Cut) -> None:
        (a, b), facts = self._states(cut, 2)
        what = "is not commutative: the order of the input would change the result"
        self._equal(3, what, facts, ("merge(a, b)", self._merge(a, b)), ("merge(b, a)", self._merge(b, a)))

    def associative(self, cut: Cut) -> None:
        (a, b, c), facts = self._states(cut, 3)
        left, right = self._merge(self._merge(a, b), c), self._merge(a, self._merge(b, c))
        self._equal(4, _CUTTING, facts, ("merge(merge(a, b), c)", left), ("merge(a, merge(b, c))", right))

    def at_once(self, cut: Cut) -> None:
        """The same law where rows of one tick do not meet the ledger in between: it may keep a state only roughly."""
        (a, b), facts = self._states(cut, 2)
        whole = self._state([*cut[0], *cut[1]])
        self._equal(4, _CUTTING, facts, ("merge(a, b)", self._merge(a, b)), ("the state of all these rows", whole))

    def _states(self, cut: Cut, count: int) -> tuple[list[Any], list[str]]:
        """The states of the first ticks, and how to show them."""
        states = [self._state(rows) for rows in cut[:count]]
        named = zip("abc", states, cut, strict=False)
        return states, [f"{name} = {state!r}, the state of {rows}" for name, state, rows in named]

    def _state(self, rows: list[Row]) -> Any:
        """What the engine makes of one tick's rows, and keeps in the ledger.

        Without a zero in front, which would hide that it is not neutral. And not stored in between: merge meets both
        what lift gives and what the ledger gives back.
        """
        if not rows:
            return self._stored(self._call("zero"), "zero")
        first, *others = (self._call("lift", *row) for row in rows)
        total = self._stored(first, "lift")
        for lifted in others:
            total = self._call("merge", total, lifted)
        return self._stored(total, "merge")

    def _merge(self, a: Any, b: Any) -> Any:
        before = copy.deepcopy((a, b))
        merged = self._stored(self._call("merge", a, b), "merge")
        if (a, b) != before:
            facts = [f"before: a = {before[0]!r}, b = {before[1]!r}", f"after:  a = {a!r}, b = {b!r}"]
            raise Broken(5, "changes its arguments in merge: return a new state instead", facts)
        return merged

    def _call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.monoid, method)(*arguments)
        except Exception as error:
            fact = f"{method}({', '.join(map(repr, arguments))}) raises {type(error).__name__}: {error}"
            raise Broken(6, f"raises in {method}", [fact], method) from error

    def _stored(self, state: Any, method: str, type_: pa.DataType | None = None) -> Any:
        """The state as the ledger gives it back: a set has become an error, a tuple a list."""
        type_ = type_ or self.state_type
        try:
            return pa.array([state], type_).to_pylist()[0]
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as error:
            declared = self.monoid.state if type_ is self.state_type else self.monoid.value
            facts = [f"{method} gave {state!r}", str(error)]
            raise Broken(1, f"gives from {method} what does not fit {declared}", facts, method) from error

    def _equal(
        self, number: int, what: str, facts: Sequence[str], left: tuple[str, Any], right: tuple[str, Any]
    ) -> None:
        if not same(left[1], right[1], None if self.monoid.exact else 1e-6):
            raise Broken(number, what, [*facts, *(f"{text} = {state!r}" for text, state in (left, right))])


def same(a: Any, b: Any, tolerance: float | None) -> bool:
    """Whether two states or values are equal; NaN equals NaN. With a tolerance, numbers may differ by that part."""
    if isinstance(a, float | Decimal) and isinstance(b, float | Decimal):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b if tolerance is None else math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], tolerance) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y, tolerance) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def cuts(rows: SearchStrategy[Row]) -> SearchStrategy[Cut]:
    tick = st.lists(rows, max_size=4)
    return st.tuples(tick, tick, tick)


def search(check: Callable[[Cut], None], rows: SearchStrategy[Row], examples: int, phases: Sequence[Phase]) -> None:
    """Run the check on many cuts, the same ones every time; what it raises last is the smallest failure."""
    quiet = settings(
        max_examples=examples,
        database=None,
        derandomize=True,
        deadline=None,
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        phases=phases,
        suppress_health_check=list(HealthCheck),
    )
    quiet(given(cuts(rows))(check))()


def law_error(monoid: AnyMonoid, broken: Broken, at: Location | None) -> LawError:
    return LawError(broken.number, f"{type(monoid).__name__} {broken.what}", at=at, hint="\n".join(broken.facts))


def _search(law: Callable[[Cut], None], rows: SearchStrategy[Row], examples: int, monoid: Monoid) -> None:
    try:
        search(lambda cut: law(cut), rows, examples, (Phase.generate, Phase.shrink))
    except Broken as broken:
        code = inspect.unwrap(getattr(type(monoid), broken.method)).__code__
        raise law_error(monoid, broken, Location(code.co_filename, code.co_firstlineno)) from broken.__cause__


def _rows(laws: _Laws, inputs: SearchStrategy[Any] | None, types: Sequence[str] | None) -> SearchStrategy[Row]:
    if inputs is not None:
        return inputs.map(lambda row: row if isinstance(row, tuple) else (row,))
    known = types or laws.monoid.takes
    if known is not None:
        return st.tuples(*(values(canonical(type_)) for type_ in known))
    for guess in product(_GUESSES, repeat=len(laws.monoid.inputs)):
        if _takes(laws, st.tuples(*map(values, guess))):
            return st.tuples(*map(values, guess))
    name = type(laws.monoid).__name__
    advice = f'Say in the class {name} what lift takes, takes = ("STRING",), or give check_laws types=["STRING"].'
    raise LawError(7, f"nothing was found that {name}.lift takes", hint=advice)


def _takes(laws: _Laws, rows: SearchStrategy[Row]) -> bool:
    """Whether lift gives a state for a few such rows."""

    def lift(cut: Cut) -> None:
        for row in (row for tick in cut for row in tick):
            laws._stored(laws._call("lift", *row), "lift")

    try:
        search(lift, rows, 20, (Phase.generate,))
    except Broken:
        return False
    return True
