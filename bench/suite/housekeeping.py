"""What goes on beside the ticks: compaction, manifests, delivery. No tick may wait for it."""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, Ratio, run_contest
from bench.work import Work

WORK = Work("count", rows=1_000, keys=100_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=1, burst=100 if quick else 500, warm_up=50)
    series = run_contest([Entrant("Hailstorm", "hailstorm", WORK)], effort, say)["Hailstorm"]
    ticks, median = series.milliseconds, series.median_ms
    high = [ticks[len(ticks) * percent // 100] / median for percent in (98, 99)]
    worst = Ratio(high[1], high[0], ticks[-1] / median)
    return Outcome((series,), (at_most("times the median tick is the 99th percentile", worst, 2),))


BENCH = Bench("housekeeping", "the 99th percentile of 500 ticks, compaction and manifests included", measure)
