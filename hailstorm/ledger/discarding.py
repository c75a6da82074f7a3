"""Discarding dead letters: somebody says by name that the letters of a step, or of a sink, are given up, and why.

It is a commit, so the history knows who left and what was said. Earlier commits still name the files. Needs no app and
no Spark; the topology must not be running (the caller holds the lease).
"""

from __future__ import annotations

from datetime import UTC, datetime

from hailstorm.errors import LedgerError, suggestion
from hailstorm.ledger.commit import Discarded
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.letters import REJECTED
from hailstorm.ledger.stores.store import read_table

ALL = "all"


def discard(ledger: Ledger, name: str, reason: str) -> dict[str, int]:
    """Take the letters of one step or sink, or all, from the list. How many, by step."""
    counts: dict[str, int] = {}
    gone: list[str] = []
    known: set[str] = set(ledger.store.list(REJECTED))
    for file in ledger.head.dead_letters:
        # A file has letters of one step.
        step = read_table(ledger.store, file.path, ["step"], file.sums)["step"][0].as_py()
        known.add(step)
        if name in (ALL, step):
            counts[step] = counts.get(step, 0) + file.rows
            gone.append(file.path)
    rejects = _rejected(ledger, name, counts)
    if not counts:
        raise LedgerError(
            35,
            "there are no dead letters" if name == ALL else f"there are no dead letters of '{name}'",
            hint=f"To see those that there are: hailstorm errors TARGET. {suggestion(name, known)}".strip(),
        )
    commit = next_commit(
        ledger.head,
        "discard",
        ledger.epoch,
        datetime.now(UTC),
        retried=tuple(gone),
        recent=(),
        retried_rejects=rejects,
        discarded={step: Discarded(many, reason) for step, many in counts.items()},
    )
    ledger.commit(commit)
    return counts


def _rejected(ledger: Ledger, name: str, counts: dict[str, int]) -> dict[str, int]:
    """Up to which commit the rows that sinks rejected are given up. What is rejected later is a new letter."""
    found: dict[str, int] = {}
    for sink in ledger.store.list(REJECTED):
        for commit, letters in ledger.rejected_by(sink, ledger.head) if name in (ALL, sink) else ():
            counts[sink] = counts.get(sink, 0) + letters.num_rows
            found[sink] = commit
    return found
