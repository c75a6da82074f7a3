"""Named fault points: where the chaos tests kill the process.

Production code calls `fault(point)` at each moment at which a crash is interesting. Nothing happens unless
HAILSTORM_FAULT names the point (`before-commit:3` is its third pass): then the process kills itself with
SIGKILL, so that nothing gets a chance to clean up. A test in the same process may `inject` an exception instead.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

# What a run passes by itself, sooner or later.
RUN_POINTS = frozenset(
    {
        "after-write",
        "before-commit",
        "after-commit",
        "before-delivery",
        "during-delivery",
        "after-delivery",
        "during-compaction",
        "during-manifest",
        "during-publishing",
        "during-packing",
        "during-vacuum",
        "during-deletion",
    }
)
# What commands pass when somebody asks for them.
COMMAND_POINTS = frozenset(
    {"after-snapshot", "during-export", "during-import", "during-erase", "after-erase", "after-release"}
)
FAULT_POINTS = RUN_POINTS | COMMAND_POINTS

_passes: Counter[str] = Counter()
_injected: dict[str, BaseException] = {}


def fault(point: str) -> None:
    """Die here when the environment asks for it."""
    assert point in FAULT_POINTS, point
    if point in _injected:
        raise _injected[point]
    wanted = os.environ.get("HAILSTORM_FAULT", "")
    if not wanted:
        return
    name, _, nth = wanted.partition(":")
    if name == point:
        _passes[point] += 1
        if _passes[point] == int(nth or 1):
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def inject(point: str, error: BaseException) -> Iterator[None]:
    """Raise `error` at this point instead, for tests that need the process to live on."""
    assert point in FAULT_POINTS, point
    _injected[point] = error
    try:
        yield
    finally:
        del _injected[point]
