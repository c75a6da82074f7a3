"""A planned tick on a cluster whose ledger is in an object store, beside the same on local[2] with a folder.

Both have two tasks and the cores of this machine. What the cluster has more to do: a shuffle between processes, files
that go through a server, a driver and two executors with a JVM each, and a look for every file before the commit.
"""

from __future__ import annotations

from bench.bench import Bench, Outcome, Say, at_most
from bench.cluster import place
from bench.contest import Effort, Entrant, ratio, run_contest
from bench.work import Work

WORK = Work("count", rows=500_000, keys=1_000_000)
_FAR, _NEAR = "cluster, object store", "local[2], folder"


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=9, burst=2, warm_up=10)
    with place(say, cores=1) as where:
        entrants = [
            Entrant(_FAR, "hailstorm", WORK, where.options("far", executors=2, tasks=2)),
            Entrant(_NEAR, "hailstorm", WORK, {"ways": [2]}),
        ]
        series = run_contest(entrants, effort, say)
        notes = {"store": where.store}
    limit = at_most("times the tick of local[2] with a folder", ratio(series[_FAR], series[_NEAR]), 1.5)
    return Outcome(tuple(series.values()), (limit,), notes)


BENCH = Bench("cluster-store", "planned ticks, the ledger in an object store, 500,000 rows, 1M keys", measure)
