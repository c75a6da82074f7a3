"""What an object store is asked for by a run on a cluster, and what that costs at list prices.

A running count with 100,000 keys, 1,000 rows and one tick every second, two executors, everything else as it comes:
commits, the lease, merges, publishing, vacuum. Counted in a proxy for some minutes. Nothing is required.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime

from bench.bench import Bench, Outcome, Say
from bench.cluster import Place, Run, place
from bench.object_store import Counted
from hailstorm.errors import LedgerError
from hailstorm.ledger.reader import open_ledger

# Dollars per 1,000 requests of S3 Standard in us-east-1, as https://aws.amazon.com/s3/pricing/ listed them in 2025.
# What is stored, and bytes that leave the region, are not in it.
PRICES = {"PUT": 0.005, "POST": 0.005, "LIST": 0.005, "GET": 0.0004, "HEAD": 0.0004, "DELETE": 0.0}
PRICED = "S3 Standard, us-east-1, 2025"
_DAY = 86_400
_WARM_UP = 20  # ticks
_WAYS = {"planned": "planned", "default": "resident, prepared, planned"}


def measure(quick: bool, say: Say) -> Outcome:
    seconds = 30 if quick else 300
    with place(say, cores=1, counting=True) as where:
        notes: dict[str, str] = {"store": where.store}
        for name, ways in _WAYS.items():
            counted, ticks, spent = _counted(where, name, ways, seconds, say)
            notes |= {f"{title}, ways={ways}": value for title, value in bill(counted, ticks, spent).items()}
    return Outcome((), (), notes)


def _counted(where: Place, name: str, ways: str, seconds: int, say: Say) -> tuple[Counted, int, float]:
    """What was asked for, by how many ticks, in how many seconds."""
    address = where.ledger(name)
    known = {"BENCH_RATE": "1000", "BENCH_KEYS": "100000", "BENCH_START": datetime.now(UTC).isoformat()}
    run = Run(where, name, name, ("--set", f"ways={ways}", "--every", "1s"), known)
    try:
        say(f"ways={ways}: start, and warm up")
        run.await_(lambda: _head(address) >= _WARM_UP, "some ticks")
        say(f"ways={ways}: count for {seconds} seconds")
        first, before, began = _head(address), where.counted(), time.monotonic()
        time.sleep(seconds)
        counted, spent = where.counted() - before, time.monotonic() - began
        assert run.process.poll() is None, run.said()
    finally:
        run.end()
    ticks = sum(commit.reason == "tick" for commit in open_ledger(address).commits(after=first))
    return counted, ticks, spent


def bill(counted: Counted, ticks: int, seconds: float) -> Mapping[str, str]:
    """Requests per tick and per day by kind, and the dollars for them."""
    found = sorted(counted.requests.items())
    a_day = {kind: number * _DAY / seconds for kind, number in found}
    cost = sum(PRICES[kind] * number / 1_000 for kind, number in a_day.items())
    return {
        "ticks per day": f"{ticks * _DAY / seconds:,.0f}",
        "requests per tick": ", ".join(f"{kind} {number / ticks:.1f}" for kind, number in found),
        "requests per day": ", ".join(f"{kind} {number:,.0f}" for kind, number in a_day.items()),
        f"dollars per day ({PRICED})": f"{cost:.2f}",
    }


def _head(address: str) -> int:
    """The newest commit; 0 before there is a ledger."""
    try:
        return open_ledger(address).live().commit
    except LedgerError:
        return 0


BENCH = Bench("cluster-requests", "requests to an object store, one tick per second", measure)
