"""The Arrow pieces obey the laws, on states that hypothesis makes; null is their zero."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hailstorm.algebra as hs
from hailstorm.algebra.monoid import ArrowPieces, SqlMonoid
from hailstorm.algebra.sums import Mean, Sum
from hailstorm.testing.inputs import values
from hailstorm.topology.arrow_types import arrow_type

pytestmark = pytest.mark.slow

CASES: list[tuple[SqlMonoid, tuple[str, ...]]] = [
    (hs.count(), ()),
    (hs.any("x"), ("boolean",)),
    (hs.all("x"), ("boolean",)),
    (hs.sum("x"), ("bigint",)),
    (hs.sum("x"), ("decimal(12,3)",)),
    (hs.mean("x"), ("int",)),
    (hs.mean("x"), ("decimal(12,3)",)),
    *((hs.max("x"), (type_,)) for type_ in ("int", "double", "string", "binary", "boolean", "date", "timestamp")),
    (hs.max("x"), ("decimal(9,2)",)),
    *((hs.min("x"), (type_,)) for type_ in ("bigint", "float", "string", "boolean", "timestamp_ntz")),
    (hs.latest("x", by="y"), ("string", "double")),
    (hs.earliest("x"), ("decimal(9,2)",)),
]  # fmt: skip
NAMES = [f"{monoid.describe()['monoid']}{types}" for monoid, types in CASES]


def arrow_pieces(monoid: SqlMonoid, types: tuple[str, ...]) -> tuple[ArrowPieces, str, str]:
    pieces = monoid.pieces(types)
    assert pieces.arrow is not None
    return pieces.arrow, pieces.state_type, pieces.value_type


def states(type_: str, monoid: SqlMonoid) -> st.SearchStrategy[Any]:
    """States as they come: counts are not negative, totals leave room, and only values may be null or NaN."""
    if type_ == "struct<yes:bigint,n:bigint>":
        return st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda c: {"yes": min(c), "n": max(c)})
    if type_.startswith("struct<sum"):
        exact = arrow_type(type_).field("sum").type
        if isinstance(monoid, Mean) and exact.scale:  # a mean has no more digits than the values
            some = st.lists(st.integers(1 - 10**12, 10**12 - 1), max_size=9)
            return some.map(lambda digits: {"sum": Decimal(sum(digits)).scaleb(-exact.scale), "n": len(digits)})
        total = st.integers(-(10**30), 10**30).map(lambda digits: Decimal(digits).scaleb(-exact.scale))
        return st.fixed_dictionaries({"sum": total, "n": st.integers(0, 9)})
    if type_.startswith("struct<by"):
        by, value = (arrow_type(type_).field(name).type for name in ("by", "value"))
        some_by = st.sampled_from([1.0, 2.0, float("nan")]) if pa.types.is_floating(by) else st.none()
        some_value = st.none() | (st.text(max_size=2) if pa.types.is_string(value) else values("decimal(9,2)"))
        few = st.integers(0, 1)
        return st.fixed_dictionaries(
            {"by": some_by, "_spout": st.sampled_from("st"), "_partition": few, "_offset": few, "value": some_value}
        )
    if type_ in ("double", "float"):
        return st.sampled_from([float("nan"), float("inf"), -1.5, 0.0, 3.0])
    return values(type_)


@pytest.mark.parametrize(("monoid", "types"), CASES, ids=NAMES)
def test_arrow_merges_are_commutative_and_associative_and_have_null_as_zero(
    monoid: SqlMonoid, types: tuple[str, ...]
) -> None:
    arrow, state_type, value_type = arrow_pieces(monoid, types)
    column = st.lists(st.none() | states(state_type, monoid), min_size=5, max_size=5)

    @given(column, column, column)
    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    def laws(x: list[Any], y: list[Any], z: list[Any]) -> None:
        a, b, c = (pa.array(column, arrow_type(state_type)) for column in (x, y, z))
        zero = pa.nulls(len(a), a.type)
        merge = arrow.merge
        assert shown(merge(a, b)) == shown(merge(b, a))
        assert shown(merge(merge(a, b), c)) == shown(merge(a, merge(b, c)))
        assert shown(merge(zero, a)) == shown(merge(a, zero)) == shown(a)
        # A part of a larger array gives the part of the result: offsets into buffers are minded.
        assert shown(merge(a.slice(2), b.slice(2))) == shown(merge(a, b).slice(2))
        if arrow.present:
            presented = arrow.present(merge(a, b))
            assert presented.type == arrow_type(value_type)
            assert shown(arrow.present(merge(a, b).slice(1, 3))) == shown(presented.slice(1, 3))

    laws()


def shown(column: pa.Array) -> str:
    """repr, because NaN does not equal itself, and 0.0 equals -0.0."""
    return repr(column.to_pylist())


def column_of(type_: str, *rows: Any) -> pa.Array:
    return pa.array(rows, arrow_type(type_))


def test_a_total_that_its_type_cannot_hold_is_null_and_comes_back() -> None:
    arrow, state, _ = arrow_pieces(hs.sum("x"), ("bigint",))
    assert arrow.present is not None
    largest = column_of(state, {"sum": Decimal(2**63 - 1), "n": 1})
    beyond = arrow.merge(largest, column_of(state, {"sum": Decimal(1), "n": 1}))
    assert arrow.present(largest).to_pylist() == [2**63 - 1]
    assert arrow.present(beyond).to_pylist() == [None]
    back = arrow.merge(beyond, column_of(state, {"sum": Decimal(-5), "n": 1}))
    assert arrow.present(back).to_pylist() == [2**63 - 5]

    arrow, state, _ = arrow_pieces(hs.sum("x"), ("decimal(2,1)",))
    assert arrow.present is not None
    totals = column_of(state, *({"sum": Decimal(t), "n": 1} for t in ("99999999999.9", "100000000000.0", "-1.5")))
    assert arrow.present(totals).to_pylist() == [Decimal("99999999999.9"), None, Decimal("-1.5")]

    arrow, state, _ = arrow_pieces(hs.sum("x"), ("decimal(20,2)",))
    assert arrow.present is not None
    totals = column_of(state, *({"sum": Decimal(t), "n": 1} for t in ("9" * 28 + ".99", "1" + "0" * 28, "-1.5")))
    assert arrow.present(totals).to_pylist() == [Decimal("9" * 28 + ".99"), None, Decimal("-1.5")]


def test_a_mean_beyond_a_bigint_is_rounded_to_the_nearest() -> None:
    arrow, state, _ = arrow_pieces(hs.mean("x"), ("bigint",))
    assert arrow.present is not None
    totals = [10**25 + 1, -(10**30), 2**63, 2**53 + 1]
    means = arrow.present(column_of(state, *({"sum": Decimal(t), "n": 1} for t in totals), None, {"sum": 0, "n": 0}))
    assert means.to_pylist() == [*map(float, totals), None, None]


def test_a_mean_of_decimals_is_rounded_half_up_once() -> None:
    arrow, state, value = arrow_pieces(hs.mean("x"), ("decimal(28,3)",))
    assert arrow.present is not None
    sums = [("-0.010", 3), ("0.001", 20_000), ("-0.001", 20_000), ("0.001", 20_001), ("9" * 25 + ".999", 1), ("1", 0)]
    means = arrow.present(column_of(state, *({"sum": Decimal(total), "n": n} for total, n in sums), None))
    assert means.type == arrow_type(value)
    wanted = ["-0.0033333", "0.0000001", "-0.0000001", "0.0000000", "9" * 25 + ".9990000"]
    assert means.to_pylist() == [*map(Decimal, wanted), None, None]


def test_a_group_without_values_has_no_sum_no_mean_and_no_answer() -> None:
    for monoid in (hs.sum("x"), hs.mean("x"), hs.any("x"), hs.all("x")):
        arrow, state, _ = arrow_pieces(monoid, ("int" if isinstance(monoid, Sum | Mean) else "boolean",))
        assert arrow.present is not None
        empty = {field.name: 0 for field in arrow_type(state)}
        assert arrow.present(column_of(state, empty, None)).to_pylist() == [None, None]
