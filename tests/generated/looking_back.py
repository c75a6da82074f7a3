"""Drawn topologies, looked back on: an audit finds no difference, a replay gives the same again, every moment is there
as it was, a diff leads from one to the next, and a rewind leads to any of them, and back.

Only cases of one version: code that was changed gives other states, and an audit says so. Where a retry has merged dead
letters, ticks alone do not lead to the state.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pyspark.sql import SparkSession

from hailstorm.engine.ticks.pacing import Pace
from hailstorm.history.audit import Audit
from hailstorm.history.diff import beside_key
from hailstorm.history.opened import open_ledger
from hailstorm.history.replay import Replay
from hailstorm.testing import Driver
from tests.generated import script
from tests.generated.batch import Row
from tests.generated.cases import Case, Feed, Retry, draw_case
from tests.generated.steps import Bolt, Errors, Fold, Select, Sink, Spout, Sql, Step, Union, Where
from tests.generated.targets import TARGETS, World
from tests.generated.ways import WAYS

Tables = dict[str, list[str]]  # by step: its rows, as text, so that NaN is what it is


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
    with begun(case, spark) as (driver, run):
        run(script.driving(case))
        return [*_audited(spark, driver), *_replayed(spark, driver)]


def lost_moments(case: Case, spark: SparkSession, chance: random.Random) -> list[str]:
    """What is not as it was, when it is looked at later, or gone back to; nothing when all is well."""
    with begun(case, spark) as (driver, run):
        moments: dict[int, Tables] = {}
        for event in case.events:
            run(event.code(case))
            if not isinstance(event, Feed):
                moments[driver.ledger.head.commit] = _tables(driver)
        return [
            *_later(driver, moments),
            *_by_diffs(driver, moments),
            *_gone_back(driver, moments, case, chance),
        ]


@dataclass(frozen=True)
class Run:
    """Runs the statements of a case's script, with what it has declared."""

    case: Case
    names: dict[str, Any]

    def __call__(self, code: str) -> None:
        exec(compile(code, f"<seed {self.case.seed}>", "exec"), self.names)


@contextmanager
def begun(case: Case, spark: SparkSession) -> Iterator[tuple[Driver, Run]]:
    """A driver on the case, and what runs the statements of its script."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    pace = Pace.way
    try:
        exec(compile(script.declared(case), f"<seed {case.seed}>", "exec"), namespace)
        arguments = eval(f"dict({WAYS[case.way].arguments}, deliver=True)")
        with Driver(namespace["version_0"](), spark, **arguments) as driver:
            namespace["driver"] = driver
            yield driver, Run(case, namespace)
    finally:
        Pace.way = pace  # type: ignore[method-assign]
        if "folder" in namespace:
            shutil.rmtree(namespace["folder"])


def _tables(driver: Driver, at: int | None = None) -> Tables:
    """The state of every step, at a commit or now."""
    live = driver.ledger.newest() if at is None else driver.ledger.at(at)
    return {step: sorted(map(repr, driver.table(step, at))) for step in live.steps if step in _stateful(driver)}


def _stateful(driver: Driver) -> set[str]:
    return {step.name for step in driver.topology.steps if step.state_key or step.keeps_state}


def _later(driver: Driver, moments: dict[int, Tables]) -> Iterator[str]:
    for commit, then in moments.items():
        if _tables(driver, commit) != then:
            yield f"commit {commit} is another by now: {_first_difference(_tables(driver, commit), then)}"


def _by_diffs(driver: Driver, moments: dict[int, Tables]) -> Iterator[str]:
    """What a diff says from one moment to the next, put on the one, is the next."""
    ledger = open_ledger(driver.ledger.root)
    for one, other in pairwise(moments):
        for step in moments[one]:
            key = driver.ledger.newest().steps[step].key
            table = {_identity(row, key): row for row in driver.table(step, one)}
            for row in ledger.diff(step, one, other).arrow().to_pylist():
                identity = _identity(row, key)
                if row[beside_key("kind", key)] == "delete":
                    del table[identity]
                else:
                    table[identity] = {**{name: row[name] for name in key}, **row[beside_key("after", key)]}
            wanted = {_identity(row, key): row for row in driver.table(step, other)}
            if _shown(table) != _shown(wanted):
                yield f"diff of {step} from {one} to {other}: {_shown(table)} and not {_shown(wanted)}"


def _gone_back(driver: Driver, moments: dict[int, Tables], case: Case, chance: random.Random) -> Iterator[str]:
    last = max(moments)
    to = chance.choice(sorted(moments)[:-1] or [last - 1])
    then = _tables(driver, to)
    driver.rewind(to)
    if _tables(driver) != then:
        yield f"after a rewind to {to}: {_first_difference(_tables(driver), then)}"
    if all(type(step) in ALIKE_FOR_ALL_CUTS for step in case.versions[0]):
        driver.advance()
        if _tables(driver) != moments[last]:
            yield f"after a rewind to {to} and a run: {_first_difference(_tables(driver), moments[last])}"
    driver.rewind(last)
    if _tables(driver) != moments[last]:
        yield f"after a rewind forward to {last}: {_first_difference(_tables(driver), moments[last])}"


# What these hold depends on what was read, and not on how that was cut into ticks.
ALIKE_FOR_ALL_CUTS = (Spout, Where, Select, Sql, Bolt, Union, Errors, Fold, Sink)


def _identity(row: dict[str, Any], key: Sequence[str]) -> str:
    return repr([row[name] for name in key])


def _shown(table: dict[str, dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in table.values())


def _first_difference(found: Tables, wanted: Tables) -> str:
    step = next(step for step in {**found, **wanted} if found.get(step) != wanted.get(step))
    return f"{step}: found {found.get(step)}, and was {wanted.get(step)}"


def _audited(spark: SparkSession, driver: Driver) -> Iterator[str]:
    for one in Audit(spark, driver.topology, driver.ledger, driver.ledger.newest()).run():
        if one.skipped or one.notes or one.comparison.different:
            yield f"audit of {one.step} by {one.by}: {one.skipped} {one.notes} {one.comparison.examples[:2]}"


def _replayed(spark: SparkSession, driver: Driver) -> Iterator[str]:
    ledger = driver.ledger
    for one in Replay(spark, driver.topology, ledger).run(ledger.at(1), ledger.newest().commit).unlike[:2]:
        yield f"replay: {one}"


def in_sinks(run: Run, steps: Iterable[Step]) -> dict[str, list[Row]]:
    """The tables in sinks. A file that nothing was ever delivered to may not be there."""
    world = World(run.names["folder"], run.names["delivered"])
    changes = {step.name for step in steps if step.kind == "changes"}
    held = {}
    for sink in steps:
        if isinstance(sink, Sink) and sink.key is not None and not changes.intersection(sink.inputs):
            try:
                held[sink.name] = TARGETS[sink.target].found(sink.name, sink.key, world)
            except Exception:
                held[sink.name] = []
    return held


def exact(step: Step) -> list[str]:
    return [column.name for column in step.columns if column.exact]
