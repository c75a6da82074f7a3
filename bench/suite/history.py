"""Start with a long history: a ledger of 100,000 commits, all kept, beside one of 100.

Measured is the time from the start of the process to the first commit of a tick, Spark's own start included in both;
how much of it is not Spark's is a figure of its own.
"""

from __future__ import annotations

import shutil
import statistics

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Entrant, Host, Series, ratio
from bench.peers.peer import Tick, scratch_folder
from bench.work import Work

WORK = Work("count", rows=1_000, keys=10_000)
_KEPT = {"retention": "all"}


def measure(quick: bool, say: Say) -> Outcome:
    rounds, commits = (2, 2_000) if quick else (5, 100_000)
    folder = scratch_folder("history")
    ledgers = {f"{count:,} commits": (str(folder / str(count)), count) for count in (100, commits)}
    times: dict[str, list[tuple[Tick, ...]]] = {label: [] for label in ledgers}
    try:
        for label, (ledger, count) in ledgers.items():
            say(f"make {label}")
            host = Host(Entrant(label, "hailstorm", WORK, {"ledger": ledger, "commits": count, **_KEPT}))
            host.prepare()
            host.close()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for label, (ledger, _) in list(ledgers.items())[:: 1 if number % 2 else -1]:
                host = Host(Entrant(label, "hailstorm", WORK, {"ledger": ledger, "fill": False, **_KEPT}))
                figures = host.prepare()
                ours = (figures["first_tick_s"] - figures["spark_s"]) * 1000
                times[label].append((Tick(figures["first_tick_s"] * 1000, 1, {"without Spark": ours}),))
                host.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    few, many = (Series(label, tuple(found)) for label, found in times.items())
    notes = {f"ms without Spark's start, {one.label}": round(statistics.median(_ours(one))) for one in (few, many)}
    return Outcome((few, many), (at_most("times a start with 100 commits", ratio(many, few), 1.5),), notes)


def _ours(series: Series) -> list[float]:
    return [tick.parts["without Spark"] for round_ in series.rounds for tick in round_]


BENCH = Bench("history", "start with 100,000 commits in history", measure)
