"""Every native monoid in Spark: any cut of the rows gives the state of the whole, and it is Spark's own aggregate.

All monoids go through each Spark job together, because a job costs more than the rows in it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hailstorm.algebra as hs
from hailstorm.algebra.monoid import Pieces, SqlMonoid
from hailstorm.topology.arrow_types import arrow_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SCHEMA = (
    "k int, cut int, side int, i int, l bigint, tiny tinyint, d decimal(10,2), wide decimal(28,3), f float, x double, "
    "s string, b binary, flag boolean, day date, at timestamp, kind string, pair struct<p:int,q:string>, "
    "list array<int>, _spout string, _partition int, _offset bigint, _time timestamp"
)
TYPES = {
    "i": "int", "l": "bigint", "tiny": "tinyint", "d": "decimal(10,2)", "wide": "decimal(28,3)", "f": "float",
    "x": "double", "s": "string", "b": "binary", "flag": "boolean", "day": "date", "at": "timestamp",
    "kind": "string", "pair": "struct<p:int,q:string>", "list": "array<int>", "l * 2": "bigint", "i > 0": "boolean",
    "l % 50": "bigint",
}  # fmt: skip
ORDERED = ("i", "l", "tiny", "d", "wide", "f", "x", "s", "b", "flag", "day", "at", "pair", "list")
KEYS, CUTS = 9, 4


@dataclass(frozen=True)
class Case:
    monoid: SqlMonoid
    oracle: str | None = None  # Spark's own aggregate
    close: float | None = None  # the relative tolerance; None: equal to the bit

    @property
    def pieces(self) -> Pieces:
        return self.monoid.pieces(tuple(TYPES[e] for e in self.monoid.inputs))


def origin(order: str) -> str:
    return f"struct({order}, _spout, _partition, _offset)"


CASES = {
    "count": Case(hs.count(), "count(*)"),
    "count_s": Case(hs.count("s"), "count(s)"),
    "any": Case(hs.any("i > 0"), "bool_or(i > 0)"),
    "all": Case(hs.all("flag"), "bool_and(flag)"),
    **{f"sum_{c}": Case(hs.sum(c), f"sum({c})") for c in ("i", "tiny", "d")},
    # Spark's own bigint sum would fail on these values; its decimal sum is as wide as ours.
    "sum_l": Case(hs.sum("l"), "try_cast(sum(cast(l as decimal(28,0))) as bigint)"),
    "sum_wide": Case(hs.sum("wide"), "sum(wide)"),
    "sum_x": Case(hs.sum("x"), "sum(x)", close=1e-12),
    "mean_i": Case(hs.mean("i"), "avg(i)"),
    "mean_l": Case(hs.mean("l"), "avg(cast(l as decimal(28,0)))", close=1e-12),
    "mean_d": Case(hs.mean("d"), "avg(d)"),
    "mean_wide": Case(hs.mean("wide"), "avg(wide)"),
    "mean_x": Case(hs.mean("x"), "avg(x)", close=1e-12),
    **{f"variance_{c}": Case(hs.variance(c), f"variance({c})", close=1e-9) for c in ("i", "l", "d", "x", "wide")},
    "stddev_i": Case(hs.stddev("i"), "stddev(i)", close=1e-9),
    **{f"max_{c}": Case(hs.max(c), f"max({c})") for c in ORDERED},
    **{f"min_{c}": Case(hs.min(c), f"min({c})") for c in ORDERED},
    "latest": Case(hs.latest("s", by="at"), f"max_by(s, {origin('at')}) filter (where at is not null)"),
    "latest_x": Case(hs.latest("x"), f"max_by(x, {origin('_time')})"),
    "earliest": Case(hs.earliest("day", by="i"), f"min_by(day, {origin('i')}) filter (where i is not null)"),
    "earliest_pair": Case(hs.earliest("pair"), f"min_by(pair, {origin('_time')})"),
    "top": Case(hs.top(3, "i"), "slice(sort_array(collect_list(i), false), 1, 3)"),
    "top_of": Case(
        hs.top(2, "d", of="s"),
        "slice(sort_array(collect_list(struct(d as by, s as value)) filter (where d is not null), false), 1, 2)",
    ),
    "set": Case(hs.set("s"), "sort_array(collect_set(s))"),
    "set_list": Case(hs.set("list"), "sort_array(collect_set(list))"),
    "map_sum": Case(hs.map_sum("kind", "l % 50")),
    "map_sum_d": Case(hs.map_sum("day", "d")),
    "histogram": Case(
        hs.histogram("i", -10, 0, 2.5),
        "array(count_if(i < -10), count_if(i >= -10 and i < 0), count_if(i >= 0 and i < 2.5), count_if(i >= 2.5))",
    ),
    "bitmap": Case(hs.bitmap("i"), "count(distinct i)"),
    "frequent": Case(hs.frequent("kind", 3, capacity=50)),
    "count_distinct": Case(hs.count_distinct("s"), "count(distinct s)", close=0.02),
    "count_distinct_pair": Case(hs.count_distinct("pair"), "count(distinct pair)", close=0.02),
    "quantiles": Case(hs.quantiles("i", 0, 0.5, 1), "percentile_disc(0.5) within group (order by i)"),
}  # fmt: skip


def maybe(value: Any) -> Any:
    return None if random.random() < 0.15 else value


def some_rows(count: int) -> list[tuple[Any, ...]]:
    random.seed(7)
    start = datetime(2026, 1, 1, tzinfo=UTC)
    rows = []
    for offset in range(count):
        k = random.randrange(KEYS)
        only_nulls = k == 0
        at = start + timedelta(minutes=random.randrange(30))

        def m(value: Any, only_nulls: bool = only_nulls) -> Any:
            return None if only_nulls else maybe(value)

        big = random.choice((2**63 - 1, -(2**63), 5)) if k == 1 else random.randrange(10**12)
        real = random.choice((0.0, -0.0, math.nan, math.inf)) if k == 2 else random.uniform(-5, 5)
        rows.append((
            k, random.randrange(CUTS), random.choice((1, 1, 1, -1)), m(random.randrange(-20, 20)), m(big),
            m(random.randrange(-128, 128)), m(Decimal(random.randrange(-10**6, 10**6)).scaleb(-2)),
            m(Decimal(random.randrange(10**27)).scaleb(-3)), m(real), m(real),
            m(random.choice("abcdeéfgh") * random.randrange(1, 3)), m(random.randbytes(2)), m(random.random() < 0.9),
            m(date(2026, 1, random.randrange(1, 9))), m(at), m(random.choice("xyz")),
            m((maybe(random.randrange(3)), maybe("q"))), m([random.randrange(3) for _ in range(random.randrange(3))]),
            "spout", offset % 3, offset, at,
        ))  # fmt: skip
    return rows


Cases = Mapping[str, Case]


def lifted(rows: DataFrame, *by: str, cases: Cases = CASES) -> DataFrame:
    from pyspark.sql.functions import expr

    return rows.groupBy(*by).agg(*(expr(case.pieces.lift).alias(name) for name, case in cases.items()))


def merged(spark: SparkSession, left: pa.Table, right: pa.Table, cases: Cases = CASES) -> pa.Table:
    """Merge two tables of states, row by row, as the engine does: in a projection over backquoted names."""
    names = ["k", *(f"a_{n}" for n in cases), *(f"b_{n}" for n in cases)]
    both = pa.table([left["k"], *(left[n] for n in cases), *(right[n] for n in cases)], names=names)
    columns = ("k", *(merge_or_zero(name, case.pieces) for name, case in cases.items()))
    return spark.createDataFrame(both).selectExpr(*columns).toArrow()


def merge_or_zero(name: str, pieces: Pieces) -> str:
    a, b = f"`a_{name}`", f"`b_{name}`"
    merge = pieces.merge.replace("{a}", a).replace("{b}", b)
    return f"case when {a} is null then {b} when {b} is null then {a} else {merge} end as {name}"


def presented(frame: DataFrame, cases: Cases = CASES) -> DataFrame:
    return frame.selectExpr("k", *(f"{c.pieces.present.replace('{s}', f'`{n}`')} as {n}" for n, c in cases.items()))


def by_key(table: pa.Table) -> dict[int, dict[str, Any]]:
    return {row["k"]: row for row in table.to_pylist()}


def same(a: Any, b: Any, close: float | None) -> bool:
    if isinstance(a, float | Decimal) and isinstance(b, float | Decimal):
        if math.isnan(a) or math.isnan(b):
            return math.isnan(a) and math.isnan(b)
        return a == b if close is None else math.isclose(a, b, rel_tol=close, abs_tol=1e-9)
    if isinstance(a, int) and isinstance(b, int) and close is not None:
        return math.isclose(a, b, rel_tol=close)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], close) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(same(x, y, close) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def differences(left: pa.Table, right: pa.Table, names: list[str], close: Callable[[str], float | None]) -> list[str]:
    mine, theirs = by_key(left), by_key(right)
    assert mine.keys() == theirs.keys()
    return [
        f"{name} of key {k}: {mine[k][name]} != {theirs[k][name]}"
        for k in sorted(mine)
        for name in names
        if not same(mine[k][name], theirs[k][name], close(name))
    ]


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    return spark.createDataFrame(some_rows(600), SCHEMA).coalesce(1).persist()


@pytest.fixture(scope="module")
def whole(rows: DataFrame) -> pa.Table:
    return lifted(rows, "k").toArrow()


@pytest.fixture(scope="module")
def values(spark: SparkSession, whole: pa.Table) -> pa.Table:
    return presented(spark.createDataFrame(whole)).toArrow()


@pytest.fixture(scope="module")
def parts(rows: DataFrame) -> list[pa.Table]:
    """The states of each cut, a row for every key: null where the cut has no row of it."""
    cuts = lifted(rows.where("not (cut = 3 and k = 4)"), "k", "cut").toArrow()
    tables = []
    for cut in range(CUTS):
        found = by_key(cuts.filter(pc.equal(cuts["cut"], cut)))
        picked = [found.get(k, {"k": k}) for k in range(KEYS)]
        tables.append(pa.Table.from_pylist(picked, schema=cuts.schema.remove(1)))
    return tables


def test_a_state_and_a_value_have_the_declared_types(rows: DataFrame, values: pa.Table, spark: SparkSession) -> None:
    states = dict(lifted(rows, "k").dtypes)
    presented_types = dict(presented(lifted(rows, "k")).dtypes)
    wrong = [
        (name, states[name], presented_types[name])
        for name, case in CASES.items()
        if (states[name], presented_types[name]) != (case.pieces.state_type, case.pieces.value_type)
    ]
    assert wrong == []


def test_values_are_those_of_sparks_own_aggregates(rows: DataFrame, values: pa.Table) -> None:
    from pyspark.sql.functions import expr

    oracles = {name: case.oracle for name, case in CASES.items() if case.oracle}
    expected = rows.groupBy("k").agg(*(expr(sql).alias(name) for name, sql in oracles.items())).toArrow()
    got = values.set_column(
        values.column_names.index("quantiles"),
        "quantiles",
        pa.array([q and q[1] for q in values["quantiles"].to_pylist()], pa.int64()),
    )
    names = [name for name in oracles if name != "variance_l"]  # the ends of a bigint are beyond Spark's variance
    assert differences(got, expected, names, lambda name: CASES[name].close) == []


def test_maps_and_frequent_values_are_those_of_plain_python(rows: DataFrame, values: pa.Table) -> None:
    expected: dict[int, dict[str, dict[Any, Any]]] = {k: {"l": {}, "d": {}, "n": {}} for k in range(KEYS)}
    for row in rows.select("k", "kind", "day", "l", "d").collect():
        mine = expected[row.k]
        if row.kind is not None:
            mine["n"][row.kind] = mine["n"].get(row.kind, 0) + 1
            if row.l is not None:
                mine["l"][row.kind] = mine["l"].get(row.kind, 0) + (abs(row.l) % 50) * (1 if row.l > 0 else -1)
        if row.day is not None and row.d is not None:
            mine["d"][row.day] = mine["d"].get(row.day, 0) + row.d
    for row in values.to_pylist():
        mine = expected[row["k"]]
        assert row["map_sum"] == sorted(mine["l"].items())
        assert row["map_sum_d"] == sorted(mine["d"].items())
        ranked = sorted(((-n, item) for item, n in mine["n"].items()))
        assert [(-item["count"], item["item"]) for item in row["frequent"]] == ranked


def test_any_cut_and_any_order_of_merges_give_the_state_of_the_whole(
    spark: SparkSession, rows: DataFrame, parts: list[pa.Table]
) -> None:
    whole = lifted(rows.where("not (cut = 3 and k = 4)"), "k").toArrow()
    first, second, third, fourth = parts
    one = merged(spark, merged(spark, first, second), merged(spark, third, fourth))
    other = merged(spark, fourth, merged(spark, merged(spark, third, first), second))
    exact = [name for name, case in CASES.items() if case.pieces.exact or name == "frequent"]
    assert differences(one, whole, exact, lambda name: None) == []
    assert differences(other, whole, exact, lambda name: None) == []
    rest = [name for name in CASES if name not in exact]
    one, other, whole = (presented(spark.createDataFrame(t)).toArrow() for t in (one, other, whole))
    assert differences(one, whole, rest, lambda name: CASES[name].close or 1e-9) == []
    assert differences(other, whole, rest, lambda name: CASES[name].close or 1e-9) == []


def test_arrow_pieces_give_the_bits_of_the_sql_pieces(spark: SparkSession, parts: list[pa.Table]) -> None:
    left, right = parts[0].combine_chunks(), parts[3].combine_chunks()
    in_sql = merged(spark, left, right).combine_chunks()
    values = presented(spark.createDataFrame(in_sql)).toArrow().combine_chunks()
    checked = 0
    for name, case in CASES.items():
        arrow = case.pieces.arrow
        if arrow is None:
            continue
        checked += 1
        state = arrow.merge(left[name].chunk(0), right[name].chunk(0))
        assert repr(state.to_pylist()) == repr(in_sql[name].to_pylist()), name
        assert state.type == left[name].type, name
        value = arrow.present(state) if arrow.present else state
        assert repr(value.to_pylist()) == repr(values[name].to_pylist()), name
        assert value.type == values[name].type, name
    assert checked >= 35


def test_rows_that_are_taken_back_were_never_there(spark: SparkSession, rows: DataFrame) -> None:
    """A tick that adds the rows of cut 3, and takes back some of the others: all of key 7, those of side -1."""
    from pyspark.sql.functions import expr

    cases = {name: case for name, case in CASES.items() if case.pieces.retract}
    assert {"count", "sum_l", "sum_d", "mean_i", "variance_l", "map_sum", "histogram", "any", "all"} <= set(cases)
    before, gone = rows.where("cut < 3"), "(side = -1 or k = 7)"
    came, went = rows.where("cut = 3 and k <> 7"), before.where(gone)
    change = came.selectExpr("*", "1 as sign").union(went.selectExpr("*", "-1 as sign"))
    retracted = ((n, (c.pieces.retract or "").replace("{sign}", "sign")) for n, c in cases.items())
    delta = change.groupBy("k").agg(*(expr(sql).alias(name) for name, sql in retracted))
    after = before.where(f"not {gone}").union(came)
    assert delta.dtypes == lifted(after, "k", cases=cases).dtypes
    states = merged(spark, lifted(before, "k", cases=cases).orderBy("k").toArrow(), delta.orderBy("k").toArrow(), cases)
    expected = lifted(after, "k", cases=cases).toArrow()
    nothing = by_key(states)[7]
    assert (nothing["count"], nothing["map_sum"], nothing["sum_i"]) == (0, [], {"sum": 0, "n": 0})
    states = states.filter(pc.not_equal(states["k"], 7))
    assert differences(states, expected, list(cases), lambda name: None) == []


def test_arrow_lifts_give_the_bits_of_the_sql_lifts(rows: DataFrame, whole: pa.Table) -> None:
    table = rows.drop("pair", "list").toArrow()
    states, checked = by_key(whole), 0
    for name, case in CASES.items():
        lift = case.pieces.arrow.lift if case.pieces.arrow else None
        if lift is None or not case.pieces.exact or not set(case.monoid.inputs) <= set(table.column_names):
            continue
        checked += 1
        for k in range(KEYS):
            group = table.filter(pc.equal(table["k"], k)).combine_chunks()
            inputs = [group[text].chunk(0) for text in case.monoid.inputs]
            prepared = lift.prepare(inputs) if lift.prepare else inputs
            results = [aggregate(None if i is None else prepared[i], how, group) for i, how in lift.aggregates]
            assert repr(lift.state(results).to_pylist()[0]) == repr(states[k][name]), (name, k)
    assert checked >= 15


def aggregate(column: pa.Array | None, how: str, rows: pa.Table) -> pa.Array:
    if column is None:
        return pa.array([rows.num_rows])
    return pa.array([getattr(pc, how)(column).as_py()], pa.int64() if how in ("count", "sum") else column.type)


def test_sums_go_on_beyond_a_bigint_and_come_back(spark: SparkSession) -> None:
    """Spark's own sum fails here, and would fail at every start of the stream."""
    cases = {"l": Case(hs.sum("l")), "mean": Case(hs.mean("l")), "variance": Case(hs.variance("l"))}
    values = [2**63 - 1, 2**63 - 1, -(2**63), -(2**63), 7]
    rows = spark.createDataFrame([(k, v) for k in range(1, 6) for v in values[:k]], "k int, l bigint")
    got = by_key(presented(spark.createDataFrame(lifted(rows, "k", cases=cases).toArrow()), cases).toArrow())
    assert [got[k]["l"] for k in range(1, 6)] == [2**63 - 1, None, 2**63 - 2, -2, 5]
    assert [got[k]["mean"] for k in (2, 4)] == [float(2**63 - 1), -0.5]
    assert got[2]["variance"] == 0.0
    assert math.isclose(got[4]["variance"], 2.0**126 * 4 / 3, rel_tol=1e-12)


