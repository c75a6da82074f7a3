"""Large ticks: 500,000 rows over a million keys. What counts is rows per second."""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_least, at_most, inverse
from bench.contest import Effort, Entrant, fastest, ratio, run_contest
from bench.work import Work

WORK = Work("count", rows=500_000, keys=1_000_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=5, burst=1, warm_up=3)
    entrants = [
        Entrant("Hailstorm", "hailstorm", WORK),
        Entrant("Structured Streaming", "streaming", WORK, {"tuned": False}),
        Entrant("Structured Streaming, tuned", "streaming", WORK, {"tuned": True}),
        Entrant("Structured Streaming, tuned, one partition", "streaming", WORK, {"tuned": True, "partitions": 1}),
        Entrant("bare batch job", "batch", WORK),
        Entrant("bare batch job, one partition", "batch", WORK, {"partitions": 1}),
    ]
    series = run_contest(entrants, effort, say)
    ours, theirs, limit = (
        series["Hailstorm"],
        fastest(series, "Structured Streaming"),
        fastest(series, "bare batch job"),
    )
    checks = (
        at_least("times Structured Streaming's rows/s", inverse(ratio(ours, theirs)), 5),
        at_most("times the bare batch job", ratio(ours, limit), 1.5),
    )
    untuned = inverse(ratio(ours, series["Structured Streaming"]))
    return Outcome(tuple(series.values()), checks, {"times Structured Streaming, not tuned": untuned.value})


BENCH = Bench("large", "running count, 500,000 rows a tick, 1M keys", measure)
