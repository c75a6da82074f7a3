"""What goes on beside the ticks: compaction, manifests and publishing. No tick may wait for it.

State is published every second, ten times as often as it is by default, so that there is something to see.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, Ratio, run_contest
from bench.peers.hailstorm import BESIDE
from bench.peers.peer import Tick
from bench.work import Work

WORK = Work("count", rows=1_000, keys=100_000)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=100, warm_up=50) if quick else Effort(rounds=5, burst=500, warm_up=200)
    series = run_contest([Entrant("Hailstorm", "hailstorm", WORK, {"publish": "1 second"})], effort, say)["Hailstorm"]
    low, middle, high = statistics.quantiles(map(_high, series.rounds), n=4, method="inclusive")
    ticks = [tick for round_ in series.rounds for tick in round_]
    beside = [tick.ms for tick in ticks if tick.parts[BESIDE]]
    others = [tick.ms for tick in ticks if not tick.parts[BESIDE]]
    return Outcome(
        (series,),
        (at_most("times the median tick is the 99th percentile", Ratio(middle, low, high), 2.5),),
        {
            "part of the ticks with housekeeping beside them": len(beside) / len(ticks),
            "times the median of the others is their median": statistics.median(beside) / statistics.median(others),
            "times the median is their 99th percentile": _ninety_ninth(beside) / series.median_ms,
            "times the median is the 99th percentile of the others": _ninety_ninth(others) / series.median_ms,
        },
    )


def _ninety_ninth(milliseconds: Iterable[float]) -> float:
    ordered = sorted(milliseconds)
    return ordered[len(ordered) * 99 // 100]


def _high(ticks: Sequence[Tick]) -> float:
    """The 99th percentile of a round, by its median."""
    return _ninety_ninth(tick.ms for tick in ticks) / statistics.median(tick.ms for tick in ticks)


BENCH = Bench("housekeeping", "the 99th percentile of 500 ticks, with compaction, manifests and publishing", measure)
