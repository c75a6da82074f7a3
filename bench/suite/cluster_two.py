"""Two executors of one core beside one of one core: a million rows a tick over five million keys.

Each worker is bound to one core of this machine, and so is all that an executor starts: as on a machine that has one.
The driver and the store have no cores of their own, though. With one executor they can use the core that is left; with
two they share those of the executors. `CPU s` says how much each part takes for a tick: when all of them together
take as long as the tick on all cores, it is the machine that is full, and not the executors that wait for each other.

One executor is measured with one task and with two, and compared with at its best.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from bench.bench import Bench, Outcome, Say, at_least, inverse
from bench.cluster import Place, place
from bench.contest import Effort, Entrant, Series, fastest, ratio, run_contest
from bench.peers.memory import cpu_seconds
from bench.work import Work

WORK = Work("count", rows=1_000_000, keys=5_000_000)
_QUICK = Work("count", rows=200_000, keys=500_000)
_ONE, _TWO = "one executor", "two executors"


def measure(quick: bool, say: Say) -> Outcome:
    effort = Effort(rounds=2, burst=1, warm_up=2) if quick else Effort(rounds=7, burst=1, warm_up=6)
    work = _QUICK if quick else WORK
    with place(say, cores=3, pinned=True) as where:
        entrants = [
            Entrant(_TWO, "hailstorm", work, where.options("two", executors=2, tasks=2)),
            Entrant(f"{_ONE}, one task", "hailstorm", work, where.options("one", executors=1, tasks=1)),
            Entrant(f"{_ONE}, two tasks", "hailstorm", work, where.options("halves", executors=1, tasks=2)),
        ]
        series = run_contest(entrants, effort, say, lambda driver: _cpu(where, driver))
        notes = {"store": where.store, **_busy(series)}
    times = inverse(ratio(series[_TWO], fastest(series, _ONE)))
    return Outcome(tuple(series.values()), (at_least("times the rows/s of one executor", times, 1.6),), notes)


def _cpu(where: Place, driver: int) -> Mapping[str, float]:
    used = {**where.cpu(), "driver": cpu_seconds(driver)}
    return {f"CPU s of {name}": seconds for name, seconds in used.items()}


def _busy(series: Mapping[str, Series]) -> dict[str, str]:
    """Where the CPU of a tick goes, and what share of all cores that is."""
    found = {}
    for label, one in series.items():
        parts = {name: value for name, value in one.figures.items() if name.startswith("CPU s of ")}
        words = [f"{name[9:-9]} {value:.2f}" for name, value in parts.items()]
        full = 100_000 * sum(parts.values()) / one.median_ms / (os.cpu_count() or 1)
        found[f"CPU s a tick, {label}"] = f"{', '.join(words)}: {full:.0f}% of all cores"
    return found


BENCH = Bench("cluster-two", "two executors of one core, 1M rows a tick, 5M keys", measure)
