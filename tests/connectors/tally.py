"""How many faults the tests made real servers, their clients and clusters suffer, and how long a run that was hurt took
to its next commit. The end of a test run prints both.

Counted where a fault is made: by the servers, the proxy, and the processes that are killed.
"""

from __future__ import annotations

from collections import Counter

FAULTS: Counter[str] = Counter()
WAITS: dict[str, float] = {}  # kind -> seconds, the longest of its kind


def suffered(kind: str, times: int = 1) -> None:
    FAULTS[kind] += times


def went_on(kind: str, seconds: float) -> None:
    WAITS[kind] = max(seconds, WAITS.get(kind, 0.0))


KINDS = ("killed before", "killed during", "killed after", "killed at random", "connection cut", "zombie")
FEWEST = 30
CLUSTER = "cluster: "


def missing() -> list[str]:
    """What a run of all tests must have made servers suffer, and has not."""
    kinds = [kind for kind in KINDS if not any(kind in found for found in FAULTS)]
    return kinds if FAULTS.total() >= FEWEST else [f"{FEWEST} faults in all", *kinds]


def summary() -> str:
    parts = ", ".join(f"{kind} {times}" for kind, times in sorted(FAULTS.items()))
    waits = ", ".join(f"{kind} {seconds:.1f} s" for kind, seconds in WAITS.items())
    lines = [f"{FAULTS.total()} faults against real servers: {parts}", f"from a fault to the next commit: {waits}"]
    return "\n".join(lines if waits else lines[:1])
