"""Delivers outboxes to sinks, in commit order, while the next tick runs.

The negotiator starts a `Deliverer`, notifies it of every commit, and asks it how far the sinks are. Each sink has a
courier (courier.py) with a thread of its own, so a slow one delays no other. Delivery reads commits and never makes
one: a sink that fails is tried again with growing waits while the topology goes on; a sink that cannot go on, or lacks
its whole table, says so in its state. What to do about it, and when the outbox is too long, is the negotiator's
decision.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from hailstorm.engine.delivery.courier import Courier
from hailstorm.engine.delivery.outbox import Outbox
from hailstorm.engine.delivery.sink_state import Delivered, SinkState
from hailstorm.topology import ends
from hailstorm.topology.settings import Settings

_STOP_WAIT = 10.0  # how long `stop` waits for a delivery that is under way


@dataclass(frozen=True)
class Undelivered:
    """What waits for a sink when a run has ended, and why."""

    sink: str
    commits: int
    rows: int
    error: str | None
    stopped: bool  # False: the next run tries again


class Deliverer:
    """All sinks of one run. `start` once, `notify` after every commit, `drain` if there is time, `stop` at the end."""

    def __init__(
        self,
        topology: str,
        sinks: Sequence[ends.Sink],
        outbox: Outbox,
        settings: Settings | None = None,
    ) -> None:
        self._changed = threading.Condition()
        self._outbox = outbox
        self._couriers = {
            sink.name: Courier(topology, sink, outbox, self._changed, settings or Settings()) for sink in sinks
        }

    def start(self) -> None:
        for courier in self._couriers.values():
            courier.thread.start()

    def notify(self, commit: int) -> None:
        """A commit has happened. Returns at once."""
        with self._changed:
            for courier in self._couriers.values():
                courier.newest = max(courier.newest, commit)
            self._changed.notify_all()

    def states(self) -> dict[str, SinkState]:
        with self._changed:
            return {name: courier.state() for name, courier in self._couriers.items()}

    @property
    def stopped(self) -> bool:
        """Whether a sink has stopped for good: then somebody must see to it."""
        with self._changed:
            return any(courier.progress.stopped is not None for courier in self._couriers.values())

    def delivered(self) -> list[Delivered]:
        """What sinks have got since this was asked last; of very many the newest."""
        found: list[Delivered] = []
        for courier in self._couriers.values():
            while courier.delivered:
                found.append(courier.delivered.popleft())
        return found

    def lacking(self) -> tuple[str, ...]:
        """The sinks that wait for a commit with the whole of their table."""
        with self._changed:
            return tuple(name for name, courier in self._couriers.items() if courier.lacks_table)

    def wait(self, timeout: float | None, until_commit: int) -> bool:
        """Whether every sink has got everything up to this commit.

        Does not wait for sinks that have stopped, nor for those that wait for their whole table.
        """

        def arrived() -> bool:
            going_on = (courier for courier in self._couriers.values() if not courier.is_held)
            return all(courier.progress.cursor >= until_commit for courier in going_on)

        with self._changed:
            self._changed.wait_for(arrived, timeout)
            return all(courier.progress.cursor >= until_commit for courier in self._couriers.values())

    def drain(self, timeout: float | None, once: bool = False) -> bool:
        """Deliver what is committed, for a graceful stop. Sinks that are waiting to try again do so now; with `once`
        nobody waits for those that fail again: somebody is in a hurry."""
        with self._changed:
            newest = max((courier.newest for courier in self._couriers.values()), default=0)
            for courier in self._couriers.values():
                courier.last_try = courier.progress.attempt if once and courier.progress.failing else None
                courier.hurry = True
            self._changed.notify_all()
        return self.wait(timeout, newest)

    def undelivered(self) -> tuple[Undelivered, ...]:
        """The sinks that have not got all that is committed for them. Reads the ledger."""
        found = []
        for name, courier in self._couriers.items():
            progress = courier.progress
            commits, rows = self._outbox.waiting(name, progress.cursor)
            if commits or courier.is_held:
                found.append(Undelivered(name, commits, rows, progress.error, progress.stopped is not None))
        return tuple(found)

    def stop(self) -> None:
        """End the threads and close the sinks. What was not delivered waits in the outbox."""
        with self._changed:
            for courier in self._couriers.values():
                courier.stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + _STOP_WAIT
        for courier in self._couriers.values():
            if courier.thread.ident is not None:
                courier.thread.join(max(0.0, deadline - time.monotonic()))
