"""Run one case and look at everything that it left: states, changes, streams, dead letters."""

from __future__ import annotations

import shutil
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from hailstorm.engine.ticks.pacing import Pace
from hailstorm.errors import HailstormError
from hailstorm.testing import Driver
from tests.generated import script
from tests.generated.batch import Row, interpreting
from tests.generated.cases import Case
from tests.generated.compare import after_changes, stream_difference, table_difference, without_repeats
from tests.generated.oracle import Expected, expected
from tests.generated.steps import Changes, Sink, Step
from tests.generated.targets import TARGETS, World
from tests.generated.ways import WAYS


@dataclass(frozen=True)
class Failure:
    """`kind` is what stays the same while a case is shrunk."""

    kind: str
    text: str
    ending: str  # for the script: what to look at


ORACLE = "the oracle failed"  # a mistake of the generator


def check(case: Case, spark: SparkSession) -> Failure | None:
    """What is wrong, or None."""
    try:
        wanted = expected(case, interpreting(spark))
    except Exception as error:
        return Failure(ORACLE, _shortened(error), "")
    way, pace = WAYS[case.way], Pace.way
    namespace: dict[str, Any] = {"__name__": "__main__"}  # so that workers get what it declares by value
    try:
        exec(compile(script.declared(case), f"<seed {case.seed}>", "exec"), namespace)
        arguments = eval(f"dict({way.arguments}, deliver=True)")
        with Driver(namespace["version_0"](), spark, **arguments) as driver:
            namespace["driver"] = driver
            exec(compile(script.driving(case), f"<seed {case.seed}>", "exec"), namespace)
            if namespace["summary"].undelivered:
                return Failure("undelivered", str(namespace["summary"].undelivered), "print(summary)")
            world = World(namespace["folder"], namespace["delivered"])
            return _difference(driver, case, wanted) or _difference_in_sinks(world, case, wanted)
    except Exception as error:
        return Failure(_kind(error), _shortened(error), "")
    finally:
        Pace.way = pace  # type: ignore[method-assign]
        if "folder" in namespace:
            shutil.rmtree(namespace["folder"])


def _shortened(error: Exception) -> str:
    return "".join(traceback.format_exception(error)[-6:])[-2500:]


def _kind(error: Exception) -> str:
    if isinstance(error, HailstormError):
        return f"{error.code} {error.what.split(':')[0][:40]}"
    return f"{type(error).__name__} {str(error)[:40]}"


def _difference_in_sinks(world: World, case: Case, wanted: Expected) -> Failure | None:
    for sink in case.last_version:
        if not isinstance(sink, Sink) or any(s.kind == "changes" for s in case.last_version if s.name in sink.inputs):
            continue
        rows = wanted.rows[sink.name]
        # A file that nothing was ever delivered to may not be there.
        found = TARGETS[sink.target].found(sink.name, sink.key, world) if rows else []
        columns, shown = TARGETS[sink.target].shown(sink.columns, rows)
        names = [column.name for column in columns]
        if sink.key is None:
            text = stream_difference(names, shown, found)
        elif not set(sink.key) <= set(names):
            continue
        else:
            text = table_difference(sink.key, names, shown, found)
        if text is not None:
            return _failure(f"a sink to {sink.target}", sink, text, TARGETS[sink.target].look(sink.name))
    return None


def _difference(driver: Driver, case: Case, wanted: Expected) -> Failure | None:
    edited = any(case.accepted(version) for version in range(len(case.versions)))
    for step in case.last_version:
        if step.kind == "sink":
            continue
        rows = wanted.rows[step.name]
        if isinstance(step, Changes):
            key = next(source.key for source in case.last_version if source.name == step.inputs[0])
            changes = driver.rows(step.inputs[0])
            rows = step.of_changes(without_repeats(key or (), changes) if edited else changes)
        found = _of_step(driver, step, rows, edited)
        if found is not None:
            return found
    # How often a table's row had a null key depends on the cut: letters of records are counted.
    letters = Counter(letter["step"] for letter in driver.errors() if letter["spout"] is not None)
    due = Counter(letter.step for letter in wanted.letters if letter.row is not None)
    if letters != due:
        text = f"dead letters by step: expected {dict(due)}, found {dict(letters)}\n{driver.errors()[:3]}"
        return Failure("letters", text, f"print(driver.errors())\n# expected: {dict(due)}")
    return None


def _of_step(driver: Driver, step: Step, rows: list[Row], edited: bool) -> Failure | None:
    names = [column.name for column in step.columns]
    changes = driver.rows(step.name)
    if step.key is None:
        text = stream_difference(names, rows, changes)
        return text and _failure(f"stream of a {step.kind}", step, text, f"driver.rows({step.name!r})")  # type: ignore[return-value]
    table, mistake = after_changes(step.key, changes, edited)
    if mistake is not None:
        return _failure(f"a change of a {step.kind}", step, mistake, f"driver.rows({step.name!r})")
    text = table_difference(step.key, names, rows, table)
    if text is not None:
        return _failure(f"changes of a {step.kind}", step, text, f"driver.rows({step.name!r})")
    if step.keeps_state:
        text = table_difference(step.key, names, rows, driver.table(step.name))
        if text is not None:
            return _failure(f"state of a {step.kind}", step, text, f"driver.table({step.name!r})")
    return None


def _failure(kind: str, step: Step, text: str, look: str) -> Failure:
    comment = "\n".join(f"# {line}" for line in text.splitlines())
    return Failure(kind, f"{step.name}: {text}", f"for row in {look}:\n    print(row)\n{comment}")
