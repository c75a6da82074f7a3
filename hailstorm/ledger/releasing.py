"""Releasing: the state of a step that was removed from the topology is let go.

A step that is removed keeps its state, which stands still, so that it can come back. Releasing is a commit of its own
that has none of it any more: from then on only older commits name the files, and they go as retention lets those go.
Needs no app and no Spark; the topology must not be running (the caller holds the lease).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from hailstorm.errors import LedgerError, suggestion
from hailstorm.faults import fault
from hailstorm.ledger.commit import Commit, StateChange
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.live import Live


@dataclass(frozen=True)
class Kept:
    """The state of a step that is in the topology no more. Rows that are out of date count until they are merged."""

    step: str
    kind: str
    runs: int
    rows: int
    bytes: int


def kept_states(live: Live) -> tuple[Kept, ...]:
    """Every state that is kept for a step that is not there any more."""
    gone = sorted(name for name in {*live.steps, *map(_step_of, live.runs)} if name not in live.fingerprints)
    return tuple(kept for name in gone if (kept := _kept(live, name)) is not None)


def releasable(live: Live, step: str) -> Kept:
    """What releasing a step would let go. Raises LedgerError for a step that is in use, or has nothing."""
    if step in live.fingerprints:
        raise LedgerError(
            54,
            f"step '{step}' is in use: the last run had it",
            hint="Only the state of a step that was removed can go. Remove it from the app, and run that once.",
        )
    found = _kept(live, step)
    if found is None:
        names = [kept.step for kept in kept_states(live)]
        hint = f"Kept for steps that were removed: {', '.join(names) or 'nothing'}. {suggestion(step, names)}".rstrip()
        raise LedgerError(55, f"there is no state of a step '{step}'", hint=hint)
    return found


def release_state(ledger: Ledger, step: str) -> Commit:
    """Let the state of a removed step go, in one commit. Its published table goes with it."""
    head = ledger.head
    releasable(head, step)
    tables = _tables(head, step)
    commit = next_commit(
        head,
        "release",
        ledger.epoch,
        datetime.now(UTC),
        state={table: StateChange(removed=tuple(run.id for run in head.runs[table])) for table in tables},
        steps={name: shape for name, shape in head.steps.items() if name != step},
        coverage={name: spans for name, spans in head.coverage.items() if name != step},
        reached={table: until for table, until in head.reached.items() if _step_of(table) != step},
        watermarks={name: marks for name, marks in head.watermarks.items() if name != step},
    )
    ledger.commit(commit)
    fault("after-release")
    ledger.store.delete_folder(f"delta/{step}")
    return commit


def _kept(live: Live, step: str) -> Kept | None:
    runs = [run for table in _tables(live, step) for run in live.runs[table]]
    if not runs:
        return None
    kind = live.steps[step].kind if step in live.steps else ""
    return Kept(step, kind, len(runs), sum(run.rows for run in runs), sum(run.bytes for run in runs))


def _tables(live: Live, step: str) -> list[str]:
    return [table for table, runs in live.runs.items() if runs and _step_of(table) == step]


def _step_of(table: str) -> str:
    """A table of state is called as its step, or as that with a dot and a word of its own."""
    return table.partition(".")[0]
