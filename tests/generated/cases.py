"""A case: a topology and what happens to it, as a value that can be drawn, run, printed and shrunk."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tests.generated import column_edits, steps_of_ends, steps_of_joins, steps_of_tables, steps_of_ticks, steps_of_time
from tests.generated.batch import Row
from tests.generated.steps import KINDS, Bolt, Sink, Spout, Step
from tests.generated.values import BASE_TIME, Chance
from tests.generated.ways import WAYS


@dataclass(frozen=True)
class Feed:
    """Rows are appended to a partition of a spout's log, all with one time of their records."""

    spout: str
    partition: int
    rows: tuple[Row | str, ...]  # a text is a record that does not decode
    minute: int

    @property
    def time(self) -> datetime:
        return BASE_TIME + timedelta(minutes=self.minute)

    def code(self, case: Case) -> str:
        spout = case.spout(self.spout)
        rows = "".join(f"\n    {(row if isinstance(row, str) else spout.json(row))!r}," for row in self.rows)
        return f"driver.feed({self.spout!r}, [{rows}\n], partition={self.partition}, time={self.time!r})"


@dataclass(frozen=True)
class Advance:
    def code(self, case: Case) -> str:
        return "driver.advance()"


@dataclass(frozen=True)
class Crash:
    """The next advance dies at a fault point, and the engine starts again."""

    point: str

    def code(self, case: Case) -> str:
        return f"driver.crash(at={self.point!r})\ndriver.advance()"


@dataclass(frozen=True)
class Restart:
    """The engine stops and starts again, with this version of the topology."""

    version: int

    def code(self, case: Case) -> str:
        accepted = case.accepted(self.version)
        return f"driver.restart(version_{self.version}(){f', accept={accepted!r}' if accepted else ''})"


@dataclass(frozen=True)
class Retry:
    """Dead letters get their second chance."""

    def code(self, case: Case) -> str:
        return "driver.retry()"


Event = Feed | Advance | Crash | Restart | Retry


@dataclass(frozen=True)
class Case:
    seed: int
    versions: tuple[tuple[Step, ...], ...]
    events: tuple[Event, ...]
    way: str

    def spout(self, name: str) -> Spout:
        """The spout, in the version in which it has most columns: rows may have all of these."""
        known = [step for step in self.steps() if isinstance(step, Spout) and step.name == name]
        return max(known, key=lambda spout: len(spout.columns))

    def accepted(self, version: int) -> tuple[str, ...]:
        """The steps whose state goes on although this version has changed them."""
        before = {step.name: step for step in self.versions[version - 1]} if version else {}
        return tuple(
            step.name
            for step in self.versions[version]
            if step.keeps_state and step.name in before and before[step.name] != step
        )

    def steps(self) -> Iterator[Step]:
        for version in self.versions:
            yield from version

    @property
    def last_version(self) -> tuple[Step, ...]:
        restarts = [event.version for event in self.events if isinstance(event, Restart)]
        return self.versions[restarts[-1] if restarts else 0]


def effort(case: Case) -> float:
    """About how long a case takes, to tell small ones from large ones: it grows with steps, ticks and starts."""
    ticks = sum(isinstance(event, Advance | Crash | Restart) for event in case.events)
    return sum(1 for _ in case.steps()) * (1 + ticks) * WAYS[case.way].effort


def draw_case(seed: int) -> Case:
    """The case of this seed."""
    chance = random.Random(seed)
    steps = _draw_steps(chance)
    versions = _edited(chance, steps) if chance.random() < 0.35 else (steps,)
    return Case(seed, versions, _draw_events(chance, versions), chance.choice(list(WAYS)))


def _draw_steps(chance: Chance) -> tuple[Step, ...]:
    steps: list[Step] = []
    for number in range(chance.choice([1, 1, 1, 2])):
        spout = Spout.draw(chance, f"s{number}", [])
        assert spout is not None
        if number and chance.random() < 0.5:  # another one of the same columns, for unions
            first = steps[0]
            assert isinstance(first, Spout)
            spout = replace(first, name=f"s{number}", event_time=first.event_time if first.times else None)
        steps.append(spout)
    while all(isinstance(step, Spout) for step in steps) or chance.random() < 0.75:
        step = _draw_step(chance, f"t{len(steps)}", steps)
        if step is not None:
            steps.append(step)
    return with_ends(tuple(steps))


