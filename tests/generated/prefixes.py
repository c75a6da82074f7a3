"""Drawn topologies at every moment that they had: the state at a commit is what a batch over the log up to there gives,
and a Delta reader that opens the version of that commit sees the same rows.

check.py looks at the end of a case. Here all its ticks are looked at, afterwards, when compactions, edits, crashes,
restarts and retries have come upon them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import SparkSession

from hailstorm.errors import HailstormError
from hailstorm.history.opened import OpenLedger, open_ledger
from tests.generated.batch import interpreting
from tests.generated.cases import Case, Feed, draw_case
from tests.generated.compare import plain, table_difference
from tests.generated.looking_back import begun
from tests.generated.oracle import expected

NO_TABLE = ("HS-LED-056", "HS-LED-057")  # no row has come yet that knows the types, or Delta has no such type


def drawn(first: int) -> Iterator[Case]:
    """Cases of any kinds of steps, from a seed on."""
    seed = first
    while True:
        yield draw_case(seed)
        seed += 1


def unlike_prefixes(case: Case, spark: SparkSession) -> list[str]:
    """The states at commits that are not what the log up to there comes to; nothing when all is well."""
    with begun(case, spark) as (driver, run):
        moments: dict[int, Case] = {}  # by commit: what had happened
        for place, event in enumerate(case.events, 1):
            run(event.code(case))
            if not isinstance(event, Feed):
                moments[driver.ledger.head.commit] = replace(case, events=case.events[:place])
        driver.stop()
        ledger = open_ledger(driver.ledger.root)
        wrong = []
        for commit, until in moments.items():
            wrong += [f"commit {commit}: {text}" for text in _unlike_batch(ledger, commit, until, spark)]
            wrong += [f"commit {commit}: {text}" for text in _unlike_delta(ledger, commit)]
        return wrong


def _unlike_batch(ledger: OpenLedger, commit: int, until: Case, spark: SparkSession) -> Iterator[str]:
    wanted = expected(until, interpreting(spark)).rows
    for step in until.last_version:  # of then: a step may have gone since
        if step.keeps_state and step.key is not None:
            names = [column.name for column in step.columns]
            found = ledger.state(step.name, commit).arrow().to_pylist()
            text = table_difference(step.key, names, wanted[step.name], found)
            if text is not None:
                yield f"{step.kind} {step.name}: {text}"


def _unlike_delta(ledger: OpenLedger, commit: int) -> Iterator[str]:
    for step, shape in ledger.live(commit).steps.items():
        if step not in shape.tables or not (shape.key or shape.values):
            continue
        try:
            found = ledger.delta(step, commit)
        except HailstormError as error:
            if error.code in NO_TABLE:
                continue
            raise
        table = DeltaTable(found.address, version=found.version)
        rows = pa.table(QueryBuilder().register("t", table).execute("SELECT * FROM t").read_all()).to_pylist()
        state = ledger.state(step, commit).arrow().to_pylist()
        if _counted(rows) != _counted(state):
            yield f"{step} as Delta: {rows}, and not {state}"


def _counted(rows: list[dict[str, object]]) -> Counter[str]:
    return Counter(repr(plain(row)) for row in rows)
