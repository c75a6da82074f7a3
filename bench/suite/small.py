"""Small ticks: 1,000 rows over 100,000 keys. What counts is what a tick costs however little it does."""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, fastest, ratio, run_contest
from bench.work import Work

WORK = Work("count", rows=1_000, keys=100_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=5, warm_up=10) if quick else Effort(rounds=7, burst=15, warm_up=40)
    entrants = [
        Entrant("Hailstorm", "hailstorm", WORK),
        Entrant("Structured Streaming", "streaming", WORK),
        Entrant("Structured Streaming, one partition", "streaming", WORK, {"partitions": 1}),
        Entrant("bare batch job, one partition", "batch", WORK, {"partitions": 1}),
    ]
    series = run_contest(entrants, effort, say)
    ours, theirs = series["Hailstorm"], fastest(series, "Structured Streaming")
    return Outcome(
        tuple(series.values()), (at_most("of Structured Streaming's micro-batch", ratio(ours, theirs), 0.06),)
    )


BENCH = Bench("small", "running count, 1,000 rows a tick, 100k keys", measure)
