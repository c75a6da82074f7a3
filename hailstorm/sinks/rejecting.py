"""Finding the rows that a target refuses, when all it says is that it does not take all of them.

For targets that take many rows in one request (a COPY, a batch in a POST): halves are tried until single rows are left.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from hailstorm.halving import failing_parts, halved
from hailstorm.sinks.sink import Delivery, Parcel, Rejected

Attempt = Callable[[int, int], str | None]


def rejected_rows(count: int, attempt: Attempt, most: int) -> list[Rejected]:
    """Write the rows [0, count) but those that are refused, in order.

    `attempt(start, stop)` writes a range whole and gives None, or writes nothing of it and gives the reason. The search
    ends early when more than `most` rows are refused: then delivery stops the sink (see Delivery.most_rejected).
    """
    rejected: list[Rejected] = []
    parts = [range(count)] if count else []
    for row, reason in failing_parts(parts, lambda part: attempt(part.start, part.stop), halved):
        rejected.append(Rejected(row.start, reason))
        if len(rejected) > most:
            break
    return rejected


def write_acceptable(parcel: Parcel, delivery: Delivery, attempt: Callable[[pa.Table], str | None]) -> None:
    """Write the rows of a parcel that the target takes, in order, and make dead letters of the others.

    `attempt(rows)` writes all of these rows and gives None, or writes none and gives the reason.
    """
    most = delivery.most_rejected(parcel.commit, parcel.rows)
    rejected: list[Rejected] = []
    for first, rows in parcel.numbered():

        def part(start: int, stop: int, rows: pa.Table = rows) -> str | None:
            return attempt(rows.slice(start, stop - start))

        found = rejected_rows(rows.num_rows, part, most - len(rejected))
        rejected += [Rejected(first + one.row, one.reason) for one in found]
        if len(rejected) > most:
            break
    if rejected:
        delivery.reject(parcel.commit, rejected)
