"""A key's life: every change of it, commit by commit, oldest first.

Only runs that can hold the key's hash are opened, and of these one row group. What changed between two kept commits,
and changed back, is not seen: the life is that of the commits that are kept. In a ledger that came from an export it
begins with what was there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from hailstorm.columns import HASH
from hailstorm.errors import UsageError
from hailstorm.history.diff import DELETE, INSERT, UPDATE, beside_key
from hailstorm.history.touched import changing, is_plain
from hailstorm.ledger import parts
from hailstorm.ledger.commit import Run
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.reader import Rows, State, html_of
from hailstorm.ledger.renaming import called_at, called_now
from hailstorm.ledger.runs import Hashes
from hailstorm.ledger.same_value import same_value


@dataclass(frozen=True)
class Life(Rows):
    """What became of some keys of a step."""

    ledger: Ledger
    step: str
    wanted: Mapping[str, pa.Array]  # every key column, with the values that are asked for
    until: int | None = None  # a commit; None: the newest

    def arrow(self) -> pa.Table:
        """One row per change: `commit`, `at`, `kind`, the key, and the values `before` and `after`."""
        changes = list(self.changes())
        commit, at, kind, before, after = (
            beside_key(name, self.wanted) for name in ("commit", "at", "kind", "before", "after")
        )
        columns = [commit, at, kind, *self.wanted, before, after]
        return pa.Table.from_pylist(changes) if changes else pa.table({name: pa.nulls(0) for name in columns})

    def _repr_html_(self) -> str:
        rows = self.arrow()
        key = ", ".join(f"{name}={value}" for name, values in self.wanted.items() for value in values.to_pylist())
        return html_of(rows, f"{self.step} {key}: {rows.num_rows:,} changes")

    def changes(self) -> Iterator[dict[str, Any]]:
        """The changes, oldest first, as plain values."""
        newest = self.ledger.newest()
        live = self._beginning()
        step = self._step_at(live, newest)
        hashes = self._hashes(live, step) if step in live.steps else None
        known = {} if hashes is None else self._rows(live, step)
        for commit in self.ledger.commits(after=live.commit):
            if self.until is not None and commit.commit > self.until:
                return
            before_it = live
            live = live.after(commit)
            step = self._step_at(live, newest)
            shape = live.steps.get(step)
            if shape is None:
                continue
            hashes = self._hashes(live, step) if hashes is None or commit.steps is not None else hashes
            runs = before_it.runs.get(step, ())
            touched = [run for run in changing(commit, step, runs) if _may_hold(run.first, run.last, hashes)]
            # A tick's own runs say at once whether the key is among them.
            if is_plain(commit) and not any(self._holds(step, run, hashes) for run in touched):
                continue
            if not touched:
                continue
            now = self._rows(live, step)
            for key in [*known, *(key for key in now if key not in known)]:
                before, after = known.get(key), now.get(key)
                if not same_value(before, after):
                    ours = {
                        "commit": commit.commit,
                        "at": commit.at,
                        "kind": INSERT if before is None else DELETE if after is None else UPDATE,
                    }
                    sides = {"before": _values(before, shape.values), "after": _values(after, shape.values)}
                    yield {
                        **{beside_key(name, shape.key): value for name, value in ours.items()},
                        **{name: (after or before or {})[name] for name in shape.key},
                        **{beside_key(name, shape.key): value for name, value in sides.items()},
                    }
            known = now

    def _beginning(self) -> Live:
        """Nothing; but in a ledger that came from an export, its first commit: what it changed is not known there."""
        first = next(self.ledger.commits(), None)
        return Live() if first is None or first.covers_from == 1 else self.ledger.at(first.commit)

    def _rows(self, live: Live, step: str) -> dict[tuple[str, ...], dict[str, Any]]:
        """The rows of the keys, by key."""
        key = live.steps[step].key
        rows = State(self.ledger, live, step).of_keys(self.wanted).to_pylist()
        return {tuple(repr(row[name]) for name in key): row for row in rows}

    def _step_at(self, live: Live, newest: Live) -> str:
        """What the step was called then; nothing, if another one had its name."""
        then = called_at(self.step, live, newest)
        is_other = self.step in newest.steps and called_now(then, newest.called_then(live.commit)) != self.step
        return "" if is_other else then

    def _hashes(self, live: Live, step: str) -> Hashes:
        found = State(self.ledger, live, step).hashes_of_keys(self.wanted)
        if found is None:
            key = live.steps[step].key
            missing = [name for name in key if name not in self.wanted] or key
            raise UsageError(
                94,
                f"--history needs the whole key of '{self.step}': {', '.join(missing)} is missing",
                hint="Name every key column: " + " ".join(f"--key {name}=…" for name in key),
            )
        return found

    def _holds(self, step: str, run: Run, hashes: Hashes) -> bool:
        return bool(parts.rows_of_hashes(self.ledger.cache, step, run, hashes, [HASH]).num_rows)


def _may_hold(first: int, last: int, hashes: Hashes) -> bool:
    return bool(np.searchsorted(hashes, first) < np.searchsorted(hashes, last, side="right"))


def _values(row: Mapping[str, Any] | None, values: Sequence[str]) -> dict[str, Any] | None:
    return None if row is None else {name: row[name] for name in values}
