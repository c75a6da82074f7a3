"""The laws of native monoids, in Spark: what `check_laws` does for an SQL monoid.

All examples go through three jobs together: lift every tick, merge pairs, merge triples. So the counterexample is the
smallest of the examples, and not one that was made smaller.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import Phase
from hypothesis import strategies as st

from hailstorm.algebra.monoid import Pieces, SqlMonoid, TypeRefused
from hailstorm.columns import EVENT_TIME, OFFSET, PARTITION, SPOUT, TICK
from hailstorm.testing.inputs import canonical, values
from hailstorm.testing.laws import Broken, Cut, law_error, same, search

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WHOLE = 3  # the number of the tick that has all rows
_START = datetime(2026, 1, 1, tzinfo=UTC)


def check_native_laws(
    monoid: SqlMonoid, types: Sequence[str] | None, examples: int, spark: SparkSession | None
) -> None:
    if spark is None:
        from hailstorm.engine.spark.session import start_session

        spark = start_session("laws", master="local[2]")
    known = tuple(map(canonical, types)) if types is not None else _accepted_types(monoid)
    found: list[Cut] = []
    nullable = st.tuples(*(st.none() | values(type_) for type_ in known))
    search(lambda cut: found.append(cut), nullable, examples, (Phase.generate,))
    pieces = _over_columns(monoid).pieces(known)
    ticks = _lifted(spark, pieces, known, found)
    pairs = _selected(spark, ticks, {
        "a": "a", "c": "c", "whole": "whole",
        "ab": _merge(pieces, "a", "b"), "ba": _merge(pieces, "b", "a"), "bc": _merge(pieces, "b", "c"),
    })  # fmt: skip
    compared = ("ab", "ba", "ab_c", "a_bc", "whole")
    triples = {"ab": "ab", "ba": "ba", "whole": "whole"}
    triples |= {"ab_c": _merge(pieces, "ab", "c"), "a_bc": _merge(pieces, "a", "bc")}
    states = _selected(spark, pairs, triples)
    if not pieces.exact:  # two sketches of the same rows may differ, but not in what they say
        states = _selected(spark, states, {name: pieces.present.replace("{s}", f"`{name}`") for name in compared})
    broken = [_broken(cut, row, pieces.exact) for cut, row in zip(found, states.to_pylist(), strict=True)]
    smallest = min((b for b in broken if b is not None), key=lambda b: len("".join(b.facts)), default=None)
    if smallest is not None:
        raise law_error(monoid, smallest, None)


def _broken(cut: Cut, row: dict[str, Any], exact: bool) -> Broken | None:
    facts = [f"{name} = lift({rows})" for name, rows in zip("abc", cut, strict=True)]
    laws = (
        (3, "is not commutative", "ab", "ba"),
        (4, "is not associative", "ab_c", "a_bc"),
        (4, "gives another state for all rows at once than for three ticks", "ab_c", "whole"),
    )
    for number, what, left, right in laws:
        if not same(row[left], row[right], None if exact else 1e-6):
            return Broken(number, what, [*facts, f"{left} = {row[left]}", f"{right} = {row[right]}"])
    return None


def _accepted_types(monoid: SqlMonoid) -> tuple[str, ...]:
    """The first types that the monoid does not refuse."""
    refused: TypeRefused | None = None
    for guess in product(("bigint", "string", "boolean", "timestamp"), repeat=len(monoid.inputs)):
        try:
            monoid.pieces(guess)
            return guess
        except TypeRefused as error:
            refused = error
    assert refused is not None
    raise refused


def _over_columns(monoid: SqlMonoid) -> SqlMonoid:
    """The same monoid over the columns _0, _1 ... instead of the user's expressions."""
    columns = {text: f"_{i}" for i, text in enumerate(monoid.inputs)}
    # mypy sees the base class only, which is no dataclass itself; every native monoid is.
    arguments = {f.name: getattr(monoid, f.name) for f in dataclasses.fields(monoid)}  # type: ignore[arg-type]
    renamed = {name: columns[text] for name, text in arguments.items() if isinstance(text, str) and text in columns}
    return dataclasses.replace(monoid, **renamed)  # type: ignore[type-var]


def _lifted(spark: SparkSession, pieces: Pieces, types: tuple[str, ...], found: list[Cut]) -> pa.Table:
    """The state of each tick of each example, and of all three at once: a row an example."""
    from pyspark.sql.functions import expr

    rows = []
    for example, cut in enumerate(found):
        offset = 0
        for tick, tick_rows in enumerate(cut):
            for row in tick_rows:
                hidden = ("laws", 0, offset, _START + timedelta(seconds=offset // 2))
                rows += [(example, tick, *row, *hidden), (example, _WHOLE, *row, *hidden)]
                offset += 1
    columns = ", ".join([f"_example int, {TICK} int", *(f"_{i} {type_}" for i, type_ in enumerate(types))])
    schema = f"{columns}, {SPOUT} string, {PARTITION} int, {OFFSET} bigint, {EVENT_TIME} timestamp"
    lifted = spark.createDataFrame(rows, schema).groupBy("_example", TICK).agg(expr(pieces.lift).alias("state"))
    ticks = {"a": 0, "b": 1, "c": 2, "whole": _WHOLE}
    wide = lifted.groupBy("_example").agg(
        *(expr(f"any_value(state) filter (where {TICK} = {tick})").alias(name) for name, tick in ticks.items())
    )
    everyone = spark.range(len(found)).selectExpr("cast(id as int) as _example")  # an example may have no rows at all
    return everyone.join(wide, "_example", "left").orderBy("_example").toArrow()


def _merge(pieces: Pieces, a: str, b: str) -> str:
    merge = pieces.merge.replace("{a}", f"`{a}`").replace("{b}", f"`{b}`")
    return f"case when `{a}` is null then `{b}` when `{b}` is null then `{a}` else {merge} end"


def _selected(spark: SparkSession, table: pa.Table, columns: dict[str, str]) -> pa.Table:
    texts = ["_example", *(f"{text} as `{name}`" for name, text in columns.items())]
    return spark.createDataFrame(table).selectExpr(*texts).orderBy("_example").toArrow()
