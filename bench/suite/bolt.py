"""A Python bolt beside the same function in a bare mapInArrow that counts and sums what comes out: 500,000 rows."""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_least, inverse
from bench.contest import Effort, Entrant, ratio, run_contest
from bench.work import Work

WORK = Work("bolt", rows=500_000, keys=1_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=5, burst=3, warm_up=5)
    series = run_contest([Entrant("Hailstorm", "hailstorm", WORK), Entrant("mapInArrow", "mapper", WORK)], effort, say)
    share = inverse(ratio(series["Hailstorm"], series["mapInArrow"]))
    return Outcome(tuple(series.values()), (at_least("of the rows/s of a bare mapInArrow", share, 0.8),))


BENCH = Bench("bolt", "Python bolt, 500,000 rows", measure)
