"""Evolution: what changed in a topology since its last run, and whether it may go on.

Every step has a fingerprint. An unchanged step goes on. A new stateful step starts from now. A changed one needs a
word from its owner, because its old state may not mean what its new code says. Nothing is reset silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from hailstorm.engine.ticks.renaming import describe_renamed, renames
from hailstorm.errors import RunError
from hailstorm.ledger.commit import StepShape
from hailstorm.ledger.live import Live
from hailstorm.ledger.renaming import has_state, under_names_of_now
from hailstorm.topology.fingerprint import fingerprint
from hailstorm.topology.step import Step
from hailstorm.topology.topology import Topology


@dataclass(frozen=True)
class Evolution:
    """The difference between a topology and what its ledger knows. Names of steps."""

    fingerprints: dict[str, str]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    returned: tuple[str, ...]  # stateful steps that were removed once: their state has a hole
    rekeyed: Mapping[str, str]  # stateful steps whose key is not that of their state, and how they differ
    lacking: Mapping[str, tuple[str, ...]]  # processes whose state has fields that their class has not
    retyped: Mapping[str, str]  # steps with a field of another type, or another monoid, than their state, and how
    begins: Mapping[str, tuple[str, ...]]  # added steps -> the tables with rows that they begin with (beginning.py)
    unknown: Mapping[str, tuple[str, ...]]  # others -> the tables with rows of which they read only later changes
    below: Mapping[str, tuple[str, ...]]  # changed steps without state -> the stateful steps that read them
    renamed: Mapping[str, str]  # steps and sinks -> the names that the ledger knows them by

    @property
    def any(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.returned)

    def describe(self) -> tuple[str, ...]:
        """The whole difference, a sentence per step. Nothing at the first run."""
        return (
            *describe_renamed(self.renamed),
            *(f"'{name}' is new: {self.beginning(name)}" for name in self.added),
            *(f"'{name}' is back, with the state that it had" for name in self.returned),
            *(f"'{name}' was removed" for name in self.removed),
            *(f"'{name}' has changed" + self._meaning(name) for name in self.changed),
        )

    def beginning(self, name: str) -> str:
        """What a step that is new has of the past, when nobody says a word."""
        if tables := self.begins.get(name):
            return f"it begins with {_those(tables)} as {'it is' if len(tables) == 1 else 'they are'}"
        tables = self.unknown.get(name, ())
        if not tables:
            return "it starts from now"
        return (
            f"of {_those(tables)} it knows only what changes from now on; with --recompute {name} it gets all that was"
        )

    def _meaning(self, name: str) -> str:
        steps = self.below.get(name, ())
        those = ", ".join(f"'{step}'" for step in steps)
        return f": what {those} made with the old code stays; from now on it is the new" if steps else ""


def evolution(topology: Topology, head: Live, key_types: Mapping[str, tuple[str, ...]]) -> Evolution:
    """`key_types` are those of every stateful step, as Spark has resolved them."""
    names = renames(topology, head)
    head = under_names_of_now(head, names)
    now, then, before = fingerprint(topology), fingerprint(topology, names), head.fingerprints
    changed = tuple(name for name in now if name in before and before[name] != then[name])
    returned = tuple(name for name in now if name not in before and has_state(head, name))
    known = [name for name in now if head.runs.get(name) and name in head.steps]
    others = {name: _other_key(topology.step(name).state_key, key_types[name], head.steps[name]) for name in known}
    added = tuple(name for name in now if name not in before and name not in returned) if head.commit else ()
    old_tables = {
        name: tables
        for name in added
        if name in key_types and (tables := tuple(t for t in _tables_of(topology, name) if head.runs.get(t)))
    }
    return Evolution(
        now,
        added=added,
        removed=tuple(name for name in before if name not in now),
        changed=changed,
        returned=returned,
        rekeyed={name: how for name, how in others.items() if how},
        lacking={name: gone for name in known if (gone := _lacking(topology.step(name), head.steps[name]))},
        retyped={name: how for name in known if (how := _retyped(topology.step(name), head.steps[name]))},
        begins={n: tables for n, tables in old_tables.items() if topology.step(n).has_of_old_tables == "whole"},
        unknown={n: tables for n, tables in old_tables.items() if topology.step(n).has_of_old_tables == "changes"},
        below={
            name: tuple(step for step in key_types if _reads(topology, step, name))
            for name in changed
            if name not in key_types
        },
        renamed=names,
    )


def _those(tables: tuple[str, ...]) -> str:
    return " and ".join(f"'{table}'" for table in tables)


def _tables_of(topology: Topology, step: str) -> Iterator[str]:
    """The tables with a state that a step reads, directly or through steps without one."""
    for name in topology.step(step).inputs:
        source = topology.step(name)
        if source.is_table and source.keeps_state:
            yield name
        elif source.is_table:
            yield from _tables_of(topology, name)


def _other_key(key: tuple[str, ...], types: tuple[str, ...], shape: StepShape) -> str:
    if key != shape.key:
        return f"it was by {', '.join(shape.key) or 'nothing'}, and is by {', '.join(key) or 'nothing'}"
    pairs = zip(key, shape.key_types, types, strict=bool(shape.key_types))
    return "; ".join(f"'{name}' was {old}, and is {new}" for name, old, new in pairs if old != new)


def _lacking(step: Step, shape: StepShape) -> tuple[str, ...]:
    """Of a step whose code may change freely; of any other one the change itself needs a word."""
    return () if step.needs_word else tuple(name for name in shape.values if name not in step.value_types)


def _retyped(step: Step, shape: StepShape) -> str:
    new = step.value_types
    old = dict(zip(shape.values, shape.value_types, strict=bool(shape.value_types)))
    return "; ".join(
        f"'{name}' was {old[name]}, and is {new[name]}" for name in new if old.get(name, new[name]) != new[name]
    )


def _reads(topology: Topology, step: str, other: str) -> bool:
    """Whether what `other` gives reaches this step, directly or through steps without state or with it."""
    inputs = topology.step(step).inputs
    return other in inputs or any(_reads(topology, name, other) for name in inputs)


def require_consent(
    topology: Topology, found: Evolution, accepted: tuple[str, ...], recomputed: tuple[str, ...] = ()
) -> None:
    """Stop unless every stateful step that changed is accepted by name, or gets another state (`recomputed`)."""
    for name, how in found.rekeyed.items():
        if name not in recomputed:
            raise RunError(
                9,
                f"step '{name}' has another key than its state: {how}",
                at=topology.step(name).at,
                hint=f"Such state cannot go on. To make it again from what the logs hold: --recompute {name}\n"
                "Or give the step another name, or run with a new ledger: --ledger PATH",
            )
    for name, how in found.retyped.items():
        if name not in recomputed:
            step = topology.step(name)
            renamed = f"Under another name it begins with {step.new_value}, and"
            raise RunError(
                13,
                f"{step.kind} '{name}' has {step.retyped_value} than its state: {how}",
                at=step.at,
                hint=f"What one has kept is not read as the other's. {renamed}\n"
                f"the old one is forgotten with --accept {name}\n"
                f"Or make its state again from what the logs hold: --recompute {name}",
            )
    for name, gone in found.lacking.items():
        if name not in (*accepted, *recomputed):
            step, fields = topology.step(name), ", ".join(f"'{field}'" for field in gone)
            raise RunError(
                14,
                f"{step.kind} '{name}' no longer has {fields}, and its state does",
                at=step.at,
                hint=f"To go on without what is there: --accept {name}\nOr give the state class the field back.\n"
                f"To make its state again from what the logs hold: --recompute {name}",
            )
    for name in (*found.changed, *found.returned):
        step = topology.step(name)
        if (step.needs_word or name in found.returned) and name not in (*accepted, *recomputed):
            what = "has changed since its state was written" if name in found.changed else "was away and has old state"
            raise RunError(
                2,
                f"step '{name}' {what}",
                at=step.at,
                hint=f"To keep its state as it is and go on: --accept {name}\n"
                f"To make it again from what the logs hold: --recompute {name}\n"
                "What each would cost: hailstorm plan APP",
            )
