"""A day of ticks: a ledger of 20,000 commits beside one of 200.

The commits are made by ticks whose Spark job is left out (peers/ageing.py); compaction, manifests and everything
else of a tick happen as always. What is measured then are whole ticks, in turns on the two ledgers.
"""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, ratio, run_contest
from bench.work import Work

WORK = Work("count", rows=1_000, keys=100_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=5, warm_up=10) if quick else Effort(rounds=7, burst=10, warm_up=40)
    many = 2_000 if quick else 20_000
    entrants = [
        Entrant("Hailstorm, 200 commits", "hailstorm", WORK, {"commits": 200}),
        Entrant(f"Hailstorm, {many:,} commits", "hailstorm", WORK, {"commits": many}),
    ]
    series = run_contest(entrants, effort, say)
    young, old = series.values()
    return Outcome(tuple(series.values()), (at_most("times the tick at 200 commits", ratio(old, young), 1.1),))


BENCH = Bench("day", "a day of ticks: 20,000 commits", measure)
