"""What executors hold of the state, and what they read of it: both must follow their share and what changed.

`cluster-bytes` counts in a proxy what is read from the store in a tick, also by merges: with ten times the keys it
must be the same, because as many keys change. `cluster-cache` looks into the folders of the executors' caches. Their
share is the state as a cache has it (Arrow, not compressed), by the number of executors.

Times in here are no figures to quote: everything goes through the proxy.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from bench.bench import Bench, Outcome, Say, at_most
from bench.cluster import Place, place
from bench.contest import Entrant, Host, Ratio, Series
from bench.object_store import Counted
from bench.peers.peer import scratch_folder
from bench.work import Work
from hailstorm.ledger.cache import RunCache
from hailstorm.ledger.ledger import Ledger

_EXECUTORS = 2


def measure_bytes(quick: bool, say: Say) -> Outcome:
    rows, few, many = (1_000, 100_000, 1_000_000) if quick else (10_000, 1_000_000, 10_000_000)
    # Merges come every eight and every sixty-four ticks: both sizes meet as many of them.
    warm_up, ticks = (16, 31) if quick else (16, 63)
    found: dict[str, Counted] = {}
    series: list[Series] = []
    with place(say, cores=1, counting=True) as where:
        for keys in (few, many):
            label = f"{keys:,} keys"
            with _filled(where, Work("count", rows, keys), say) as host:
                host.burst(warm_up)
                say(f"{label}: count for {ticks + 1} ticks")
                before = where.counted()
                measured = host.burst(ticks)
                found[label] = where.counted() - before
                series.append(Series(label, (measured,), host.figures()))
        notes = {"store": where.store, **_notes(found, ticks + 1)}
    small, large = (one.bytes_read for one in found.values())
    times = large / small
    check = at_most(f"times the bytes read per tick with {few:,} keys", Ratio(times, times, times), 1.3)
    return Outcome(tuple(series), (check,), notes)


def measure_cache(quick: bool, say: Say) -> Outcome:
    keys = 200_000 if quick else 10_000_000
    bursts = (12,) if quick else (40, 40, 40)
    shares: list[float] = []
    notes: dict[str, object] = {}
    measured = []
    with place(say, cores=1) as where, _filled(where, Work("count", keys // 100, keys), say) as host:
        for number, ticks in enumerate(bursts):
            say(f"burst {number + 1} of {len(bursts)}")
            measured.append(host.burst(ticks))
            cached = where.cached_bytes()
            share = _state_bytes(where.ledger(str(keys))) / _EXECUTORS
            shares.append(max(cached.values()) / share)
            told = ", ".join(f"{name} {size / 2**20:,.0f}" for name, size in cached.items())
            notes[f"caches after burst {number + 1}, MB"] = f"{told}; a share is {share / 2**20:,.0f}"
        series = Series(f"{keys:,} keys", tuple(measured), host.figures())
        notes["store"] = where.store
    worst = Ratio(max(shares), min(shares), max(shares))
    return Outcome((series,), (at_most("times an executor's share of the state is in its cache", worst, 1.3),), notes)


@contextmanager
def _filled(where: Place, work: Work, say: Say) -> Iterator[Host]:
    label = f"{work.keys:,} keys"
    say(f"{label}: start, and fill the state")
    options = where.options(str(work.keys), executors=_EXECUTORS, tasks=_EXECUTORS)
    with Host(Entrant(label, "hailstorm", work, options)) as host:
        host.prepare()
        yield host


def _notes(found: Mapping[str, Counted], ticks: int) -> dict[str, str]:
    notes = {}
    for label, counted in found.items():
        most = [f"{name or 'lists'} {size / ticks / 1024:,.0f}" for name, size in counted.read.most_common(5)]
        notes[f"KB read per tick, {label}"] = f"{counted.bytes_read / ticks / 1024:,.0f} ({', '.join(most)})"
    return notes


def _state_bytes(address: str) -> int:
    """How large a cache would be that had a copy of every live run, once."""
    ledger, folder = Ledger(address), scratch_folder("copies")
    cache = RunCache(ledger.store, folder)
    try:
        total = 0
        for step, runs in ledger.head.runs.items():
            for run in runs:
                cache.open(step, run)
                total += cache.path(step, run.id).stat().st_size
                cache.let_go({})
                cache.path(step, run.id).unlink()
        return total
    finally:
        shutil.rmtree(folder, ignore_errors=True)


BYTES = Bench("cluster-bytes", "bytes read from the store per tick, 10,000 rows, 1M and 10M keys", measure_bytes)
CACHE = Bench("cluster-cache", "what executors have in their caches, 10M keys", measure_cache)