@pytest.mark.parametrize("digits, scale", [(28, 3), (28, 0), (5, 2), (28, 18), (22, 22)])
def test_a_mean_of_decimals_is_rounded_half_up_once_in_sql_and_in_arrow(
    spark: SparkSession, digits: int, scale: int
) -> None:
    pieces = hs.mean("x").pieces((f"decimal({digits},{scale})",))
    assert pieces.arrow is not None and pieces.arrow.present is not None
    random.seed(11)
    sums = []
    for n in [random.choice((1, 2, 3, 7, 20_000, 10**9)) for _ in range(2000)]:
        sums.append((random.randrange(-(10**digits) + 1, 10**digits) * n // random.choice((1, 9)), n))
    # Quotients close to the middle of two last digits: rounded twice, some of these go up and should not.
    for n in [random.randrange(10_000, 10**9) for _ in range(4000)]:
        middle = random.randrange(10**digits // 10) * n + n * random.randrange(10_000) // 10_000 + n // 20_000
        sums.append((middle + random.choice((-1, 0, 1)), n))
    with localcontext(prec=60):
        states = [{"sum": Decimal(total).scaleb(-scale), "n": n} for total, n in sums]
        wanted = [_half_up(total * 10_000, n).scaleb(-scale - 4) for total, n in sums]
    column = pa.array(states, arrow_type(pieces.state_type))
    assert pieces.arrow.present(column).to_pylist() == wanted
    frame = spark.createDataFrame(pa.table({"s": column}))
    got = frame.selectExpr(f"{pieces.present.replace('{s}', 's')} as mean").toArrow()["mean"]
    assert got.type == arrow_type(pieces.value_type)
    assert got.to_pylist() == wanted


def _half_up(a: int, b: int) -> Decimal:
    size = (2 * abs(a) + b) // (2 * b)
    return Decimal(-size if a < 0 else size)


def test_variance_keeps_its_digits_when_values_are_large_and_close(spark: SparkSession) -> None:
    cases = {"l": Case(hs.variance("l")), "d": Case(hs.variance("d"))}
    far = "cast(10000000 + (id % 2) / 100 as decimal(10,2)) as d"
    rows = spark.range(1000).selectExpr("1 as k", "1700000000000000 + id % 2 as l", far)
    row = by_key(presented(lifted(rows, "k", cases=cases), cases).toArrow())[1]
    assert math.isclose(row["l"], 0.25 * 1000 / 999, rel_tol=1e-15)
    assert math.isclose(row["d"], 0.25e-4 * 1000 / 999, rel_tol=1e-15)


def test_sketches_stay_within_their_documented_error(spark: SparkSession) -> None:
    """200,000 rows in ten ticks, merged one after the other: the errors of ten merges together."""
    count, ticks, capacity = 200_000, 10, 100
    cases = {
        "different": Case(hs.count_distinct("l")),
        "ranks": Case(hs.quantiles("l", 0.01, 0.5, 0.99)),
        "often": Case(hs.frequent("i", 5, capacity=capacity)),
    }
    # Value i comes with a frequency of about 1 / (i + 1): thousands of values, and five that matter.
    skewed = "cast(pow(5000, pmod(id * 7919, 200003) / 200003) as int) as i"
    columns = ("1 as k", f"id % {ticks} as cut", "pmod(id * 7919, 50021) as l", skewed)
    rows = spark.range(count).selectExpr(*columns).persist()
    parts = lifted(rows, "k", "cut", cases=cases).drop("cut").toArrow()
    total = parts.slice(0, 1)
    for tick in range(1, ticks):
        total = merged(spark, total, parts.slice(tick, 1), cases)
    [row] = presented(spark.createDataFrame(total), cases).toArrow().to_pylist()
    true = {r.i: r["count"] for r in rows.groupBy("i").count().collect()}
    rows.unpersist()

    assert abs(row["different"] - 50021) < 3 * 0.0163 * 50021
    for asked, got in zip((0.01, 0.5, 0.99), row["ranks"], strict=True):
        assert abs(got / 50021 - asked) < 0.0133 * 1.5
    most = sorted(true, key=lambda i: -true[i])[:5]
    assert len(true) > 3000 and true[most[4]] > count / capacity
    assert {item["item"] for item in row["often"]} == set(most)
    assert all(abs(item["count"] - true[item["item"]]) <= count / capacity for item in row["often"])
    assert any(item["count"] != true[item["item"]] for item in row["often"])  # else nothing was estimated


def test_an_empty_text_is_a_value_that_count_distinct_counts(spark: SparkSession) -> None:
    for type_ in ("string", "binary"):
        pieces = hs.count_distinct("x").pieces((type_,))
        rows = spark.sql(f"select cast(x as {type_}) as x from values (''), ('a'), (''), (null) as t(x)")
        states = rows.selectExpr(f"{pieces.lift} as s")
        assert states.selectExpr(f"{pieces.present.replace('{s}', 's')} as n").collect() == [(2,)]


def test_count_distinct_tells_all_nested_values_apart(spark: SparkSession) -> None:
    values = {
        "array<int>": ["array()", "array(null)", "array(null, null)", "array(0)", "array(0, null)", "array(null, 0)"],
        "array<array<array<int>>>": [
            "array()",
            "array(array())",
            "array(array(), array(), array())",
            "array(array(array()))",
        ],
        "struct<p:int,`q r`:array<string>>": [
            "named_struct('p', 1, 'q r', null)",
            "named_struct('p', null, 'q r', array('1'))",
            "named_struct('p', 1, 'q r', array())",
            "named_struct('p', 1, 'q r', array(null))",
            "named_struct('p', null, 'q r', null)",
        ],
        "array<struct<a:double,b:double>>": [
            "array(struct(1, null))",
            "array(struct(null, 1))",
            "array(null, struct(1, null))",
            "array(struct(double('NaN'), -0.0))",
            "array(struct(double('NaN'), 0.0))",  # equal to the one before
        ],
    }
    for type_, texts in values.items():
        pieces = hs.count_distinct("x").pieces((type_,))
        rows = " union all ".join(f"select cast({text} as {type_}) as x" for text in [*texts, *texts, "null"])
        states = spark.sql(rows).selectExpr(f"{pieces.lift} as s", "count(distinct x) as n")
        [(found, wanted)] = states.selectExpr(f"{pieces.present.replace('{s}', 's')} as found", "n").collect()
        assert found == wanted, type_
