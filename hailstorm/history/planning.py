"""Planning an evolution: what has changed since the ledger's last run, step by step, and what each choice would cost.

`hailstorm plan` and `Topology.plan` show it. Nothing is changed, and nothing is run: the logs are asked how far they
reach back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.run import resolved
from hailstorm.engine.spark.session import start_session
from hailstorm.engine.ticks.evolution import Evolution, evolution
from hailstorm.errors import HailstormError, UsageError
from hailstorm.history.past import past_of, refuse_unfit
from hailstorm.ledger.copying import DESCRIPTION
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.releasing import kept_states
from hailstorm.ledger.renaming import under_names_of_now
from hailstorm.ledger.stores import open_store
from hailstorm.topology.fingerprint import declared_parts
from hailstorm.topology.picture import html_table
from hailstorm.topology.topology import Topology

Change = Literal["unchanged", "renamed", "added", "removed", "changed", "returned"]


@dataclass(frozen=True)
class Part:
    """A part of a step that is another one now. Old and new as text; long ones are hashes."""

    name: str
    old: str
    new: str

    def __str__(self) -> str:
        old, new = (_readable(text) or "nothing" for text in (self.old, self.new))
        return f"{self.name}: {old} -> {new}"


@dataclass(frozen=True)
class Choice:
    """What one may say to `run`, and what that costs. An empty option is what happens when nothing is said."""

    option: str
    meaning: str
    records: int = 0  # to be read again
    lost: int = 0  # records in the state that the logs have no more
    refused: str = ""  # why it cannot be done

    def __str__(self) -> str:
        cost = f" ({self.records:,} records to read)" if self.records else ""
        lost = f", without {self.lost:,} records that the logs no longer have" if self.lost else ""
        refused = f"; refused: {self.refused}" if self.refused else ""
        return f"{self.option or 'say nothing'}: {self.meaning}{cost}{lost}{refused}"


@dataclass(frozen=True)
class StepChange:
    """One step. `needs_word`: `run` stops until one of the choices is made."""

    step: str
    kind: str
    at: str  # file:line; empty for a step that is gone
    change: Change
    parts: tuple[Part, ...] = ()
    remark: str = ""
    rows: int = 0  # of state, about
    bytes: int = 0  # of the state of a step that is gone
    needs_word: bool = False
    choices: tuple[Choice, ...] = ()


@dataclass(frozen=True)
class Planned:
    """What a run would find changed: every step of the topology, in its order, and then those that are gone."""

    steps: tuple[StepChange, ...]

    @property
    def waits(self) -> tuple[str, ...]:
        """The steps for which `run` stops until you choose. None: it goes on by itself."""
        return tuple(one.step for one in self.steps if one.needs_word)

    def _repr_html_(self) -> str:
        rows = [(one.step, one.change, one.at, one.rows, _texts(one), _lines(one.choices)) for one in self.steps]
        waits = f"run stops until you choose for: {', '.join(self.waits)}" if self.waits else "run goes on by itself"
        return html_table(("step", "change", "at", "rows of state", "what", "choices"), rows, waits)


def plan_topology(topology: Topology, ledger: str | Path | None = None, master: str | None = None) -> Planned:
    """What has changed since a topology's last run. Starts Spark, which knows the types; changes nothing.

    `master` is for who starts Spark for this alone: a later run in the same process has the session that is there.
    """
    topology.validate()
    address = topology.ledger_address(ledger)
    if not open_store(address).exists(DESCRIPTION):
        raise UsageError(112, f"'{topology.name}' has never run: all of it is new", hint="Type: hailstorm run APP")
    topology, opened = resolved(topology), Ledger(address)
    spark = start_session(f"hailstorm plan {topology.name}", master=master)
    return Planned(planned_changes(topology, opened, compile_topology(spark, topology, tasks=1)))


def planned_changes(topology: Topology, ledger: Ledger, plan: Plan) -> tuple[StepChange, ...]:
    """Every step of the topology, in its order, and then those that are gone."""
    found = evolution(topology, ledger.head, plan.key_types)
    return tuple(_Planning(topology, ledger, plan, found).steps())


@dataclass(frozen=True)
class _Planning:
    topology: Topology
    ledger: Ledger
    plan: Plan
    found: Evolution

    def steps(self) -> Iterator[StepChange]:
        found = self.found
        head = under_names_of_now(self.ledger.head, found.renamed)
        new = declared_parts(self.topology)
        for step in self.topology.steps:
            name = step.name
            about = (name, step.kind, step.at.short)
            rows = rows_of_state(head, name)
            was = f"it was called '{found.renamed[name]}'" if name in found.renamed else ""
            if name in found.added:
                yield StepChange(*about, "added", remark=self._of_added(name), choices=tuple(self._past(name)))
            elif name in found.changed or name in found.returned or name in found.rekeyed or name in found.retyped:
                parts = tuple(_parts(head.declared.get(name, {}), new[name]))
                change: Change = "returned" if name in found.returned else "changed"
                needs, remark = self._of_changed(name)
                choices = tuple(self._words(name, needs))
                remark = "; ".join(part for part in (was, remark) if part)
                yield StepChange(*about, change, parts, remark, rows, needs_word=needs, choices=choices)
            elif was:
                goes_on = ": its state" if step.gives_rows else ": what it has, and how far it was delivered"
                yield StepChange(*about, "renamed", remark=f"{was}{goes_on} goes on under the new name", rows=rows)
            else:
                yield StepChange(*about, "unchanged", rows=rows)
        away = [one.step for one in kept_states(head) if one.step not in (*found.removed, *new)]
        for name in (*found.removed, *away):
            known = head.steps.get(name)
            kind = head.declared.get(name, {}).get("kind", known.kind if known else "")
            rows, size = rows_of_state(head, name), bytes_of_state(head, name)
            kept = f"its state stays in the ledger, and stands still: {size:,} bytes, until it is released"
            yield StepChange(name, kind, "", "removed", remark=kept if rows else "", rows=rows, bytes=size)

    def _of_added(self, name: str) -> str:
        if not self.topology.step(name).gives_rows:
            return "a sink of a table gets the whole table first; one of a stream starts from now"
        return self.found.beginning(name) if name in self.plan.stateful else ""

    def _of_changed(self, name: str) -> tuple[bool, str]:
        found = self.found
        if name in found.rekeyed:
            return True, f"another key than its state: {found.rekeyed[name]}"
        if name in found.retyped:
            return True, f"another type or monoid than its state: {found.retyped[name]}"
        if name in found.lacking:
            return True, f"its state has fields that its class has not: {', '.join(found.lacking[name])}"
        if name in found.returned:
            return True, "was away, and has old state"
        if self.topology.step(name).needs_word:
            return True, ""
        if below := found.below.get(name):
            return False, f"what {_names(below)} made with the old code stays; from now on it is the new"
        return False, ""

    def _words(self, name: str, needs: bool) -> Iterator[Choice]:
        if not needs:
            yield Choice("", "the run goes on by itself")
        elif name not in self.found.rekeyed and name not in self.found.retyped:
            yield Choice(f"--accept {name}", "keep its state as it is, and go on with the new code")
        if needs or self.found.below.get(name):
            yield from self._second_run("--recompute", name, lose=True)

    def _past(self, name: str) -> Iterator[Choice]:
        if name in self.plan.stateful and self.ledger.head.commit:
            yield Choice("", self.found.beginning(name))
            yield from self._second_run("--backfill", name, lose=False)

    def _second_run(self, option: str, name: str, lose: bool) -> Iterator[Choice]:
        head, stateful = self.ledger.head, self.plan.stateful
        past = past_of(self.topology, self.ledger, stateful, (name,))
        refused = ""
        try:
            refuse_unfit(self.topology, head, stateful, past, lose)
        except HailstormError as error:
            refused = error.what
        others = [step for step in past.steps if step != name]
        along = f"; {_names(others)} with it" if others else ""
        what = "make its state again from what the logs hold" if lose else "give it the past that the logs hold"
        yield Choice(f"{option} {name}", what + along, past.records, sum(past.lost.values()), refused)


def rows_of_state(live: Live, step: str) -> int:
    """About how many rows of state a step has: rows that are out of date count until they are merged."""
    shape = live.steps.get(step)
    return sum(run.rows for table in (shape.tables if shape else ()) for run in live.runs.get(table, ()))


def bytes_of_state(live: Live, step: str) -> int:
    """How many bytes the runs of a step have."""
    shape = live.steps.get(step)
    return sum(run.bytes for table in (shape.tables if shape else ()) for run in live.runs.get(table, ()))


def _readable(text: str) -> str:
    """The monoids of a fold as its app has them; anything else as it is."""
    try:
        found = [(name, dict(monoid)) for name, monoid in json.loads(text)]
        return ", ".join(f"{name}={_call(**monoid)}" for name, monoid in found)
    except (ValueError, TypeError):
        return text


def _call(monoid: str, **arguments: object) -> str:
    return f"{monoid}({', '.join(str(one) for one in arguments.values() if one is not None)})"


def _parts(old: dict[str, str], new: dict[str, str]) -> Iterator[Part]:
    for name in dict.fromkeys((*old, *new)) if old else ():
        if old.get(name) != new.get(name):
            yield Part(name, old.get(name, ""), new.get(name, ""))


def _texts(one: StepChange) -> str:
    return _lines((*one.parts, one.remark) if one.remark else one.parts)


def _lines(sentences: Sequence[object]) -> str:
    return "; ".join(map(str, sentences))


def _names(steps: Sequence[str]) -> str:
    return ", ".join(f"'{step}'" for step in steps)
