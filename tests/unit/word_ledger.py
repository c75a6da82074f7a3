"""A ledger of word counts that is made by hand: ticks and compactions without Spark, and what the counts were."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from hailstorm.ledger.commit import Run, StateChange, StepShape
from hailstorm.ledger.compaction import compact
from hailstorm.ledger.hashing import hash_columns
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.ledger.runs import write_run

SHAPE = StepShape(kind="fold", key=("word",), values=("n",), fingerprint="f", tables={"counts": ("word",)})
BEGIN = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)


class WordLedger:
    step = "counts"  # the name that it has

    def __init__(self, root: str | Path) -> None:
        self.ledger = Ledger(root, create=True)
        self.at: dict[int, dict[str, int]] = {0: {}}  # the counts at every commit
        self.ticks: dict[int, tuple[int, dict[str, dict[int, int]]]] = {}  # `now` and clock of every commit

    def tick(self, changes: dict[str, int | None]) -> None:
        """Set the counts of some words; None removes one."""
        ledger = self.ledger
        state = {self.step: StateChange(added=(self._written(changes),))} if changes else {}
        steps = {"steps": {"counts": SHAPE}, "fingerprints": {"counts": "f"}} if not ledger.head.commit else {}
        end = {"lines": {"0": ledger.head.clock.get("lines", {}).get("0", 0) + len(changes)}}
        self._commit("tick", state=state, end=end, **steps)
        new = {**self.at[max(at for at in self.at if at < ledger.head.commit)], **changes}
        self.at[ledger.head.commit] = {word: n for word, n in new.items() if n is not None}

    def compact(self) -> None:
        """Merge all runs into one."""
        ledger = self.ledger
        runs = ledger.head.runs.get("counts", ())
        change = compact(ledger.store, ledger.cache, "counts", ("word",), runs, ledger.stamp, everything=True)
        if change is not None:
            self._commit("compact", state={"counts": change})
            self.at[ledger.head.commit] = self.at[ledger.head.commit - 1]

    def _commit(self, reason: str, **fields: Any) -> None:
        ledger = self.ledger
        now = BEGIN + timedelta(seconds=ledger.head.commit)
        ledger.commit(next_commit(ledger.head, reason, ledger.epoch, now, **fields))
        clock = {spout: {int(p): offset for p, offset in row.items()} for spout, row in ledger.head.clock.items()}
        self.ticks[ledger.head.commit] = round(now.timestamp() * 1_000_000), clock

    def rows(self, changes: dict[str, int | None]) -> pa.Table:
        """The rows of a run."""
        words, counts = list(changes), list(changes.values())
        return pa.table(
            {
                "_bucket": pa.array([0] * len(words), pa.int16()),
                "_hash": pa.array(hash_columns([pa.array(words)], len(words))),
                "word": words,
                "n": pa.array(counts, pa.int64()),
                "_updated": pa.array([None] * len(words), pa.timestamp("us", tz="UTC")),
                "_deleted": [n is None for n in counts],
            }
        ).sort_by("_hash")

    def _written(self, changes: dict[str, int | None]) -> Run:
        return write_run(self.ledger.store, self.step, self.rows(changes), self.ledger.stamp)
