"""Audit: the state of a count over 1M keys against the log, 10M rows at once, beside a bare Spark batch job over them.

The audit does what the job does, and looks up, writes and compares a million keys besides.
"""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, fastest, ratio, run_contest
from bench.work import Work


def measure(quick: bool, say: Say) -> Outcome:
    rows, keys = (200_000, 20_000) if quick else (10_000_000, 1_000_000)
    work = Work("count", rows=rows, keys=keys, filled=rows)
    effort = Effort(rounds=2, burst=1, warm_up=1) if quick else Effort(rounds=5, burst=1, warm_up=2)
    entrants = [
        Entrant("Hailstorm's audit", "auditor", work),
        Entrant("bare batch job", "batch", work),
        Entrant("bare batch job, one partition", "batch", work, {"partitions": 1}),
    ]
    series = run_contest(entrants, effort, say)
    ours, limit = series["Hailstorm's audit"], fastest(series, "bare batch job")
    return Outcome(tuple(series.values()), (at_most("times the bare batch job", ratio(ours, limit), 2),))


BENCH = Bench("audit", "audit of 10M rows, 1M keys", measure)
