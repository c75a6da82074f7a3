"""How many faults the tests made real servers and their clients suffer. The end of a test run prints it.

Counted where a fault is made: by the servers, the proxy, and the processes that are killed.
"""

from __future__ import annotations

from collections import Counter

FAULTS: Counter[str] = Counter()


def suffered(kind: str, times: int = 1) -> None:
    FAULTS[kind] += times


def summary() -> str:
    parts = ", ".join(f"{kind} {times}" for kind, times in sorted(FAULTS.items()))
    return f"{FAULTS.total()} faults against real servers: {parts}"
