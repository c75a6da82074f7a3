"""SQL in steps is read before Spark is there: columns, types, what is refused, and what stays untouched."""

from __future__ import annotations

import pytest

from hailstorm.errors import Location, TopologyError
from hailstorm.topology.query import carry_columns, checked_query
from hailstorm.topology.schema import Column, Schema
from hailstorm.topology.sql import checked_expression, rewrite_columns
from hailstorm.topology.step import Step

AT = Location("app.py", 1)
NESTED = "xs ARRAY<STRUCT<a: INT>>, s STRUCT<b: STRING, c: STRUCT<d: DATE>>"
TWEETS = Step("tweets", AT, (), Schema.parse(f"user STRING, n INT, {NESTED}, `two words` INT, at TIMESTAMP"))
COUNTS = Step("counts", AT, ("tweets",), Schema.parse("user STRING, n BIGINT"), ("user",), True)


def type_of(expression: str) -> str | None:
    return checked_expression(expression, "step", "selects", TWEETS, AT).type


def columns_of(query: str, source: Step = TWEETS) -> str:
    return str(checked_query(query, "step", source, AT).schema)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("n", "int"),
        ("s.b", "string"),
        ("s.c.d", "date"),
        ("_offset", "bigint"),
        ("CAST(n AS DECIMAL(10, 2))", "decimal(10,2)"),
        ("n::bigint", "bigint"),
        ("n > 3 AND user LIKE 'a%'", "boolean"),
        ("(upper(user))", "string"),
        ("'text'", "string"),
        ("7", "int"),
        ("n + 1", None),
        ("transform(xs, x -> x.a)", None),
    ],
)
def test_a_type_is_told_where_it_is_certain(expression: str, expected: str | None) -> None:
    assert type_of(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "transform(xs, x -> x.a + n)",
        "aggregate(xs, 0, (total, x) -> total + x.a)",
        "extract(hour FROM at)",
        "timestampadd(MINUTE, 5, at)",
        "at - INTERVAL 1 HOUR",
        "`two words` + 1",
        'user = "alice"',
        "CASE WHEN n > 1 THEN 'a' END",
        "named_struct('z', n).z",
        "unix_timestamp(at)",
        "n IN (1, 2) AND n BETWEEN 1 AND 3",
    ],
)
def test_words_that_are_no_columns_are_not_taken_for_columns(expression: str) -> None:
    type_of(expression)


@pytest.mark.parametrize("expression", ["m", "upper(usr)", "n > nn", "xs[i]", "transform(xs, x -> y)", "tweets.n"])
def test_a_column_that_is_not_there_is_refused(expression: str) -> None:
    with pytest.raises(TopologyError, match="HS-TOP-003"):
        type_of(expression)


@pytest.mark.parametrize(
    "expression", ["n >", "n n n", "(n", "'n", "", "n; n", "n AS m", "n, n", "*", "s.*", "n = (SELECT 1)"]
)
def test_what_is_not_one_expression_is_refused(expression: str) -> None:
    with pytest.raises(TopologyError, match="HS-TOP-007"):
        type_of(expression)


@pytest.mark.parametrize(
    "expression", ["sum(n)", "count(*)", "mean(n)", "collect_set(n)", "row_number() OVER (ORDER BY n)"]
)
def test_an_expression_that_needs_other_rows_is_refused(expression: str) -> None:
    with pytest.raises(TopologyError, match="HS-TOP-008"):
        type_of(expression)


@pytest.mark.parametrize(
    "expression",
    ["rand() < 0.1", "rand(7)", "uuid()", "now()", "current_timestamp", "current_date()", "unix_timestamp()"],
)
def test_an_expression_that_differs_from_run_to_run_is_refused(expression: str) -> None:
    with pytest.raises(TopologyError, match="HS-TOP-009"):
        type_of(expression)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("n", "_old.n"),
        ("n > 3 AND user = 'n'", "_old.n > 3 AND _old.user = 'n'"),
        ("transform(xs, n -> n.a + at)", "transform(_old.xs, n -> n.a + _old.at)"),
        ("s.c.d", "_old.s.c.d"),
        ("`two words`*2", "_old.`two words`*2"),
        ("order", "_old.order"),
        ("-n -- n", "-_old.n -- n"),
        ("named_struct('a', n).a", "named_struct('a', _old.n).a"),
        ("_offset + n", "_offset + _old.n"),
        ("nvl2(user, n, n)", "nvl2(_old.user, _old.n, _old.n)"),
        ("true", "true"),
    ],
)
def test_columns_are_read_from_elsewhere_and_the_rest_stays_as_written(expression: str, expected: str) -> None:
    assert rewrite_columns(expression, "_old") == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT user, n AS m FROM tweets", "user STRING, m INT"),
        ("SELECT * EXCEPT (xs, s, at) FROM tweets", "user STRING, n INT, `two words` INT"),
        ("SELECT t.user, t.s.b FROM tweets AS t WHERE t.n > 1", "user STRING, b STRING"),
        ("SELECT explode(xs) AS x FROM tweets", "x ?"),
        ("SELECT posexplode(xs) AS (i, x) FROM tweets", "i ?, x ?"),
        ("SELECT user, x.a AS a FROM tweets LATERAL VIEW explode(xs) v AS x", "user STRING, a ?"),
        ("SELECT user, x FROM tweets, LATERAL explode(xs) AS v(x)", "user STRING, x ?"),
        ("SELECT m FROM (SELECT n AS m FROM tweets)", "m INT"),
        ("WITH a AS (SELECT n AS m FROM tweets) SELECT m FROM a WHERE m > 1", "m INT"),
        ("SELECT user FROM tweets UNION ALL SELECT s.b FROM tweets", "user STRING"),
        ("SELECT n AS m, m AS l FROM tweets", "m INT, l ?"),
        ("SELECT _time AS seen FROM tweets", "seen TIMESTAMP"),
    ],
)
def test_a_query_tells_the_columns_that_come_out(query: str, expected: str) -> None:
    assert columns_of(query) == expected


