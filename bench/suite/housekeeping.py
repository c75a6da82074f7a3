"""What goes on beside the ticks: compaction, manifests, delivery. No tick may wait for it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, Ratio, run_contest
from bench.peers.peer import Tick
from bench.work import Work

WORK = Work("count", rows=1_000, keys=100_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=100, warm_up=50) if quick else Effort(rounds=5, burst=500, warm_up=200)
    series = run_contest([Entrant("Hailstorm", "hailstorm", WORK)], effort, say)["Hailstorm"]
    ratios = [_high(ticks) for ticks in series.rounds]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    longest = max(series.milliseconds) / series.median_ms
    return Outcome(
        (series,),
        (at_most("times the median tick is the 99th percentile", Ratio(middle, low, high), 2),),
        {"times the median tick is the longest of all": longest},
    )


def _high(ticks: Sequence[Tick]) -> float:
    """The 99th percentile of a round, by its median."""
    ordered = sorted(tick.ms for tick in ticks)
    return ordered[len(ordered) * 99 // 100] / statistics.median(ordered)


BENCH = Bench("housekeeping", "the 99th percentile of 500 ticks, compaction and manifests included", measure)
