"""What gives another result when it is run again is refused: the list is compared with Spark's own functions."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

import hailstorm as hs
from hailstorm.errors import TopologyError
from hailstorm.topology.sql_text import NONDETERMINISTIC

# Of the machine, the day or the person: Spark calls these deterministic, because they are so within one query.
MOVING = re.compile(r"(Current|Now|Local|CurDate)")
# Of the session, whose zone is always UTC.
FIXED = {"current_timezone"}


def spark_functions(spark: SparkSession) -> dict[str, str]:
    """Every function that Spark has, and the class that computes it."""
    registry = spark._jsparkSession.sessionState().functionRegistry()
    names = registry.listFunction().iterator()
    found = {}
    while names.hasNext():
        name = names.next()
        found[name.funcName()] = registry.lookupFunction(name).get().getClassName()
    return found


def test_every_function_of_sparks_that_is_not_deterministic_is_refused(spark: SparkSession) -> None:
    jvm = spark._jvm
    assert jvm is not None
    by_chance = jvm.java.lang.Class.forName("org.apache.spark.sql.catalyst.expressions.Nondeterministic")
    refused = set()
    for name, class_name in spark_functions(spark).items():
        found = jvm.java.lang.Class.forName(class_name)
        own = any(method.getName() == "deterministic" for method in found.getDeclaredMethods())
        if by_chance.isAssignableFrom(found) or own or MOVING.match(class_name.rpartition(".")[2]):
            refused.add(name)
    assert {"rand", "uniform", "reflect", "current_date", "now"} <= refused
    assert refused - FIXED - NONDETERMINISTIC == set()


@pytest.mark.parametrize(
    "expression",
    [
        "TIMESTAMP 'now'",
        "DATE'today'",
        "timestamp_ntz 'Tomorrow UTC'",
        "current_date",
        "CURRENT_TIMESTAMP",
        "localtimestamp",
        "current_user",
        "session_user",
        "unix_timestamp()",
        "at > now ()",
        "`rand`()",
        "reflect('java.util.UUID', 'randomUUID')",
        "java_method('java.lang.System', 'nanoTime')",
        "coalesce(n, rand())",
        "transform(array(n), x -> x + rand())",
        "randstr(3)",
        "shuffle(array(n))",
        "uniform(1, 2)",
        *sorted(f"{name}()" for name in NONDETERMINISTIC - {"randstr", "shuffle", "uniform"}),
    ],
)
def test_what_gives_another_result_every_time_is_refused_everywhere(expression: str) -> None:
    rows = hs.Topology("t").spout("rows", hs.Log("x"), schema="n INT, at TIMESTAMP")
    table = rows.fold("table", by="n", last=hs.max("at"), at=hs.min("at"))
    for declare in (
        lambda: rows.select("a", x=expression),
        lambda: rows.where("a", f"({expression}) IS NULL"),
        lambda: rows.sql("a", f"SELECT {expression} AS x FROM rows"),
        lambda: rows.fold("a", by="n", x=hs.count(expression)),
        lambda: table.select("a", x=expression),
        lambda: table.top("a", 3, by=expression),
    ):
        with pytest.raises(TopologyError, match="HS-TOP-009"):
            declare()


def test_columns_may_be_called_like_functions() -> None:
    rows = hs.Topology("t").spout(
        "rows", hs.Log("x"), schema="user STRING, now INT, `current_date` DATE, s STRUCT<user: INT>"
    )
    made = rows.select(
        "a", user="user", n="now + 1", u="upper(user)", d="`current_date`", f="s.user", t="DATE '2024-01-01'"
    )
    made.sql("b", "SELECT upper(user) AS user, 'now()' AS text, unix_timestamp(d) AS at FROM a WHERE user = 'rand()'")
