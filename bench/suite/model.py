"""The cost model: seconds = a + b rows + c changed keys + d commits, fitted to ticks of many shapes.

Nothing is required of it. docs/performance.md says what it is good for, and what it predicts.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bench.bench import Bench, Outcome, Say
from bench.contest import Effort, Entrant, Series, run_contest
from bench.work import Work

_SHAPES = [(rows, keys) for rows in (1_000, 100_000, 500_000) for keys in (1_000, 1_000_000)]
_OLD = 5_000  # commits

Matrix = npt.NDArray[np.float64]


def measure(quick: bool, say: Say) -> Outcome:
    shapes = [(rows, keys, 0) for rows, keys in _SHAPES[: 4 if quick else None]] + [
        (1_000, 1_000, 500 if quick else _OLD)
    ]
    series: list[Series] = []
    equations, seconds = [], []
    for rows, keys, commits in shapes:
        label = f"{rows:,} rows, {min(rows, keys):,} of {keys:,} keys" + (f", {commits:,} commits" if commits else "")
        say(label)
        entrant = Entrant(label, "hailstorm", Work("count", rows, keys), {"commits": commits})
        # One after another: six Sparks at once would not fit into a small machine's memory.
        found = run_contest([entrant], _effort(rows, quick), lambda text: None)[label]
        series.append(found)
        equations.append([1.0, rows, min(rows, keys), found.figures["commits"]])
        seconds.append(found.median_ms / 1000)
    known, wanted = np.array(equations), np.array(seconds)
    a, b, c, d = costs = _fitted(known, wanted)
    notes = {
        "a, ms a tick": a * 1e3,
        "b, µs a row": b * 1e6,
        "c, µs a changed key": c * 1e6,
        "d, ms a thousand commits": d * 1e6,
        "largest relative error": float(np.max(np.abs(known @ np.array(costs) / wanted - 1))),
    }
    return Outcome(tuple(series), (), notes)


def _fitted(equations: Matrix, seconds: Matrix) -> list[float]:
    """Least squares of relative errors: else the largest ticks alone would decide.

    Nothing makes a tick cheaper. A cost that comes out below zero is noise: it is taken as none, and the others are
    fitted again.
    """
    used = list(range(equations.shape[1]))
    while True:
        costs, *_ = np.linalg.lstsq(equations[:, used] / seconds[:, None], np.ones(len(seconds)), rcond=None)
        if costs.min() >= 0:
            known = dict(zip(used, costs, strict=True))
            return [float(known.get(column, 0.0)) for column in range(equations.shape[1])]
        del used[int(costs.argmin())]


def _effort(rows: int, quick: bool) -> Effort:
    small = rows < 20_000
    if quick:
        return Effort(rounds=1, burst=5, warm_up=3)
    return Effort(rounds=1, burst=100 if small else 20, warm_up=200 if small else 20)


BENCH = Bench("model", "cost model: seconds = a + b rows + c changed keys + d commits", measure)
