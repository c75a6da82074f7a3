"""Drawn topologies that are edited and gone back on: what the time machine has done cannot be seen afterwards.

* An edit whose steps are made again (`--recompute`), or get their past (`backfill`), gives what a fresh run of the new
  code gives: states, and tables in sinks.
* A rewind gives what was there then, in sinks of tables, too; and a run after it gives what was there before it.
* The traces of all records name every key of every fold.

Only what does not depend on where ticks were cut can be compared with another run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pyspark.sql import SparkSession

from hailstorm.errors import HailstormError
from hailstorm.history.one_record import Record
from hailstorm.history.trace import Tracer
from hailstorm.testing import Driver
from tests.generated.batch import Row
from tests.generated.cases import Advance, Case, Feed, Restart, Retry, draw_case
from tests.generated.compare import plain, table_difference
from tests.generated.looking_back import ALIKE_FOR_ALL_CUTS, begun, exact, in_sinks
from tests.generated.steps import Fold, Sink, Step

REFUSED = ("HS-RUN-054",)  # dead letters that others wait for go through by now: retry them first
_MOST_RECORDS = 25  # of a case whose records are all traced


def alike(first: int, versions: int) -> Iterator[Case]:
    """Cases with so many versions that can be compared with another run, from a seed on."""
    seed = first
    while True:
        case = draw_case(seed)
        if (
            len(case.versions) == versions
            and all(type(step) in ALIKE_FOR_ALL_CUTS for step in case.steps())
            and not any(isinstance(event, Retry) for event in case.events)
            and any(step.keeps_state for step in case.last_version)
        ):
            yield case
        seed += 1


def short(first: int) -> Iterator[Case]:
    """Of these, cases with few records."""
    for case in alike(first, 1):
        if sum(len(event.rows) for event in case.events if isinstance(event, Feed)) <= _MOST_RECORDS:
            yield case


def edited(case: Case, spark: SparkSession, offline: bool) -> list[str]:
    """What is not as a fresh run of the new code has it. With `offline` what was added gets its past at the end, by
    `backfill`; else all that is another is made again when the new code starts."""
    old, new = case.versions
    if case.way == "in turns":  # that is said for all drivers, and a second run has its own ways
        case = replace(case, way="one task")
    changed = [step.name for step in new if step not in old and not isinstance(step, Sink) and _makes_state(step, new)]
    added = [name for name in changed if name not in {step.name for step in old}]
    made_again = tuple(name for name in changed if not (offline and name in added))
    with begun(case, spark) as (driver, run), begun(_fresh(case), spark) as (fresh, run_fresh):
        try:
            for event in case.events:
                if isinstance(event, Restart) and event.version and made_again:
                    run(f"driver.restart(version_1(), recompute={made_again!r})")
                    made_again = ()
                else:
                    run(event.code(case))
            for name in added if offline else ():
                driver.backfill(name)
        except HailstormError as error:
            if error.code in REFUSED:
                return []
            raise
        run("driver.advance()\ndriver.stop()")
        for event in _fresh(case).events:
            run_fresh(event.code(case))
        run_fresh("driver.stop()")
        stateful = [step for step in new if step.keeps_state]
        return [
            *_unlike_tables(stateful, driver, fresh),
            *_unlike_sinks(new, in_sinks(run, new), in_sinks(run_fresh, new)),
        ]


def gone_back(case: Case, spark: SparkSession, middle: int) -> list[str]:
    """What is not as it was after a rewind to the moment after so many events, and after a run from there."""
    steps = case.versions[0]
    until = replace(case, events=case.events[:middle])
    with begun(case, spark) as (driver, run), begun(until, spark) as (never, run_never):
        for event in until.events:
            run(event.code(case))
            run_never(event.code(case))
        run("driver.advance()")
        run_never("driver.advance()\ndriver.stop()")
        to = driver.ledger.head.commit
        for event in case.events[middle:]:
            run(event.code(case))
        run("driver.advance()\ndriver.stop()")
        if driver.ledger.head.commit == to:
            return []  # nothing has happened since
        last = {step.name: driver.table(step.name) for step in steps if step.keeps_state}
        held = in_sinks(run, steps)
        driver.rewind(to)
        driver.stop()
        wrong = [
            *(f"rewound to {to}: {text}" for text in _unlike_tables(_stateful(steps), driver, never)),
            *(
                f"rewound to {to}: {text}"
                for text in _unlike_sinks(steps, in_sinks(run, steps), in_sinks(run_never, steps))
            ),
        ]
        driver.restart()
        run("driver.advance()\ndriver.stop()")
        for step in _stateful(steps):
            text = table_difference(step.key or (), exact(step), last[step.name], driver.table(step.name))
            wrong += [] if text is None else [f"rewound to {to} and run: {step.name}: {text}"]
        return [
            *wrong,
            *(f"rewound to {to} and run: {one}" for one in _unlike_sinks(steps, in_sinks(run, steps), held)),
        ]


def untraced(case: Case, spark: SparkSession) -> list[str]:
    """The keys of folds that no trace of a record names, and those that a trace names and the state has not."""
    with begun(case, spark) as (driver, run):
        for event in case.events:
            run(event.code(case))
        topology = driver.topology.only(step.name for step in driver.topology.steps if not step.name.startswith("tap-"))
        tracer = Tracer(spark, topology, driver.ledger)
        folds = [step for step in case.versions[0] if isinstance(step, Fold) and _reads_a_stream(step, case)]
        named: dict[str, set[object]] = {fold.name: set() for fold in folds}
        for spout, partition, end in driver.ledger.head.position():
            for offset in range(end):
                for event in tracer.trace(Record(spout, partition, offset)).events:
                    if event.what == "key" and event.step in named:
                        named[event.step].add(tuple(plain(value, False) for value in event.row.values()))
        wrong = []
        for fold in folds:
            there = {tuple(plain(row[name], False) for name in fold.by) for row in driver.table(fold.name)}
            if there != named[fold.name]:
                wrong.append(f"{fold.name}: has {there - named[fold.name]}, traces {named[fold.name] - there}")
        return wrong


def _makes_state(step: Step, steps: Sequence[Step]) -> bool:
    """Whether it, or what is below it, keeps state."""
    reached = {step.name}
    for one in steps:
        if reached.intersection(one.inputs):
            reached.add(one.name)
    return any(one.keeps_state for one in steps if one.name in reached)


def _stateful(steps: Iterable[Step]) -> list[Step]:
    return [step for step in steps if step.keeps_state]


def _reads_a_stream(fold: Fold, case: Case) -> bool:
    """Of a fold of a table a key may come and go within a tick."""
    return all(step.key is None for step in case.versions[0] if step.name in fold.inputs)


def _fresh(case: Case) -> Case:
    """The newest code from the beginning, on all input."""
    feeds = tuple(event for event in case.events if isinstance(event, Feed))
    return replace(case, versions=case.versions[-1:], events=(*feeds, Advance()))


def _unlike_tables(steps: Iterable[Step], driver: Driver, other: Driver) -> Iterator[str]:
    for step in steps:
        if set(step.key or ()) <= set(exact(step)):
            text = table_difference(step.key or (), exact(step), other.table(step.name), driver.table(step.name))
            if text is not None:
                yield f"{step.name}: {text}"


def _unlike_sinks(steps: Iterable[Step], found: dict[str, list[Row]], wanted: dict[str, list[Row]]) -> Iterator[str]:
    for sink in steps:
        if sink.name in wanted and sink.key is not None and set(sink.key) <= set(exact(sink)):
            text = table_difference(sink.key, exact(sink), wanted[sink.name], found[sink.name])
            if text is not None:
                yield f"sink {sink.name}: {text}"
