"""Replacing: state of some steps that a second run over the logs has made takes the place of theirs, in one commit.

`history/backfill.py` makes that state, in a ledger of its own inside this one; the committer puts it in. A step that is
replaced brings along all stateful steps below it: they were made of what it gave.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec

from hailstorm.engine.delivery.joining import path_to_table
from hailstorm.ledger.commit import Covered, DataFile, Run, SinkShape, Stamp, StateChange, StepShape
from hailstorm.ledger.live import Live
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import Store
from hailstorm.topology.topology import Topology

Shapes = Mapping[str, StepShape]


@dataclass(frozen=True)
class Replacement:
    """What these stateful steps have from now on. Their files are in `folder`, another ledger inside this one."""

    steps: tuple[str, ...]
    folder: str
    runs: Mapping[str, tuple[Run, ...]]
    coverage: Covered
    reached: Mapping[str, int]
    letters: tuple[DataFile, ...] = ()  # dead letters of steps whose rows reach these steps alone
    old_letters: tuple[str, ...] = ()  # in place of these

    def fields(
        self, topology: Topology, store: Store, head: Live, shapes: Shapes, sinks: Mapping[str, SinkShape], stamp: Stamp
    ) -> dict[str, Any]:
        """What the commit after `head` says of them. `shapes` are of all stateful steps, `sinks` is what is known."""
        known = [some[step] for some in (head.steps, shapes) for step in self.steps if step in some]
        tables = dict.fromkeys(table for shape in known for table in shape.tables)
        return {
            "dead_letters": tuple(self._linked_letters(store, stamp)),
            "retried": self.old_letters,
            "state": {
                table: StateChange(
                    added=tuple(self._linked(store, table, stamp)),
                    removed=tuple(run.id for run in head.runs.get(table, ())),
                )
                for table in tables
                if self.runs.get(table) or head.runs.get(table)
            },
            "reached": {
                **{table: until for table, until in head.reached.items() if table not in tables},
                **dict(self._handled(head, shapes)),
            },
            "coverage": {**head.coverage, **{step: self.coverage[step] for step in self.steps}},
            "sinks": {
                sink: msgspec.structs.replace(shape, since=stamp.commit)
                if sink in self._fed(topology, shapes)
                else shape
                for sink, shape in sinks.items()
            },
        }

    def _linked(self, store: Store, table: str, stamp: Stamp) -> Iterable[Run]:
        """The runs with names and seqs of this ledger: their order stays, and whatever is written later is newer."""
        runs = sorted(self.runs.get(table, ()), key=lambda run: run.seq)
        layers = [list(layer) for _, layer in groupby(runs, key=lambda run: run.seq)]
        for number, layer in enumerate(layers, 1):
            for run in layer:
                again = msgspec.structs.replace(run, id=stamp.new_name(), seq=stamp.commit - len(layers) + number)
                store.link(f"{self.folder}/{run_name(table, run.id)}", run_name(table, again.id), durable=True)
                yield again

    def _linked_letters(self, store: Store, stamp: Stamp) -> Iterable[DataFile]:
        for file in self.letters:
            again = msgspec.structs.replace(file, path=f"errors/{stamp.new_name()}.parquet")
            store.link(f"{self.folder}/{file.path}", again.path, durable=True)
            yield again

    def _handled(self, head: Live, shapes: Shapes) -> Iterable[tuple[str, int]]:
        """How far their agendas have been handled. Those that count commits count those of this ledger."""
        for step in self.steps:
            for table, clock in shapes[step].agendas.items():
                if table in self.reached:
                    yield table, head.commit if clock == "tick" else self.reached[table]

    def _fed(self, topology: Topology, shapes: Shapes) -> set[str]:
        """The sinks of their tables: they lack the whole table."""
        sinks = (sink for sink in topology.sinks if sink.is_table)
        return {sink.name for sink in sinks if path_to_table(topology, sink, set(shapes))[-1] in self.steps}


def with_all_below(topology: Topology, steps: Iterable[str], stateful: Container[str]) -> tuple[str, ...]:
    """These steps and all below them, as far as they keep state, in the order of the topology."""
    reached = set(steps)
    for step in topology.steps:
        if reached.intersection(step.inputs):
            reached.add(step.name)
    return tuple(step.name for step in topology.steps if step.name in reached and step.name in stateful)
