"""Witnesses: committed ticks run once more, and every row seen that reached a step with state.

The rerun goes to a scratch ledger (rerun.py), with the state of then, tick by tick, so that rows are late, wait and
meet as they did. Beside each step with state stands a bolt that reads what the step reads and writes it down. Rows
carry marks (engine/stages/marks.py): each says which row of the step above it was made of.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
from pyspark.sql import SparkSession

from hailstorm.engine.stages.marks import WITNESSED, Mark, Texts, Witness, mark_of, without_mark
from hailstorm.engine.taps import tapped
from hailstorm.engine.ticks.logs import Logs
from hailstorm.history.committed import committed_between
from hailstorm.history.made_of import is_witnessed, joins_foreign
from hailstorm.history.one_record import Record
from hailstorm.history.rerun import Rerun, Tell, Tick, silent
from hailstorm.history.scratch import scratch_ledger
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.stores.store import Store, read_table
from hailstorm.topology.schema import Schema
from hailstorm.topology.stateless import ArrowBolt
from hailstorm.topology.step import Step
from hailstorm.topology.topology import Topology

OWN = -1  # the place of what a step gives itself, beside those of its inputs

_Place = tuple[str, int]  # a step, and a place among its inputs


@dataclass(frozen=True)
class Seen:
    """A row that reached a step, in some tick: as it is and, of a table, as it was; which record it is of, if it is of
    one; and which row of a stateful step above, if there is one."""

    row: Texts
    old: Texts | None
    time: int | None
    tick: int
    record: Record | None
    mark: Mark | None


@dataclass(frozen=True)
class Witnesses:
    """What was seen, in files that are there as long as the block of `witnessed`."""

    ticks: tuple[Tick, ...]
    exact: bool  # whether ticks were cut where they were cut
    files: dict[_Place, list[tuple[int, Store, str]]] = field(default_factory=dict)

    def seen(self, step: str, place: int) -> Iterator[Seen]:
        """Every row that reached this step at this place, a tick after the other."""
        for tick, store, path in self.files.get((step, place), ()):
            yield from seen_in(read_table(store, path), tick)

    def tick_of(self, record: Record) -> int:
        """The first tick that read a record."""
        ends = (tick.end.offset(record.spout, record.partition) or 0 for tick in self.ticks)
        return next((number for number, end in enumerate(ends) if end > record.offset), len(self.ticks))


def seen_in(table: pa.Table, tick: int) -> Iterator[Seen]:
    """The rows that a witness has written down."""
    columns = [table.column(name).to_pylist() for name in ("row", "old", "at", "spout", "partition", "offset")]
    for row, old, time, spout, partition, offset in zip(*columns, strict=True):
        of = without_mark(spout)
        record = None if of is None or offset is None else Record(of, partition, offset)
        yield Seen(_row(row), None if old is None else _row(old), time, tick, record, mark_of(spout))


def _row(text: str) -> Texts:
    return msgspec.json.decode(text, type=Texts)


def witness(step: Step, source: Step, name: str) -> ArrowBolt:
    """The bolt that writes down what a step reads from a source."""
    return ArrowBolt(
        name=name,
        at=step.at,
        inputs=(source.name,),
        schema=Schema.parse(WITNESSED, step.at),
        function=Witness(source.is_table),
        grouping=None,
        on_error="fail",
        event_time=None,
    )


@contextlib.contextmanager
def witnessed(
    spark: SparkSession,
    topology: Topology,
    ledger: Ledger,
    base: Live,
    until: Live,
    at: Iterable[str],
    tell: Tell = silent,
) -> Iterator[Witnesses]:
    """Run what was committed after `base`, up to `until`, as far as these steps read it, and see it."""
    part, places = _with_witnesses(topology, tuple(at))
    taps = tuple(places)
    found = _ticks(ledger, base, until)
    ticks = tuple(tick for _, stretch in found.stretches for tick in stretch)
    witnesses, number = Witnesses(ticks, found.exact), 0
    with contextlib.ExitStack() as stack:
        for begin, stretch in found.stretches:
            scratch = stack.enter_context(scratch_ledger(ledger, _begun(begin, part, until)))
            rerun = Rerun(spark, tapped(part, taps), scratch, Logs(part, ledger.newest()), tell=tell, marking=True)
            for tick in stretch:
                tell(f"running tick {number + 1:,} of {len(ticks):,} again")
                for outcome in rerun.tick(tick, taps=taps):
                    for tap, files in outcome.taps.items():
                        seen = witnesses.files.setdefault(places[tap], [])
                        seen += ((number, scratch.store, file.path) for file in files)
                number += 1
        yield witnesses


def _with_witnesses(topology: Topology, at: tuple[str, ...]) -> tuple[Topology, dict[str, _Place]]:
    """The part of a topology that these steps read, with witnesses; and at which place each of them stands."""
    read = (name for step in at for name in topology.step(step).inputs)
    part = topology.only([*read, *(step for step in at if joins_foreign(topology.step(step)))])
    steps = dict.fromkeys([*(step.name for step in part.steps if step.keeps_state), *at])
    stands = [
        (name, place)
        for name in steps
        for place in (*range(len(topology.step(name).inputs)), OWN)
        if (joins_foreign(topology.step(name)) if place == OWN else is_witnessed(topology, topology.step(name), place))
    ]
    places = {f"witness-{number}": stand for number, stand in enumerate(stands)}
    for bolt, (name, place) in places.items():
        step = topology.step(name)
        part.add(witness(step, step if place == OWN else topology.step(step.inputs[place]), bolt))
    return part, places


@dataclass(frozen=True)
class _Ticks:
    """Ticks that follow each other, each stretch with what it begins with."""

    stretches: list[tuple[Live, list[Tick]]]
    exact: bool


def _ticks(ledger: Ledger, base: Live, until: Live) -> _Ticks:
    """What was committed between two moments. A rewind, or what else is no tick, ends a stretch: the next one begins
    with what it left."""
    stretches: list[tuple[Live, list[Tick]]] = [(base, [])]
    exact = True
    for one in committed_between(ledger, base.commit, until.commit):
        exact = exact and one.exact
        if one.is_passable or one.commit.first:
            stretches[-1][1].extend(one.ticks)
        if not one.is_passable:
            stretches.append((ledger.at(one.commit.commit), []))
    return _Ticks([(begin, ticks) for begin, ticks in stretches if ticks], exact)


def _begun(base: Live, part: Topology, until: Live) -> Live:
    """What a rerun begins with; before the first commit, the shapes of the steps alone."""
    if base.commit:
        return base
    names = {step.name for step in part.steps}
    steps = {name: shape for name, shape in until.steps.items() if name in names}
    return Live(steps=steps, fingerprints=dict.fromkeys(names, ""))
