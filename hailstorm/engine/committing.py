"""Making commits: what goes into each kind, and the one place that puts them into the ledger.

The negotiator decides when; it is the only caller. Delivery hears of a commit through the outbox, which remembers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from hailstorm.clock.watermark import Patience, Watermark
from hailstorm.engine.advance import Outcome
from hailstorm.engine.choosing import Choice
from hailstorm.engine.evolution import Evolution
from hailstorm.engine.outbox import LedgerOutbox
from hailstorm.engine.plan import Plan
from hailstorm.engine.second_chance import SecondChance
from hailstorm.ledger.commit import Commit, StateChange, StepShape
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.topology.step import Spout
from hailstorm.topology.topology import Topology


class Committer:
    """The commits of one run: they all have its epoch, which is higher than those before."""

    def __init__(self, topology: Topology, ledger: Ledger, outbox: LedgerOutbox) -> None:
        self._topology, self._ledger, self._outbox = topology, ledger, outbox
        self._epoch = ledger.head.epoch + 1
        self._patience = {
            step.name: Patience(step.lateness_ms * 1000, None if step.idle_ms is None else step.idle_ms * 1000)
            for step in topology.steps
            if isinstance(step, Spout) and step.event_time is not None
        }

    def tick(
        self, choice: Choice, rosters: dict[str, dict[str, str]], outcome: Outcome, now: datetime, seconds: float
    ) -> Commit:
        """`rosters` are those of the logs as they are now; `seconds` is how long it took so far."""
        watermark = self._watermark(outcome, int(now.timestamp() * 1_000_000))
        return self._make(
            "tick",
            now,
            start=choice.interval.start.to_json(),
            end=choice.interval.end.to_json(),
            holes=choice.holes,
            rosters=rosters if rosters != self._ledger.head.rosters else None,
            rows=outcome.rows,
            ms=round(seconds * 1000, 1),
            watermark=_iso(watermark.time),
            event_times=msgspec.convert(watermark.to_json(), dict[str, dict[str, tuple[int, int]]]),
            errors=outcome.errors,
            state=outcome.state,
            outbox=outcome.outbox,
            dead_letters=outcome.letters,
            timings={phase: round(spent * 1000, 2) for phase, spent in outcome.timings.items()},
        )

    def retry(self, outcome: Outcome, retried: tuple[str, ...], now: datetime) -> Commit:
        """Dead letters of these files went through the topology once more."""
        return self._make(
            "retry",
            now,
            errors=outcome.errors,
            state=outcome.state,
            outbox=outcome.outbox,
            dead_letters=outcome.letters,
            retried=retried,
        )

    def second_chance(self, offered: SecondChance) -> Commit:
        """Rows that sinks rejected are in their outboxes again."""
        return self._make("retry", datetime.now(UTC), outbox=offered.outbox, retried_rejects=offered.retried)

    def evolution(self, plan: Plan, found: Evolution) -> Commit:
        """Say in the ledger what the steps are from now on, so that readers need no app."""
        head = self._ledger.head
        steps = dict(head.steps)
        for name, values in plan.stateful.items():
            step = self._topology.step(name)
            steps[name] = StepShape(kind=step.kind, key=step.key, values=values, fingerprint=found.fingerprints[name])
        since = dict(head.since)
        since |= {name: head.clock for name in found.added if name in plan.stateful and head.clock}
        return self._make("evolve", datetime.now(UTC), steps=steps, fingerprints=found.fingerprints, since=since)

    def compaction(self, changes: Mapping[str, StateChange]) -> Commit:
        return self._make("compact", datetime.now(UTC), state=dict(changes))

    def _make(self, reason: str, now: datetime, **fields: Any) -> Commit:
        commit = next_commit(self._ledger.head, reason, self._epoch, now, **fields)
        self._ledger.commit(commit)
        self._outbox.remember(commit)
        return commit

    def _watermark(self, outcome: Outcome, now: int) -> Watermark:
        head = self._ledger.head
        data = {spout: {p: list(pair) for p, pair in row.items()} for spout, row in head.event_times.items()}
        before = Watermark.from_json(_micros(head.watermark), data)
        seen = {
            spout: {p: s.highest for p, s in partitions.items() if s.highest is not None}
            for spout, partitions in outcome.seen.items()
            if spout in self._patience
        }
        return before.advance(seen, now, self._patience)


def _iso(micros: int | None) -> str | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1_000_000, UTC).isoformat()


def _micros(iso: str | None) -> int | None:
    return None if iso is None else round(datetime.fromisoformat(iso).timestamp() * 1_000_000)