_ALL_KINDS = (
    *KINDS,
    *steps_of_time.KINDS,
    *steps_of_tables.KINDS,
    *steps_of_ticks.KINDS,
    *steps_of_joins.KINDS,
    *steps_of_ends.KINDS,
)


def _draw_step(chance: Chance, name: str, known: list[Step]) -> Step | None:
    kinds, weights = zip(*_ALL_KINDS, strict=True)
    kind: type[Step] = chance.choices(kinds, weights)[0]
    usable = [step for step in known if step.kind not in ("sink", "changes")]
    return kind.draw(chance, name, [step for step in usable if kind.reads_ends or not step.ends])


def with_ends(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Every step must be read by something: a sink, where nothing else does; and what `ends` always by one, from its
    beginning on."""
    wanted = tuple(step for step in steps if not step.name.startswith(_END))
    read = {name for step in wanted for name in step.inputs} - {step.name for step in wanted if step.ends}
    loose = [step for step in wanted if step.name not in read and not (step.keeps_state or step.kind == "sink")]
    return (*wanted, *(Sink.of(f"{_END}{step.name}", step, "call") for step in loose))


_END = "to-"


def _edited(chance: Chance, steps: tuple[Step, ...]) -> tuple[tuple[Step, ...], ...]:
    """The topology before and after an edit: of a column, or of a step."""
    if chance.random() < 0.4:
        wider = chance.choice([column_edits.of_a_spout, column_edits.of_a_fold])(chance, steps)
        if wider is not None:  # a column is added, or one that nothing reads is removed
            return (steps, wider) if chance.random() < 0.5 else (wider, steps)
    return steps, _with_other_steps(chance, steps)


def _with_other_steps(chance: Chance, before: tuple[Step, ...]) -> tuple[Step, ...]:
    """The topology after an edit: a step added, one removed, or bolts repaired.

    What is added reads streams, or what was added with it: a fold that is new to an old table has no documented past.
    """
    steps = [step for step in before if not step.name.startswith(_END)]
    match chance.choice(["add", "add", "remove", "repair"]):
        case "add":
            old_tables = [step for step in steps if step.key is not None or step.ends]
            for number in range(chance.randint(1, 3)):
                known = [step for step in steps if step not in old_tables]
                step = _draw_step(chance, f"n{number}", known)
                steps += [] if step is None else [step]
        case "remove":
            read = {name for step in steps for name in step.inputs}
            leaves = [step for step in steps if step.name not in read and step.kind != "spout" and not step.reads_ends]
            if leaves:
                steps.remove(chance.choice(leaves))
        case "repair":
            steps = [step.repaired() if isinstance(step, Bolt) else step for step in steps]
    return with_ends(tuple(steps))


def _drawn_from(spout: Spout, versions: tuple[tuple[Step, ...], ...], chance: Chance) -> Spout:
    """The spout in any version: senders know columns before a topology does, and after it has forgotten them."""
    known = [step for steps in versions for step in steps if isinstance(step, Spout) and step.name == spout.name]
    return chance.choice(known)


def _draw_events(chance: Chance, versions: tuple[tuple[Step, ...], ...]) -> tuple[Event, ...]:
    spouts = [step for step in versions[0] if isinstance(step, Spout)]
    partitions, events = chance.randint(1, 3), list[Event]()
    ticks = chance.choice([1, 1, 2, 2, 3, 4]) + (len(versions) > 1)
    edit = chance.randrange(1, ticks) if len(versions) > 1 else None
    version = 0
    for tick in range(ticks):
        for _ in range(chance.randint(1, 2)):
            spout = chance.choice(spouts)
            sender, count = _drawn_from(spout, versions, chance), chance.choice([1, 2, 3, 5, 10, 20])
            rows: list[Row | str] = [sender.draw_row(chance) for _ in range(count)]
            if chance.random() < 0.05:
                rows.insert(chance.randint(0, len(rows)), "nonsense")
            events.append(Feed(spout.name, chance.randrange(partitions), tuple(rows), chance.randrange(60)))
        roll = chance.random()
        if tick == edit:
            version = 1
            events.append(Restart(1))
        if roll < 0.1:
            events.append(Crash(chance.choice(["after-write", "before-commit", "after-commit"])))
        else:
            events.append(Advance())
        if roll > 0.9:
            events.append(Restart(version))
        if chance.random() < 0.1:
            events.append(Retry())
    return tuple(events)
