"""One key with half of all rows, beside evenly spread keys: 500,000 rows over a million keys."""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, ratio, run_contest
from bench.work import Work


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=5, burst=3, warm_up=8)
    entrants = [
        Entrant("Hailstorm, even keys", "hailstorm", Work("count", rows=500_000, keys=1_000_000)),
        Entrant("Hailstorm, one hot key", "hailstorm", Work("count", rows=500_000, keys=1_000_000, hot=50)),
    ]
    series = run_contest(entrants, effort, say)
    even, hot = series.values()
    return Outcome(tuple(series.values()), (at_most("times evenly spread keys", ratio(hot, even), 1.2),))


BENCH = Bench("hot", "one key with half of all rows", measure)
