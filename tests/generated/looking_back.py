"""Drawn topologies, looked back on: an audit finds no difference, and a replay gives the same again.

Only cases of one version: code that was changed gives other states, and an audit says so. Where a retry has merged dead
letters, ticks alone do not lead to the state.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from hailstorm.engine.ticks.pacing import Pace
from hailstorm.history.audit import Audit
from hailstorm.history.replay import Replay
from hailstorm.testing import Driver
from tests.generated import script
from tests.generated.cases import Case, Retry, draw_case
from tests.generated.ways import WAYS


def usable(first: int) -> Iterator[Case]:
    """Cases that can be looked back on, from a seed on."""
    seed = first
    while True:
        case = draw_case(seed)
        if len(case.versions) == 1 and not any(isinstance(event, Retry) for event in case.events):
            yield case
        seed += 1


def differences(case: Case, spark: SparkSession) -> list[str]:
    """What an audit and a replay find wrong; nothing when all is well."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    pace = Pace.way
    try:
        exec(compile(script.declared(case), f"<seed {case.seed}>", "exec"), namespace)
        arguments = eval(f"dict({WAYS[case.way].arguments}, deliver=True)")
        with Driver(namespace["version_0"](), spark, **arguments) as driver:
            namespace["driver"] = driver
            exec(compile(script.driving(case), f"<seed {case.seed}>", "exec"), namespace)
            Pace.way = pace  # type: ignore[method-assign]
            return [*_audited(spark, driver), *_replayed(spark, driver)]
    finally:
        Pace.way = pace  # type: ignore[method-assign]
        if "folder" in namespace:
            shutil.rmtree(namespace["folder"])


def _audited(spark: SparkSession, driver: Driver) -> Iterator[str]:
    for one in Audit(spark, driver.topology, driver.ledger, driver.ledger.newest()).run():
        if one.skipped or one.notes or one.comparison.different:
            yield f"audit of {one.step} by {one.by}: {one.skipped} {one.notes} {one.comparison.examples[:2]}"


def _replayed(spark: SparkSession, driver: Driver) -> Iterator[str]:
    ledger = driver.ledger
    for one in Replay(spark, driver.topology, ledger).run(ledger.at(1), ledger.newest().commit).unlike[:2]:
        yield f"replay: {one}"
