"""Make a failing case small: fewer events, steps, rows, columns and simpler values, as long as it fails alike.

Each idea gives candidates; one that still fails in the same way is kept and the ideas start again. A candidate may be
nonsense (a step without its input): then it fails in another way, or the oracle does, and it is not taken.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import SparkSession

from tests.generated.cases import Advance, Case, Event, Feed, Restart, with_ends
from tests.generated.check import Failure, check
from tests.generated.column_edits import with_other_columns
from tests.generated.steps import Fold, Select, Spout, Step


def shrunk(case: Case, failure: Failure, spark: SparkSession, seconds: float = 120) -> tuple[Case, Failure]:
    end, smaller = time.monotonic() + seconds, True
    while smaller and time.monotonic() < end:
        smaller = False
        for candidate in _candidates(case):
            if time.monotonic() > end:
                break
            found = check(candidate, spark)
            if found is not None and found.kind == failure.kind:
                case, failure, smaller = candidate, found, True
                break
    return case, failure


def _candidates(case: Case) -> Iterator[Case]:
    yield from _fewer_versions(case)
    yield from _fewer_steps(case)
    yield from _fewer_events(case)
    yield from _fewer_rows(case)
    yield from _fewer_columns(case)
    yield from _simpler_values(case)


def _fewer_versions(case: Case) -> Iterator[Case]:
    if len(case.versions) > 1 and not any(isinstance(event, Restart) and event.version for event in case.events):
        yield replace(case, versions=case.versions[:1])
    if len(case.versions) > 1:
        events = tuple(replace(event, version=0) if isinstance(event, Restart) else event for event in case.events)
        yield replace(case, versions=case.versions[1:], events=events)


def _fewer_steps(case: Case) -> Iterator[Case]:
    names = {step.name for step in case.steps()}
    for name in sorted(names, reverse=True):
        versions = tuple(_without(steps, name) for steps in case.versions)
        if all(any(isinstance(step, Spout) for step in steps) for steps in versions) and versions != case.versions:
            fed = {s.name for steps in versions for s in steps if isinstance(s, Spout)}
            events = tuple(e for e in case.events if not isinstance(e, Feed) or e.spout in fed)
            yield replace(case, versions=versions, events=events)


def _without(steps: tuple[Step, ...], name: str) -> tuple[Step, ...]:
    """The steps without this one and everything behind it; or with it passed by, where its input has its columns."""
    gone, kept = {name}, list[Step]()
    for step in steps:
        if step.name in gone or (step.inputs and set(step.inputs) & gone):
            gone.add(step.name)
        else:
            kept.append(step)
    return with_ends(tuple(kept))


def _fewer_events(case: Case) -> Iterator[Case]:
    events = case.events
    for i, event in enumerate(events):
        yield replace(case, events=events[:i] + events[i + 1 :])
        if not isinstance(event, Feed | Advance):
            yield replace(case, events=(*events[:i], Advance(), *events[i + 1 :]))
    if case.way != "one task":
        yield replace(case, way="one task")


def _fewer_rows(case: Case) -> Iterator[Case]:
    for i, event in enumerate(case.events):
        if not isinstance(event, Feed):
            continue
        half = len(event.rows) // 2
        if half > 1:
            yield _with_event(case, i, replace(event, rows=event.rows[:half]))
            yield _with_event(case, i, replace(event, rows=event.rows[half:]))
        elif len(event.rows) > 1:
            for j in range(len(event.rows)):
                yield _with_event(case, i, replace(event, rows=event.rows[:j] + event.rows[j + 1 :]))
        if event.partition:
            yield _with_event(case, i, replace(event, partition=0))


def _with_event(case: Case, at: int, event: Event) -> Case:
    return replace(case, events=(*case.events[:at], event, *case.events[at + 1 :]))


def _fewer_columns(case: Case) -> Iterator[Case]:
    """A column less, in every version that has it."""
    made = {(step.name, column.name) for step in case.steps() for column in step.columns}
    for name, column in sorted(made):
        versions = tuple(_without_column(steps, name, column) for steps in case.versions)
        if None not in versions and versions != case.versions:
            yield replace(case, versions=tuple(steps for steps in versions if steps is not None))


def _without_column(steps: tuple[Step, ...], name: str, column: str) -> tuple[Step, ...] | None:
    """The steps without a column of one of them; None when those that read it need it."""
    step = next((step for step in steps if step.name == name), None)
    smaller = None if step is None else _narrower(step, column)
    return steps if smaller is None else with_other_columns(steps, [smaller])


def _narrower(step: Step, column: str) -> Step | None:
    """The step without a column; None when it does not make it, or has no other."""
    columns = tuple(c for c in step.columns if c.name != column)
    if isinstance(step, Fold):
        monoids = tuple(monoid for monoid in step.monoids if monoid.column.name != column)
        return replace(step, monoids=monoids, columns=columns) if 0 < len(monoids) < len(step.monoids) else None
    if isinstance(step, Select):
        kept = tuple(pair for pair in step.expressions if pair[0] != column)
        return replace(step, expressions=kept, columns=columns) if 0 < len(kept) < len(step.expressions) else None
    if isinstance(step, Spout) and columns and column != step.event_time:
        return replace(step, columns=columns)
    return None


def _simpler_values(case: Case) -> Iterator[Case]:
    for i, event in enumerate(case.events):
        if not isinstance(event, Feed):
            continue
        spout = case.spout(event.spout)
        for j, row in enumerate(event.rows):
            if isinstance(row, str):
                continue
            for column in spout.columns:
                for simple in (None, column.type.plainest):
                    value = row.get(column.name)
                    if repr(value) != repr(simple) and value is not None:
                        rows = (*event.rows[:j], {**row, column.name: simple}, *event.rows[j + 1 :])
                        yield _with_event(case, i, replace(event, rows=rows))
