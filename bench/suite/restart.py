"""Start after kill -9: a ledger with a million keys and 10,000 commits beside an empty one.

Measured is the time from the start of the process to the first commit of a tick, Spark's own start included in both.
"""

from __future__ import annotations

import shutil
import time

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Entrant, Host, Ratio, Series
from bench.peers.peer import Tick, scratch_folder
from bench.work import Work

WORK = Work("count", rows=1_000, keys=1_000_000)
_SETTLE = 3.0  # seconds: the JVM of a killed driver takes a moment to notice, and must not slow the next start


def measure(quick: bool, say: Say) -> Outcome:
    rounds, commits = (2, 500) if quick else (5, 10_000)
    folder = scratch_folder("restart")
    full = str(folder / "full")
    times: dict[str, list[tuple[Tick, ...]]] = {"empty ledger": [], "after kill -9": []}
    try:
        say("fill the state and make commits")
        host = Host(Entrant("full", "hailstorm", WORK, {"ledger": full, "commits": commits}))
        host.prepare()
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            host.burst(3)
            host.kill()
            time.sleep(_SETTLE)
            host = Host(Entrant("full", "hailstorm", WORK, {"ledger": full, "fill": False}))
            times["after kill -9"].append(_started(host))
            fresh = Host(Entrant("empty", "hailstorm", WORK, {"ledger": str(folder / f"empty{number}"), "fill": False}))
            times["empty ledger"].append(_started(fresh))
            fresh.close()
        host.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    series = {label: Series(label, tuple(found)) for label, found in times.items()}
    pairs = zip(series["after kill -9"].rounds, series["empty ledger"].rounds, strict=True)
    more = sorted((a[0].ms - b[0].ms) / 1000 for a, b in pairs)
    measured = Ratio(more[len(more) // 2], more[0], more[-1])
    return Outcome(tuple(series.values()), (at_most("seconds more than on an empty ledger", measured, 3),))


def _started(host: Host) -> tuple[Tick, ...]:
    figures = host.prepare()
    return (Tick(figures["first_tick_s"] * 1000, 1),)


BENCH = Bench("restart", "start after kill -9, 1M keys, 10,000 commits", measure)
