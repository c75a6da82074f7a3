"""Backfill: a count over 10M rows made once more from the log, beside a bare Spark batch job over them; and live ticks
while a backfill takes half of the time.

A backfill reads, groups, writes a state, and takes over in a commit. Live ticks wait for the piece of it that is under
way: how long is a figure of its own.
"""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_least, at_most, inverse
from bench.contest import Effort, Entrant, Series, fastest, ratio, run_contest
from bench.peers.backfiller import WAITED
from bench.work import Work


def offline(quick: bool, say: Say) -> Outcome:
    rows, keys = (200_000, 20_000) if quick else (10_000_000, 1_000_000)
    work = Work("count", rows=rows, keys=keys, filled=rows)
    effort = Effort(rounds=2, burst=1, warm_up=1) if quick else Effort(rounds=5, burst=1, warm_up=2)
    entrants = [
        Entrant("Hailstorm's backfill", "backfiller", work),
        Entrant("bare batch job", "batch", work),
        Entrant("bare batch job, one partition", "batch", work, {"partitions": 1}),
    ]
    series = run_contest(entrants, effort, say)
    ours, limit = series["Hailstorm's backfill"], fastest(series, "bare batch job")
    check = at_least("of the bare batch job's rows per second", inverse(ratio(ours, limit)), 0.7)
    return Outcome(tuple(series.values()), (check,))


def beside(quick: bool, say: Say) -> Outcome:
    filled = 500_000 if quick else 10_000_000
    work = Work("count", rows=1_000, keys=100_000, filled=filled)
    effort = Effort(rounds=2, burst=30, warm_up=20) if quick else Effort(rounds=5, burst=200, warm_up=50)
    entrants = [
        Entrant("with a backfill", "live-backfiller", work, {"beside": True}),
        Entrant("alone", "live-backfiller", work, {"beside": False}),
    ]
    series = run_contest(entrants, effort, say)
    busy, alone = series["with a backfill"], series["alone"]
    notes = {f"ms {WAITED}, {one.label}": _waited(one) for one in (busy, alone)}
    check = at_most("times the median tick without a backfill", ratio(busy, alone), 1.5)
    return Outcome(tuple(series.values()), (check,), notes)


def _waited(series: Series) -> float:
    return round(series.parts[WAITED], 1)


BENCH = Bench("backfill", "backfill of 10M rows, 1M keys", offline)
BESIDE = Bench("backfill-beside", "live ticks of 1,000 rows while a backfill takes half of the time", beside)
