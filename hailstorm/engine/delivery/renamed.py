"""Sinks that are renamed: what waits for them is delivered first, and their cursors go on under the new name.

The outbox, the cursor and rejected rows are kept by a sink's name. Once nothing waits under the old one, only the
cursor has to move. The target goes on to know the sink by its first name (`SinkShape.formerly`): its cursor,
and the keys by which it tells rows that it has, are made of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.errors import RunError
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.renaming import Names
from hailstorm.topology.ends import Sink
from hailstorm.topology.settings import Settings

_SECONDS = 60.0


def hand_over(
    topology: str, sinks: Sequence[Sink], names: Names, ledger: Ledger, outbox: LedgerOutbox, settings: Settings
) -> None:
    """Before these sinks, which have their new names, get them in the ledger. Raises RunError when one cannot."""
    known = [sink for sink in sinks if names.get(sink.name, "") in ledger.head.sinks]
    waiting = [replace(sink, name=names[sink.name]) for sink in known if _waits(outbox, names[sink.name])]
    if waiting:
        _deliver(Deliverer(topology, waiting, outbox, settings))
    for sink in known:
        old = names[sink.name]
        if rows := sum(letters.num_rows for _, letters in ledger.rejected_by(old, ledger.head)):
            raise RunError(
                65,
                f"sink '{sink.name}' is renamed from '{old}', and {rows:,} rows that '{old}' rejected are open",
                at=sink.at,
                hint="They are kept by its name. Under the old one, retry them or let them go first:\n"
                f'hailstorm errors APP --retry, or: hailstorm errors TARGET --discard {old} --reason "..."',
            )
        ledger.cursors.store(sink.name, ledger.cursors.load(old))


def let_go(names: Names, ledger: Ledger, until: int) -> None:
    """Afterwards: nothing waits under the old names any more, and retention need not keep commits for them."""
    for old in set(names.values()).intersection(ledger.store.list("cursors")):
        ledger.cursors.store(old, SinkRecord(commit=until, epoch=ledger.epoch))


def _waits(outbox: LedgerOutbox, sink: str) -> bool:
    return outbox.waiting(sink, outbox.load_cursor(sink))[0] > 0


def _deliver(deliverer: Deliverer) -> None:
    deliverer.start()
    try:
        deliverer.drain(_SECONDS)
        lacking = deliverer.lacking()  # it gets its whole table later, under its new name
        for left in deliverer.undelivered():
            if left.commits and left.sink not in lacking:
                raise RunError(
                    64,
                    f"{left.commits:,} commits wait for sink '{left.sink}', which cannot be renamed before it has them",
                    hint=f"It says: {left.error}" if left.error else "Its target is slow: run again.",
                )
    finally:
        deliverer.stop()
