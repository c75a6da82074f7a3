"""Drawn topologies of all kinds of steps that are gone back on, edited and traced: what the time machine has done
cannot be seen afterwards. edits.py does so where it does not matter how input is cut into ticks; here it is cut alike.

* After a rewind, sinks of tables have what they had then. When the logs are read again in the ticks that there were,
  all is as it was before the rewind, and streams have given the same rows.
* What a second run makes of the past of a step (`--recompute`, `backfill`, `run --backfill`) is what a fresh run of the
  new code makes of it in one tick; and so is all that comes after it.
* The trace of a record that was alone in its tick is what its commit has changed, in every step and every sink. All
  traces together have every row of state. The other way round, every row of state has makers, and who changed a key is
  among those that are found for it.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Literal

from pyspark.sql import SparkSession

from hailstorm.engine.ticks.replacing import with_all_below
from hailstorm.errors import HailstormError
from hailstorm.history.backfill import made_beside
from hailstorm.history.diff import beside_key
from hailstorm.history.made_of import keeper_of, key_of
from hailstorm.history.makers import Makers
from hailstorm.history.one_record import Record
from hailstorm.history.opened import open_ledger
from hailstorm.history.trace import Trace, Tracer
from hailstorm.ledger.commit import StepShape
from hailstorm.ledger.live import Live
from hailstorm.ledger.stores.store import read_table
from hailstorm.testing import Driver
from tests.generated import cuts
from tests.generated.batch import Row
from tests.generated.cases import Advance, Case, Crash, Feed, Restart, Retry, draw_case, with_ends
from tests.generated.compare import plain, stream_difference, table_difference
from tests.generated.edits import REFUSED
from tests.generated.looking_back import ALIKE_FOR_ALL_CUTS, Run, begun, exact, in_sinks
from tests.generated.steps import Sink, Step

How = Literal["recompute", "backfill", "beside"]

_MOST_RECORDS = 12  # of a case whose records are all traced


# Which cases


def with_every_kind(cases: Iterable[Case], of: int, edited: bool = False) -> Iterator[Case]:
    """Of the first so many cases, few that have all the kinds of steps that any of them has; of edited ones, among the
    steps that are made again."""
    left = {case.seed: (case, _kinds(case, edited)) for case in islice(cases, of)}
    missing = set[str]().union(*(kinds for _, kinds in left.values()))
    while missing:
        best = max(left, key=lambda seed: (len(left[seed][1] & missing), -len(left[seed][0].versions[0])))
        case, kinds = left.pop(best)
        missing -= kinds
        yield case


def _kinds(case: Case, edited: bool) -> set[str]:
    names = _below(_made_again(case), case.versions[-1]) if edited else None
    return {type(step).__name__ for step in case.versions[-1] if names is None or step.name in names}


def plain_cases(first: int) -> Iterator[Case]:
    """Cases that are never edited, from a seed on."""
    return (case for case in _drawn(first) if len(case.versions) == 1)


def short_cases(first: int) -> Iterator[Case]:
    """Of these, those with few records."""
    for case in plain_cases(first):
        if sum(len(event.rows) for event in case.events if isinstance(event, Feed)) <= _MOST_RECORDS:
            yield case


def edited_cases(first: int) -> Iterator[Case]:
    """Cases whose edit gives state to be made again, of which a fresh run can tell what it must be."""
    for case in map(_with_an_edit, _drawn(first)):
        if len(case.versions) == 2 and _made_again(case):
            before = case.events[: _edit(case)]
            alike = all(cuts.is_as_late_in_one_tick(case, some) for some in (before, case.events))
            if alike and not _reads_what_stays(case):
                yield case


def _with_an_edit(case: Case) -> Case:
    """A case that has none gets one: some step with state, and all below it, is there only from some tick on."""
    chance, steps = random.Random(case.seed), case.versions[0]
    ticks = [place for place, event in enumerate(case.events) if isinstance(event, Advance | Crash)]
    stateful = [step.name for step in steps if step.keeps_state or step.ends]
    if len(case.versions) == 2 or len(ticks) < 2 or not stateful:
        return case
    added = _below([chance.choice(stateful)], steps)
    old, at = with_ends(tuple(step for step in steps if step.name not in added)), chance.choice(ticks[1:])
    later = (Restart(1) if isinstance(event, Restart) else event for event in case.events[at:])
    return replace(case, versions=(old, steps), events=(*case.events[:at], Restart(1), *later))


def _drawn(first: int) -> Iterator[Case]:
    seed = first
    while True:
        case = draw_case(seed)
        if not any(isinstance(event, Retry) for event in case.events):
            yield case
        seed += 1


def _edit(case: Case) -> int:
    return next(i for i, event in enumerate(case.events) if isinstance(event, Restart) and event.version)


def _made_again(case: Case) -> tuple[str, ...]:
    """The steps that are another in the new code, as far as they, or what is below them, keep state."""
    old, new = case.versions
    changed = [step for step in new if step not in old and not isinstance(step, Sink)]
    stateful = {step.name for step in new if step.keeps_state or step.ends}
    return tuple(step.name for step in changed if stateful & _below([step.name], new))


def _below(names: Iterable[str], steps: Iterable[Step]) -> set[str]:
    """These steps, and all below them."""
    reached = set(names)
    for step in steps:
        if reached.intersection(step.inputs):
            reached.add(step.name)
    return reached


def _reads_what_stays(case: Case) -> bool:
    """Whether what is made again reads state that stays, and that other ticks have made."""
    new = case.versions[1]
    mine = _below(_made_again(case), new)
    above = set(mine)
    for step in reversed(new):
        if step.name in above:
            above.update(step.inputs)
    return any(type(step) not in ALIKE_FOR_ALL_CUTS for step in new if step.name in above - mine)


# What must hold


def rewound(case: Case, spark: SparkSession, middle: int) -> list[str]:
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
        for event in cuts.undisturbed(case.events[middle:]):  # a crash needs something to read, which may be read now
            run(event.code(case))
        run("driver.advance()\ndriver.stop()")
        if driver.ledger.head.commit == to:
            return []  # nothing has happened since
        last, held, clocks = _tables(driver, steps), in_sinks(run, steps), cuts.clocks_after(driver, to)
        gave = {step.name: cuts.flowed(driver, step.name, to) for step in _streams(steps)}
        driver.rewind(to)
        driver.stop()
        back = driver.ledger.head.commit
        wrong = [
            *(f"rewound to {to}: {text}" for text in _unlike(steps, _tables(never, steps), _tables(driver, steps))),
            *(f"rewound to {to}: {text}" for text in _unlike(steps, in_sinks(run_never, steps), in_sinks(run, steps))),
        ]
        driver.restart()
        cuts.read_again(driver, clocks)
        driver.stop()
        return [
            *wrong,
            *(f"rewound to {to} and run: {text}" for text in _unlike(steps, last, _tables(driver, steps))),
            *(f"rewound to {to} and run: {text}" for text in _unlike(steps, held, in_sinks(run, steps))),
            *(f"rewound to {to} and run: {text}" for text in _unlike_flow(steps, gave, driver, back)),
        ]


def made_again(case: Case, spark: SparkSession, how: How) -> list[str]:
    """What is not as a fresh run of the new code has it, of what an edit has made again: when the new code starts
    (recompute), beside it, or by `backfill` at the end. Only what was added can be given its past."""
    if case.way == "in turns":  # that is said for all drivers, and a second run has its own ways
        case = replace(case, way="one task")
    new, again, at = case.versions[1], _made_again(case), _edit(case)
    if not set(again).isdisjoint(step.name for step in case.versions[0]):
        how = "recompute"
    before, after = case.events[:at], case.events[at + 1 :]
    past = cuts.in_one_tick(case.events if how == "backfill" else before)
    fresh_case = replace(case, versions=(new,), events=past)
    with begun(case, spark) as (driver, run), begun(fresh_case, spark) as (fresh, run_fresh):
        for event in before:
            run(event.code(case))
        for event in past:
            run_fresh(event.code(case))
        since_fresh = fresh.ledger.head.commit
        try:
            _edit_now(driver, run, how, again)
            since = driver.ledger.head.commit
            for event in after:
                run(event.code(case))
            if how == "backfill":
                for name in again:
                    driver.backfill(name)
                since = driver.ledger.head.commit
        except HailstormError as error:
            if error.code in _REFUSED:
                return []
            raise
        for event in () if how == "backfill" else cuts.undisturbed(after):
            run_fresh(event.code(case))
        run("driver.advance()\ndriver.stop()")
        run_fresh("driver.advance()\ndriver.stop()")
        stateful = set(driver.ledger.head.steps)
        names = _below(with_all_below(driver.topology, again, stateful), new)
        steps = tuple(step for step in new if step.name in names)
        gave = {step.name: cuts.flowed(fresh, step.name, since_fresh) for step in _streams(steps)}
        return [
            *_unlike(steps, _tables(fresh, steps), _tables(driver, steps)),
            *_unlike(steps, in_sinks(run_fresh, steps), in_sinks(run, steps)),
            *_unlike_flow(steps, gave, driver, since),
        ]


# Dead letters that others wait for go through by now; or there were too few commits for rows that are told by them.
_REFUSED = (*REFUSED, "HS-RUN-053")


def _edit_now(driver: Driver, run: Run, how: How, again: tuple[str, ...]) -> None:
    if how == "recompute":
        run(f"driver.restart(version_1(), recompute={again!r})")
        return
    run("driver.restart(version_1())")
    if how == "beside":
        between = made_beside(again, speed=1.0)(driver._negotiator)
        while between():
            pass


def untraced(case: Case, spark: SparkSession) -> list[str]:
    """Where a trace of a record, each alone in its tick, does not say what its commit has changed, or where a row is
    not led back to its records."""
    case = cuts.one_by_one(replace(case, way="one task"))
    with begun(case, spark) as (driver, run):
        for event in case.events:
            run(event.code(case))
        driver.stop()
        topology = driver.topology.only(step.name for step in driver.topology.steps if not step.name.startswith("tap-"))
        tracer = Tracer(spark, topology, driver.ledger)
        wrong: list[str] = []
        told: dict[tuple[str, str], tuple[Row, set[Record]]] = {}
        for spout, partition, end in driver.ledger.head.position():
            for offset in range(end):
                trace = tracer.trace(Record(spout, partition, offset))
                for event in trace.events:
                    if event.what == "key" and event.after is not None:  # a session that is a part of another is gone
                        told.setdefault((event.step, _key(event.row)), (event.row, set()))[1].add(trace.record)
                texts = (*_untold_keys(trace, driver), *_untold_outputs(trace, driver, case.versions[0]))
                wrong += [f"{trace.record}: {text}" for text in texts]
        for name, shape in _shown(driver).items():
            keys = (_key({column: row[column] for column in shape.key}) for row in driver.table(name))
            if _is_shown_later(shape) and shape.kind != "top":  # into which a window comes when it ends
                wrong += [f"{name}: no trace has {key}" for key in keys if (name, key) not in told]
        return [*wrong, *_unmade(Makers(spark, topology, driver.ledger, *_whole(driver)), driver, told)]


def _whole(driver: Driver) -> tuple[Live, Live]:
    return driver.ledger.at(0), driver.ledger.newest()


def _unmade(makers: Makers, driver: Driver, told: Mapping[tuple[str, str], tuple[Row, set[Record]]]) -> Iterator[str]:
    """The keys of which nobody is found who made them, or not all who are known to have changed them."""
    topology, shown = makers.topology, _shown(driver)
    keepers = {name: keeper_of(topology, topology.step(name)) for name in shown}
    asked = {place: row for place, (row, _) in told.items()}
    for name, shape in shown.items():
        rows = ({column: row[column] for column in shape.key} for row in driver.table(name))
        asked |= {(name, _key(row)): row for row in rows}
    with makers.witnessing(*dict.fromkeys(keeper.name for keeper in keepers.values())) as walk:
        for (name, key), row in asked.items():
            mine = {column: row[column] for column in key_of(keepers[name])}
            found = set(walk.of_key(keepers[name].name, makers.texts_of(keepers[name], mine)))
            ranked = any(step.kind == "top" for step in topology.only([name]).steps)  # others change the ranks of rows
            changed = told[name, key][1] if (name, key) in told and not ranked else set()
            if not found or changed - found:
                missing = sorted(map(str, changed - found))
                yield f"{name}: {key} was made by {sorted(map(str, found))}, and not by {missing}"


def _untold_keys(trace: Trace, driver: Driver) -> Iterator[str]:
    """Of a window that is shown when it ends, a trace says what the record has made of it so far."""
    assert trace.commit is not None
    ledger = open_ledger(driver.ledger.root)
    for name, shape in _shown(driver).items():
        told = Counter(
            f"{_key(event.row)}: {plain(event.before)} to {plain(event.after)}"
            for event in trace.events
            if event.step == name and event.what == "key"
        )
        changed: Counter[str] = Counter()
        for row in ledger.diff(name, trace.commit - 1, trace.commit).arrow().to_pylist():
            before, after = (plain(row[beside_key(side, shape.key)]) for side in ("before", "after"))
            changed[f"{_key({column: row[column] for column in shape.key})}: {before} to {after}"] += 1
        if changed - told or (told - changed and not _is_shown_later(shape)):
            yield f"{name}: traced {dict(told - changed)}, changed {dict(changed - told)}"


def _untold_outputs(trace: Trace, driver: Driver, steps: tuple[Step, ...]) -> Iterator[str]:
    commit = driver.ledger.read_commit(trace.commit or 0)
    assert commit is not None
    for sink in (step.name for step in steps if isinstance(step, Sink)):
        files = commit.outbox.get(sink, ())
        got = [row for file in files for row in read_table(driver.ledger.store, file.path).to_pylist()]
        traced = [event.row for event in trace.events if event.step == sink and event.what == "output"]
        if _counted(got) != _counted(traced):
            yield f"sink {sink}: traced {traced}, got {got}"


def _shown(driver: Driver) -> dict[str, StepShape]:
    """The steps whose state people see."""
    shapes = driver.ledger.head.steps
    return {name: one for name, one in shapes.items() if name in one.tables and (one.key or one.values)}


def _is_shown_later(shape: StepShape) -> bool:
    return bool(shape.waits or shape.panes)


def _key(row: Mapping[str, Any]) -> str:
    return repr(plain(dict(row), False))


# What is there


def _streams(steps: Iterable[Step]) -> list[Step]:
    return [step for step in steps if step.key is None and step.kind not in ("sink", "changes")]


def _tables(driver: Driver, steps: Iterable[Step]) -> dict[str, list[Row]]:
    """The states that these steps show."""
    shown = _shown(driver)
    return {step.name: driver.table(step.name) for step in steps if step.name in shown}


def _unlike(steps: Iterable[Step], wanted: Mapping[str, list[Row]], found: Mapping[str, list[Row]]) -> Iterator[str]:
    """Of tables, in states or in sinks. The state of a stream's step is shown with columns of its own."""
    for step in steps:
        if step.name in wanted and step.key is None:
            if _counted(wanted[step.name]) != _counted(found.get(step.name, [])):
                yield f"{step.name}: found {found.get(step.name)}, and not {wanted[step.name]}"
        elif step.name in wanted and set(step.key or ()) <= set(exact(step)):
            text = table_difference(step.key or (), exact(step), wanted[step.name], found.get(step.name, []))
            if text is not None:
                yield f"{step.kind} {step.name}: {text}"


def _unlike_flow(steps: Iterable[Step], wanted: Mapping[str, list[Row]], driver: Driver, since: int) -> Iterator[str]:
    for step in _streams(steps):
        text = stream_difference(exact(step), wanted[step.name], cuts.flowed(driver, step.name, since))
        if text is not None:
            yield f"the stream of {step.kind} {step.name}: {text}"


def _counted(rows: Iterable[Mapping[str, Any]]) -> Counter[str]:
    return Counter(repr(plain(dict(row))) for row in rows)
