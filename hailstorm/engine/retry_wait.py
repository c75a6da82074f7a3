"""Growing waits: how long to wait before something that has failed is tried again."""

from __future__ import annotations

import zlib

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 30.0  # seconds


def retry_wait(who: str, attempt: int) -> float:
    """Seconds before attempt 1, 2, 3 ...: doubling, and spread by a quarter so that sinks do not try in step.

    The spread comes from the name and not from chance, so that a run can be repeated.
    """
    spread = zlib.crc32(f"{who}/{attempt}".encode()) / 2**32
    return min(_FIRST_WAIT * 2.0 ** (min(attempt, 20) - 1), _LONGEST_WAIT) * (0.75 + 0.25 * spread)
