"""JSON lines with a string key; count, sum of decimals and max: 500,000 rows over a million keys."""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_least, inverse
from bench.contest import Effort, Entrant, fastest, ratio, run_contest
from bench.work import Work

WORK = Work("purchases", rows=500_000, keys=1_000_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=5, burst=1, warm_up=4)
    entrants = [
        Entrant("Hailstorm", "hailstorm", WORK),
        Entrant("Structured Streaming, tuned", "streaming", WORK),
        Entrant("Structured Streaming, tuned, one partition", "streaming", WORK, {"partitions": 1}),
        Entrant("bare batch job", "batch", WORK),
    ]
    series = run_contest(entrants, effort, say)
    ours, theirs, limit = series["Hailstorm"], fastest(series, "Structured Streaming"), series["bare batch job"]
    return Outcome(
        tuple(series.values()),
        (at_least("times Structured Streaming's rows/s", inverse(ratio(ours, theirs)), 4),),
        {"times the bare batch job": ratio(ours, limit).value},
    )


BENCH = Bench("json", "string keys, JSON, count, sum of decimals and max, 500,000 rows, 1M keys", measure)
