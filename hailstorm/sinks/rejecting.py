"""Finding the rows that a target refuses, when all it says is that it does not take all of them.

For targets that take many rows in one request (a COPY, a batch in a POST): halves are tried until single rows are left.
"""

from __future__ import annotations

from collections.abc import Callable

from hailstorm.sinks.sink import Rejected

Attempt = Callable[[int, int], str | None]


def rejected_rows(count: int, attempt: Attempt, most: int) -> list[Rejected]:
    """Write the rows [0, count) but those that are refused, in order.

    `attempt(start, stop)` writes a range whole and gives None, or writes nothing of it and gives the reason. The search
    ends early when more than `most` rows are refused: then delivery stops the sink (see Delivery.most_rejected).
    """
    rejected: list[Rejected] = []
    ranges = [(0, count)]
    while ranges and len(rejected) <= most:
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