def test_a_query_on_a_table_reads_the_change() -> None:
    assert (
        columns_of("SELECT user, _kind AS kind, _old.n AS before FROM counts", COUNTS)
        == "user STRING, kind STRING, before BIGINT"
    )
    assert columns_of("SELECT * FROM counts", COUNTS) == columns_of("SELECT user, n FROM counts", COUNTS)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("SELECT m FROM tweets", "003"),
        ("SELECT n FROM (SELECT n AS m FROM tweets)", "003"),
        ("SELECT _kind AS kind FROM tweets", "003"),
        ("SELECT n FRM tweets", "007"),
        ("DELETE FROM tweets", "007"),
        ("SELECT user FROM tweets GROUP BY user", "008"),
        ("SELECT DISTINCT user FROM tweets", "008"),
        ("SELECT user FROM tweets LIMIT 3", "008"),
        ("SELECT user FROM tweets UNION SELECT user FROM tweets", "008"),
        ("SELECT user FROM tweets EXCEPT SELECT user FROM tweets", "008"),
        ("SELECT user FROM tweets TABLESAMPLE (10 PERCENT)", "008"),
        ("SELECT uuid() AS id FROM tweets", "009"),
        ("SELECT 1 AS one", "010"),
        ("SELECT n FROM words", "010"),
        ("SELECT n FROM other.tweets", "010"),
        ("SELECT t.n FROM tweets t JOIN tweets u ON t.n = u.n", "010"),
        ("SELECT t.n FROM tweets t, words w", "010"),
        ("SELECT n FROM tweets WHERE n IN (SELECT n FROM tweets)", "010"),
        ("SELECT n FROM tweets WHERE EXISTS (SELECT 1 FROM words)", "010"),
        ("SELECT n AS _n FROM tweets", "012"),
        ("SELECT n, n FROM tweets", "018"),
        ("SELECT n + 1 FROM tweets", "028"),
        ("SELECT s.* FROM tweets", "028"),
    ],
)
def test_a_query_that_is_not_row_by_row_over_this_step_is_refused(query: str, code: str) -> None:
    with pytest.raises(TopologyError, match=f"HS-TOP-{code}"):
        columns_of(query)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT a FROM t", "SELECT a , _time, _offset FROM t"),
        ("SELECT a IS DISTINCT FROM b AS c FROM t", "SELECT a IS DISTINCT FROM b AS c , _time, _offset FROM t"),
        ("SELECT a*b AS c FROM t", "SELECT a*b AS c , _time, _offset FROM t"),
        ("SELECT extract(day FROM at) AS d FROM t", "SELECT extract(day FROM at) AS d , _time, _offset FROM t"),
        (
            "SELECT a FROM (SELECT b FROM t) UNION ALL SELECT a FROM t",
            "SELECT a , _time, _offset FROM (SELECT b , _time, _offset FROM t)"
            " UNION ALL SELECT a , _time, _offset FROM t",
        ),
    ],
)
def test_hidden_columns_are_carried_through_a_query(query: str, expected: str) -> None:
    assert carry_columns(query, ["_time", "_offset"]) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT * FROM t", "SELECT `a`, `b c` FROM t"),
        ("SELECT ALL * FROM t", "SELECT ALL `a`, `b c` FROM t"),
        ("SELECT x.*, 1 AS n FROM t x", "SELECT `a`, `b c`, 1 AS n FROM t x"),
        ("SELECT * EXCEPT (`b c`) FROM t", "SELECT `a` FROM t"),
        ("SELECT to_json(struct(*)) AS j FROM t", "SELECT to_json(struct(`a`, `b c`)) AS j FROM t"),
        ("SELECT a * 2 AS n FROM t", "SELECT a * 2 AS n FROM t"),
        ("SELECT * FROM (SELECT *, 1 AS n FROM t)", "SELECT `a`, `b c`, `n` FROM (SELECT `a`, `b c`, 1 AS n FROM t)"),
        ("WITH w AS (SELECT a FROM t) SELECT * FROM w", "WITH w AS (SELECT a FROM t) SELECT `a` FROM w"),
        (
            "SELECT t.*, v FROM t LATERAL VIEW explode(x) e AS v",
            "SELECT `a`, `b c`, v FROM t LATERAL VIEW explode(x) e AS v",
        ),
        ("SELECT e.* FROM t LATERAL VIEW explode(x) e AS v", "SELECT `v` FROM t LATERAL VIEW explode(x) e AS v"),
        ("SELECT a -- the a\nFROM t -- all", "SELECT a FROM t"),
        ("SELECT a /* * */ AS größe FROM t", "SELECT a AS `größe` FROM t"),
    ],
)
def test_spark_gets_the_text_without_stars_and_comments_and_with_names_in_backticks(query: str, expected: str) -> None:
    columns = (Column("a", "array<int>"), Column("b c", "int"))
    source = Step("t", AT, (), Schema(columns))
    if "(x)" in query:
        query, expected = query.replace("(x)", "(a)"), expected.replace("(x)", "(a)")
    assert checked_query(query, "step", source, AT).text == expected
