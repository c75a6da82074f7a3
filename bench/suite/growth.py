"""State that grows: 1,000 rows a tick over 10 million keys beside the same over 100,000. Time and memory.

Each state is filled in a process that then ends, so that what filling took is in nobody's memory.
"""

from __future__ import annotations

import shutil

from bench.bench import Bench, Outcome, Say, at_most
from bench.contest import Effort, Entrant, Host, Ratio, ratio, run_contest
from bench.peers.peer import scratch_folder
from bench.work import Work

_FEW, _MANY = "Hailstorm, few keys", "Hailstorm, many keys"  # 100k, and 10M (1M in a quick run)


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=5, warm_up=10) if quick else Effort(rounds=7, burst=10, warm_up=50)
    works = {
        _FEW: Work("count", rows=1_000, keys=100_000),
        _MANY: Work("count", rows=1_000, keys=1_000_000 if quick else 10_000_000),
    }
    folder = scratch_folder("growth")
    try:
        entrants = []
        for number, (label, work) in enumerate(works.items()):
            ledger = str(folder / str(number))
            say(f"{label}: fill the state")
            with Host(Entrant(label, "hailstorm", work, {"ledger": ledger})) as host:
                host.prepare()
            entrants.append(Entrant(label, "hailstorm", work, {"ledger": ledger, "fill": False}))
        series = run_contest(entrants, effort, say)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    few, many = series[_FEW], series[_MANY]
    growth = many.figures["memory_mb"] - few.figures["memory_mb"]
    state = many.figures["live_bytes"] / 2**20
    share = growth / state
    checks = (
        at_most("times the tick with 100k keys", ratio(many, few), 1.2),
        at_most("of the state's size is what memory grows by", Ratio(share, share, share), 0.1),
    )
    return Outcome(tuple(series.values()), checks, {"state MB": state, "memory growth MB": growth})


BENCH = Bench("growth", "1,000 rows a tick with 10M keys in state", measure)
