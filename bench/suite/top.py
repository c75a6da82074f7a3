"""A fold and its top ten beside the fold alone: 500,000 rows a tick over a million keys, evenly spread.

So half of all counts change in every tick, and most of them are equal: the hardest case for whoever keeps the largest.
"""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, ratio, run_contest
from bench.work import Work

ALONE = Work("count", rows=500_000, keys=1_000_000)
BOTH = Work("top", rows=500_000, keys=1_000_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=7, burst=3, warm_up=10)
    series = run_contest(
        [Entrant("Hailstorm, fold", "hailstorm", ALONE), Entrant("Hailstorm, fold and top", "hailstorm", BOTH)],
        effort,
        say,
    )
    alone, both = series.values()
    return Outcome(tuple(series.values()), (at_most("times the fold alone", ratio(both, alone), 1.3),))


BENCH = Bench("top", "a fold and its top 10, 500,000 rows a tick, 1M keys", measure)
