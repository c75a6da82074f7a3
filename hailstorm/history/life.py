"""A key's life: every change of it, commit by commit, oldest first.

Only runs that can hold the key's hash are opened, and of these one row group. What changed between two kept commits,
and changed back, is not seen: the life is that of the commits that are kept. In a ledger that came from an export it
begins with what was there.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
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
from hailstorm.sinks.values import python_rows


@dataclass(frozen=True)
class Changed:
    """A change of a key: tables of one row, with the key, and with the values of before and after (None: no such
    key)."""

    commit: int
    at: str
    kind: str
    keys: pa.Table
    before: pa.Table | None
    after: pa.Table | None


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
        ours = {
            "commit": pa.array([one.commit for one in changes], pa.int64()),
            "at": pa.array([one.at for one in changes], pa.string()),
            "kind": pa.array([one.kind for one in changes], pa.string()),
        }
        keys = _together([one.keys for one in changes])
        sides = {"before": _structs([one.before for one in changes]), "after": _structs([one.after for one in changes])}
        return pa.table(
            {
                **{beside_key(name, self.wanted): column for name, column in ours.items()},
                **{name: pa.nulls(0) if keys is None else keys.column(name) for name in self.wanted},
                **{beside_key(name, self.wanted): column for name, column in sides.items()},
            }
        )

    def _repr_html_(self) -> str:
        rows = self.arrow()
        key = ", ".join(f"{name}={value}" for name, values in self.wanted.items() for value in values.to_pylist())
        return html_of(rows, f"{self.step} {key}: {rows.num_rows:,} changes")

    def changes(self) -> Iterator[Changed]:
        """The changes, oldest first."""
        newest = self.ledger.newest()
        live = self._beginning()
        step = self._step_at(live, newest)
        hashes = self._hashes(live, step) if step in live.steps else None
        known = self._rows(live, step) if step in live.steps else {}
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
                if not same_value(_plain(before), _plain(after)):
                    kind = INSERT if before is None else DELETE if after is None else UPDATE
                    row = before if after is None else after
                    assert row is not None, "it differs from the other side"
                    sides = (None if one is None else one.select(shape.values) for one in (before, after))
                    yield Changed(commit.commit, commit.at, kind, row.select(shape.key), *sides)
            known = now

    def _beginning(self) -> Live:
        """Nothing; but in a ledger that came from an export, its first commit: what it changed is not known there."""
        first = next(self.ledger.commits(), None)
        return Live() if first is None or first.covers_from == 1 else self.ledger.at(first.commit)

    def _rows(self, live: Live, step: str) -> dict[str, pa.Table]:
        """The rows of the keys, by key."""
        key = live.steps[step].key
        rows = State(self.ledger, live, step).of_keys(self.wanted)
        return {repr([row[name] for name in key]): rows.slice(place, 1) for place, row in enumerate(python_rows(rows))}

    def _step_at(self, live: Live, newest: Live) -> str:
        """What the step was called then; nothing, if another one had its name."""
        then = called_at(self.step, live, newest)
        is_other = self.step in newest.steps and called_now(then, newest.called_then(live.commit)) != self.step
        return "" if is_other else then

    def _hashes(self, live: Live, step: str) -> Hashes | None:
        """None: a key that only Spark hashes, so that any run may hold it."""
        found = State(self.ledger, live, step).hashes_of_keys(self.wanted)
        refuse_part_of_key(self.step, live.steps[step].key, self.wanted)
        return found

    def _holds(self, step: str, run: Run, hashes: Hashes | None) -> bool:
        return hashes is None or bool(parts.rows_of_hashes(self.ledger.cache, step, run, hashes, [HASH]).num_rows)


def refuse_part_of_key(step: str, key: Sequence[str], wanted: Collection[str]) -> None:
    """Raises UsageError when the life of a key is asked for, and only a part of the key is named."""
    if missing := [name for name in key if name not in wanted]:
        raise UsageError(
            94,
            f"a life is of a whole key of '{step}': {', '.join(missing)} is missing",
            hint=f"Name every key column: {', '.join(key)}.",
        )


def _may_hold(first: int, last: int, hashes: Hashes | None) -> bool:
    return hashes is None or bool(np.searchsorted(hashes, first) < np.searchsorted(hashes, last, side="right"))


def _plain(row: pa.Table | None) -> dict[str, Any] | None:
    return None if row is None else next(python_rows(row))


def _together(rows: list[pa.Table]) -> pa.Table | None:
    """Rows of several moments, in the types of the last one: columns may have come since, and types become wider."""
    return pa.concat_tables(rows, promote_options="permissive").combine_chunks() if rows else None


def _structs(rows: list[pa.Table | None]) -> pa.Array:
    """The rows as values of one column, null where there is none."""
    there = _together([row for row in rows if row is not None])
    if there is None or not there.num_columns:
        return pa.array([None if row is None else {} for row in rows])
    counted = itertools.count()
    places = pa.array([None if row is None else next(counted) for row in rows], pa.int64())
    columns = [pa.concat_arrays(column.chunks) for column in there.take(places).columns]
    return pa.StructArray.from_arrays(columns, there.column_names, mask=places.is_null())
