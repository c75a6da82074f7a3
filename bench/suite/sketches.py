"""Sketches: how many different values, and which is in the middle, for each of 100,000 keys; 500,000 rows."""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_least, inverse
from bench.contest import Effort, Entrant, fastest, ratio, run_contest
from bench.work import Work

WORK = Work("sketches", rows=500_000, keys=100_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=1, burst=1, warm_up=1) if quick else Effort(rounds=5, burst=1, warm_up=2)
    entrants = [
        Entrant("Hailstorm", "hailstorm", WORK),
        Entrant("Structured Streaming", "streaming", WORK),
        Entrant("Structured Streaming, one partition", "streaming", WORK, {"partitions": 1}),
    ]
    series = run_contest(entrants, effort, say)
    times = inverse(ratio(series["Hailstorm"], fastest(series, "Structured Streaming")))
    return Outcome(tuple(series.values()), (at_least("times Structured Streaming's rows/s", times, 2),))


BENCH = Bench("sketches", "count_distinct and quantiles for 100k keys, 500,000 rows", measure)
