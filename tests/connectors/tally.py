"""How many faults the tests made real servers and their clients suffer. The end of a test run prints it.

Counted where a fault is made: by the servers, the proxy, and the processes that are killed.
"""

from __future__ import annotations

from collections import Counter

FAULTS: Counter[str] = Counter()


def suffered(kind: str, times: int = 1) -> None:
    FAULTS[kind] += times


KINDS = ("killed before", "killed during", "killed after", "killed at random", "connection cut", "zombie")
FEWEST = 30


def missing() -> list[str]:
    """What a run of all tests must have made servers suffer, and has not."""
    kinds = [kind for kind in KINDS if not any(kind in found for found in FAULTS)]
    return kinds if FAULTS.total() >= FEWEST else [f"{FEWEST} faults in all", *kinds]


def summary() -> str:
    parts = ", ".join(f"{kind} {times}" for kind, times in sorted(FAULTS.items()))
    return f"{FAULTS.total()} faults against real servers: {parts}"
