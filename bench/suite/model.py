"""The cost model: seconds = a + b rows + c changed keys + d commits, fitted to ticks of many shapes.

Nothing is required of it. docs/performance.md says what it is good for, and what it predicts.
"""

from __future__ import annotations

import numpy as np

from bench.bench import Bench, Outcome, Say
from bench.contest import Effort, Entrant, Series, run_contest
from bench.work import Work

_SHAPES = [(rows, keys) for rows in (1_000, 100_000, 500_000) for keys in (1_000, 1_000_000)]
_OLD = 5_000  # commits


def measure(quick: bool, say: Say) -> Outcome:
    shapes = [(rows, keys, 0) for rows, keys in _SHAPES[: 4 if quick else None]] + [
        (1_000, 1_000, 500 if quick else _OLD)
    ]
    series: list[Series] = []
    equations, seconds = [], []
    for rows, keys, commits in shapes:
        label = f"{rows:,} rows, {min(rows, keys):,} changed keys" + (f", {commits:,} commits" if commits else "")
        say(label)
        entrant = Entrant(label, "hailstorm", Work("count", rows, keys), {"commits": commits})
        # One after another: six Sparks at once would not fit into a small machine's memory.
        found = run_contest([entrant], _effort(rows, quick), lambda text: None)[label]
        series.append(found)
        equations.append([1.0, rows, min(rows, keys), found.figures["commits"]])
        seconds.append(found.median_ms / 1000)
    weights = 1 / np.array(seconds)  # relative errors: else the largest ticks alone would decide
    known = np.array(equations) * weights[:, None]
    a, b, c, d = np.linalg.lstsq(known, np.array(seconds) * weights, rcond=None)[0]
    predicted = np.array(equations) @ np.array([a, b, c, d])
    notes = {
        "a, ms a tick": float(a * 1e3),
        "b, µs a row": float(b * 1e6),
        "c, µs a changed key": float(c * 1e6),
        "d, ms a thousand commits": float(d * 1e6),
        "largest relative error": float(np.max(np.abs(predicted / np.array(seconds) - 1))),
    }
    return Outcome(tuple(series), (), notes)


def _effort(rows: int, quick: bool) -> Effort:
    small = rows < 20_000
    if quick:
        return Effort(rounds=1, burst=5, warm_up=3)
    return Effort(rounds=1, burst=30 if small else 10, warm_up=40 if small else 8)


BENCH = Bench("model", "cost model: seconds = a + b rows + c changed keys + d commits", measure)
