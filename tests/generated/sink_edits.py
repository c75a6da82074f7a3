"""Edits of sinks of tables: one comes later, or is away for a run. Whenever it comes, it has the whole table, and then
the changes."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.generated.cases import Advance, Case, Crash, Event, Restart
from tests.generated.steps import Sink, tables
from tests.generated.targets import TARGETS

_COMES, _COMES_LAST, _IS_AWAY = (False, True, True), (False, False, True), (True, False, True)
_REPLACED = ("parquet", "sqlite", "duckdb")  # a function is not told what went while its sink was away


def with_sinks_that_come_and_go(case: Case) -> Case:
    """Half of the cases that have tables and no other edit: edited twice, with sinks that are not in all versions."""
    chance, known = random.Random(f"sinks of {case.seed}"), tables(case.versions[0])
    known = [step for step in known if step.kind != "sink"]
    if len(case.versions) > 1 or not known or chance.random() < 0.5:
        return case
    made: list[tuple[Sink, tuple[bool, ...]]] = []
    for number in range(chance.randint(1, 3)):
        when = chance.choice([_COMES, _COMES_LAST, _IS_AWAY, _IS_AWAY])
        target = chance.choice(_REPLACED if when is _IS_AWAY else tuple(TARGETS))
        made.append((Sink.of(f"x{number}", chance.choice(known), target), when))
    versions = tuple((*case.versions[0], *(sink for sink, when in made if when[version])) for version in range(3))
    ticks = [place for place, event in enumerate(case.events) if isinstance(event, Advance | Crash)]
    edits = sorted(chance.choices([*ticks[1:], len(case.events)], k=2))
    events: list[Event] = []
    for place in range(len(case.events) + 1):
        events += [Restart(version) for version, edit in enumerate(edits, 1) if edit == place]
        for event in case.events[place : place + 1]:
            version = sum(edit <= place for edit in edits)
            events.append(Restart(version) if isinstance(event, Restart) else event)
    return replace(case, versions=versions, events=tuple(events))
