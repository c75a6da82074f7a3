"""Finding the rows that a target refuses, when all it says is that it does not take all of them.

For targets that take many rows in one request (a COPY, a batch in a POST): halves are tried until single rows are left.
"""

from __future__ import annotations

from collections.abc import Callable

from hailstorm.sinks.sink import Rejected

Attempt = Callable[[int, int], str | None]


def rejected_rows(count: int, attempt: Attempt) -> list[Rejected]:
    """Write the rows [0, count) but those that are refused, in order.

    `attempt(start, stop)` writes a range whole and gives None, or writes nothing of it and gives the reason. The search
    ends early when so many rows are refused that delivery stops the sink for it (see Delivery.reject).
    """
    rejected: list[Rejected] = []
    ranges = [(0, count)]
    while ranges and len(rejected) <= max(99, count // 10):
        start, stop = ranges.pop()
        reason = attempt(start, stop) if start < stop else None
        if reason is None:
            continue
        if stop - start == 1:
            rejected.append(Rejected(start, reason))
        else:
            middle = (start + stop) // 2
            ranges += [(middle, stop), (start, middle)]
    return rejected
