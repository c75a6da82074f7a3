"""Making commits: what goes into each kind, and the one place that puts them into the ledger.

The negotiator decides when; it is the only caller. Delivery hears of a commit through the outbox, which remembers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from hailstorm.clock.watermark import OfSteps
from hailstorm.engine.advance import Outcome
from hailstorm.engine.delivery.joining import known_sinks
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.delivery.second_chance import SecondChance
from hailstorm.engine.plan.plan import Plan
from hailstorm.engine.ticks.agendas import Agendas
from hailstorm.engine.ticks.beginning import Begun
from hailstorm.engine.ticks.covering import begun, refuse_overlap
from hailstorm.engine.ticks.evolution import Evolution
from hailstorm.engine.ticks.letters import Merged
from hailstorm.engine.ticks.logs import Choice, Look
from hailstorm.engine.ticks.renaming import renaming
from hailstorm.engine.ticks.replacing import Replacement
from hailstorm.engine.ticks.times import Times
from hailstorm.engine.tolerance import Recent
from hailstorm.errors import LedgerError
from hailstorm.ledger.commit import Commit, DataFile, SinkShape, StateChange
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.live import Live
from hailstorm.ledger.renaming import Names
from hailstorm.ledger.runs import run_name
from hailstorm.topology.fingerprint import declared_parts
from hailstorm.topology.topology import Topology


def tick_fields(times: Times, agendas: Agendas, head: Live, outcome: Outcome, now: int) -> dict[str, Any]:
    """What the commit of an advance from `head` says, whether it becomes a commit of the ledger or of a rerun."""
    reached = agendas.reached(head, now)
    watermark = times.after(head, outcome.seen, now)
    return {
        "rows": outcome.rows,
        **times.fields(watermark, agendas.released(head, outcome.state, reached)),
        "reached": reached,
        "late": outcome.late,
        "errors": outcome.errors,
        "state": outcome.state,
        "outbox": outcome.outbox,
        "dead_letters": outcome.letters,
    }


class Committer:
    """The commits of one run: they all have its epoch, which is higher than those before."""

    def __init__(self, topology: Topology, ledger: Ledger, outbox: LedgerOutbox) -> None:
        self._topology, self._ledger, self._outbox = topology, ledger, outbox
        self._epoch = ledger.epoch
        self._times = Times(topology)
        self._agendas = Agendas(topology, ledger)

    def tick(self, choice: Choice, outcome: Outcome, recent: Recent, now: datetime, seconds: float) -> Commit:
        """`recent` counts the bad rows of this tick and of those before; `seconds` is how long it took so far."""
        refuse_overlap(self._ledger.head, choice.interval)
        micros = int(now.timestamp() * 1_000_000)
        return self._make(
            "tick",
            now,
            synced=outcome.synced,
            **tick_fields(self._times, self._agendas, self._ledger.head, outcome, micros),
            start=choice.interval.start.to_json(),
            end=choice.interval.end.to_json(),
            holes=choice.holes,
            ms=round(seconds * 1000, 1),
            recent=recent,
            timings={phase: round(spent * 1000, 2) for phase, spent in outcome.timings.items()},
        )

    def retry(self, outcome: Outcome, files: Mapping[str, DataFile | None], now: datetime) -> Commit:
        """Dead letters went through the topology once more. Each of `files` is replaced by one with those that stay, or
        by none."""
        stay = tuple(file for file in files.values() if file is not None)
        return self._make(
            "retry",
            now,
            late=outcome.late,
            errors=outcome.errors,
            state=outcome.state,
            outbox=outcome.outbox,
            dead_letters=(*stay, *outcome.letters),
            retried=tuple(files),
            recent=(),
        )

    def complete(self, now: datetime) -> Commit:
        """The logs hold all that there will be: the watermark goes to the end of time."""
        head = self._ledger.head
        released = self._agendas.released(head, {}, head.reached)
        return self._make("complete", now, **self._times.fields(self._times.at_the_end(head), released))

    def second_chance(self, offered: SecondChance, now: datetime) -> Commit:
        """Rows that sinks rejected are in their outboxes again."""
        return self._make("retry", now, outbox=offered.outbox, retried_rejects=offered.retried)

    def whole(self, outbox: dict[str, tuple[DataFile, ...]], why: dict[str, str], now: datetime) -> Commit:
        """The outboxes of these sinks have their whole tables."""
        return self._make("resend", now, outbox=outbox, whole=why)

    def beginnings(self, look: Look) -> None:
        """Say in the ledger where new partitions begin, and which logs there are, if that is news."""
        if news := look.news(self._ledger.head):
            self._make("evolve", datetime.now(UTC), coverage=self._ledger.head.coverage, **news)

    def evolution(
        self,
        plan: Plan,
        found: Evolution,
        look: Look | None,
        replacement: Replacement | None = None,
        first: Begun | None = None,
    ) -> Commit:
        """Say in the ledger what the steps are from now on, so that readers need no app, and where logs begin.

        A replacement comes with it: the old state of a step whose key has changed fits no shape. So does what new steps
        have of the tables that they read.
        """
        head = self._ledger.head
        steps = dict(head.steps)
        for name, shape in plan.stateful.items():
            formerly = head.steps[name].formerly if name in head.steps else ()
            steps[name] = msgspec.structs.replace(shape, fingerprint=found.fingerprints[name], formerly=formerly)
        fields = {
            "coverage": {**head.coverage, **begun(self._topology, plan.stateful, head.coverage)},
            "sinks": known_sinks(self._topology, set(plan.stateful), head, found.fingerprints),
            "watermarks": self._times.evolved(head, self._agendas.released(head, {}, head.reached)),
            **(look.news(head) if look is not None else {}),
        }
        if replacement is not None:
            new = self._replaced(plan, replacement, msgspec.structs.replace(head, steps=steps), fields["sinks"])
            fields |= {**new, "coverage": {**fields["coverage"], **new["coverage"]}}
        if first is not None:
            fields |= self._begun(first, msgspec.structs.replace(head, steps=steps), fields)
        return self._make(
            "evolve",
            datetime.now(UTC),
            steps=steps,
            fingerprints=found.fingerprints,
            declared=declared_parts(self._topology),
            recent=(),
            **fields,
        )

    def _begun(self, first: Begun, head: Live, fields: Mapping[str, Any]) -> dict[str, Any]:
        """What the commit says, with what new steps have of their tables. `head` has the steps of now."""
        outcome = first.outcome
        state = {**fields.get("state", {}), **outcome.state}
        return {
            "coverage": {**fields["coverage"], **first.coverage},
            "watermarks": self._handed_on(head, state, fields.get("reached", head.reached)),
            "state": state,
            "outbox": outcome.outbox,
            "late": outcome.late,
            "errors": outcome.errors,
            "dead_letters": (*fields.get("dead_letters", ()), *outcome.letters),
        }

    def renaming(self, plan: Plan, names: Names) -> Commit:
        """These steps and sinks go on under other names."""
        ledger = self._ledger
        fields = renaming(self._topology, ledger.store, ledger.head, names, set(plan.stateful), ledger.stamp)
        return self._make("rename", datetime.now(UTC), **fields)

    def backfill(self, plan: Plan, replacement: Replacement) -> Commit:
        """Steps have their past."""
        head = self._ledger.head
        return self._make("backfill", datetime.now(UTC), **self._replaced(plan, replacement, head, head.sinks))

    def _replaced(self, plan: Plan, new: Replacement, head: Live, sinks: Mapping[str, SinkShape]) -> dict[str, Any]:
        """`head` has the steps of now."""
        ledger = self._ledger
        fields = new.fields(self._topology, ledger.store, ledger.head, plan.stateful, sinks, ledger.stamp)
        return {**fields, "watermarks": self._handed_on(head, fields["state"], fields["reached"])}

    def _handed_on(self, head: Live, state: Mapping[str, StateChange], reached: Mapping[str, int]) -> OfSteps:
        """The watermarks of all steps when this state takes the place of theirs: what waits in it is not released, or
        the steps below would call it late."""
        return self._times.evolved(head, self._agendas.released(head, state, reached))

    def compaction(self, changes: Mapping[str, StateChange]) -> Commit:
        return self._make("compact", datetime.now(UTC), state=dict(changes))

    def letters(self, merged: Merged) -> Commit:
        """Dead letters are in fewer files now."""
        return self._make("compact", datetime.now(UTC), dead_letters=merged.files, retried=merged.gone)

    def _make(self, reason: str, now: datetime, synced: bool = True, **fields: Any) -> Commit:
        commit = next_commit(self._ledger.head, reason, self._epoch, now, **fields)
        named = self._refuse_unseen(commit)
        self._ledger.commit(commit, () if synced else named)
        self._outbox.remember(commit)
        return commit

    def _refuse_unseen(self, commit: Commit) -> list[str]:
        """A commit names no file that is not there as a whole: a task may have written to another machine's disk.
        What it names."""
        runs = [(run_name(step, run.id), run.bytes) for step, change in commit.state.items() for run in change.added]
        files = [*commit.dead_letters, *(file for files in commit.outbox.values() for file in files)]
        named = dict((*runs, *((file.path, file.bytes) for file in files)))
        there = self._ledger.store.sizes(list(named))
        for name, size in named.items():
            found = there[name]
            if found != size:
                what = "is not there" if found is None else f"has {found:,} bytes and not {size:,}"
                raise LedgerError(
                    60,
                    f"'{name}', which a task says it has written, {what}",
                    hint="Nothing was committed. All workers must write to the ledger that the driver sees.",
                )
        return list(named)
