"""Where a sink's delivery begins when it is opened: at its cursor, or with the whole table, or from now on.

Which sinks lack their whole table: those whose cursor is before the beginning of their outbox (a new sink, or one that
was away), those whose target has lost its cursor, and those that forget (a screen), at every start.
"""

from __future__ import annotations

from hailstorm.engine.delivery.outbox import Beginning, Outbox
from hailstorm.errors import SinkError
from hailstorm.sinks.sink import Cursor, Delivery
from hailstorm.topology import ends


def own_cursor(sink: ends.Sink, delivery: Delivery, newest: int) -> int:
    """The last commit that an open sink says it has; 0 where it says nothing. `newest` is the ledger's."""
    cursor: Cursor | None = sink.sink.cursor() if sink.sink.keeps_cursor else None
    if cursor is None or (cursor.ledger != delivery.ledger and delivery.takes_over):
        return 0
    delivery.refuse_other_ledger(cursor)
    if cursor.commit > newest:
        raise SinkError(
            9,
            f"sink '{sink.name}' has got commit {cursor.commit}, but this ledger is only at commit {newest}",
            at=sink.at,
            hint="The ledger is older than its target: a backup, perhaps. Going on would mix two histories.\n"
            + delivery.way_out("Bring the newer ledger back, or name another target"),
        )
    return cursor.commit


def lacks_table(sink: ends.Sink, beginning: Beginning, cursor: int, stored: int, is_first: bool) -> bool:
    """`stored` is the cursor as the ledger knows it; `is_first`: the sink is opened for the first time in this run."""
    if beginning.whole > cursor:
        return False  # it is in the outbox already
    if sink.sink.forgets:
        return is_first and beginning.last > 0  # within a process, what was shown is shown still
    return cursor < max(beginning.since, stored)


def beginning_of_stream(
    outbox: Outbox, sink: str, beginning: Beginning, cursor: int, stored: int
) -> tuple[int, str | None]:
    """The cursor from which on to deliver, and what to tell about it, if that is not where the sink ended before.

    What came before the sink did is in no outbox; what its target has lost may be there still.
    """
    if cursor < stored and not outbox.has_all(sink, cursor, stored):
        return stored, f"has lost rows that are in no outbox any more: it goes on after commit {stored}"
    if cursor < beginning.since:
        return cursor, f"starts from now: what came before commit {beginning.since} is not delivered to it"
    return cursor, None
