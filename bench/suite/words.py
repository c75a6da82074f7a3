"""Trending words: a Python bolt, a fold, a top 10 and two sinks, on 1,000 lines of 10 words a tick.

Structured Streaming only counts the words, with SQL: it cannot do the rest in one query.
"""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, fastest, ratio, run_contest
from bench.work import Work

WORK = Work("words", rows=1_000, keys=10_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=5, warm_up=10) if quick else Effort(rounds=7, burst=10, warm_up=40)
    entrants = [
        Entrant("Hailstorm", "hailstorm", WORK),
        Entrant("Structured Streaming, count alone", "streaming", WORK),
        Entrant("Structured Streaming, count alone, one partition", "streaming", WORK, {"partitions": 1}),
    ]
    series = run_contest(entrants, effort, say)
    measured = ratio(series["Hailstorm"], fastest(series, "Structured Streaming"))
    return Outcome(
        tuple(series.values()), (at_most("of Structured Streaming's micro-batch for the count alone", measured, 0.10),)
    )


BENCH = Bench("words", "trending words: bolt, fold, top, two sinks, 1,000 lines of 10 words", measure)
