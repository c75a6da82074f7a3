"""Housekeeping: compaction, manifests, publishing and retention, in a thread of its own, while ticks go on.

The thread only makes files. What it has merged is committed by the negotiator between two ticks, because there is one
writer of commits. The thread runs at low priority: a tick comes first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from hailstorm.engine.spark.priorities import yield_to_ticks
from hailstorm.ledger.commit import Run, StateChange
from hailstorm.ledger.compaction import Merge, compact, layers_to_merge
from hailstorm.ledger.delta.publishing import Publisher
from hailstorm.ledger.lease import turn
from hailstorm.ledger.ledger import MANIFEST_EVERY, Ledger, cannot_write
from hailstorm.ledger.live import Live
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import DEFAULT, Retention

_IDLE_SECONDS = 30.0  # retention goes on while nothing is committed
_PUBLISHING_SHARE = 0.05  # of the time, at most: a large state is published less often


class Housekeeper:
    def __init__(
        self,
        ledger: Ledger,
        publish_every: float | None = None,
        retention: Retention = DEFAULT,
        history_limit: int | None = None,
        elsewhere: Callable[[Merge], list[Run] | None] | None = None,
        borders: Sequence[int] = (),
    ) -> None:
        """Tables are published so often, in seconds, or never. The limit is in bytes. Large merges are done
        `elsewhere`, where there is such a place (merging.py), and all are cut at the borders of ranges that machines
        own."""
        self._elsewhere, self._borders = elsewhere, borders
        self._ledger, self._every = ledger, publish_every
        self._publisher, self._vacuum = Publisher(ledger), Vacuum(ledger, retention, history_limit)
        self._next_publication = time.monotonic() + (publish_every or 0)
        self._work: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._busy: set[str] = set()
        self._done: queue.SimpleQueue[tuple[str, StateChange]] = queue.SimpleQueue()
        self._failure: BaseException | None = None
        self._stopping = threading.Event()
        self.begun = self.ended = 0  # how often it went to work; a bench tells the ticks beside it by that
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)
        self._manifest = 0

    def start(self) -> None:
        self._thread.start()

    def notice(self, live: Live) -> None:
        """A commit has happened. Returns at once."""
        if live.commit - self._manifest >= MANIFEST_EVERY or any(self._due(live, self._busy)):
            self._work.put(True)

    def finished(self) -> dict[str, StateChange]:
        """Compactions that wait to be committed."""
        if isinstance(self._failure, OSError):
            raise cannot_write(self._failure) from self._failure
        if self._failure is not None:
            raise self._failure
        done: dict[str, StateChange] = {}
        while not self._done.empty():
            step, change = self._done.get()
            done[step] = change
        return done

    def committed(self, changes: Mapping[str, StateChange], live: Live) -> None:
        """These compactions are in a commit: the runs that they replaced need no copies any more."""
        self._busy -= set(changes)
        self._ledger.cache.let_go(live.runs)
        self._ledger.cache.remove_all_but({step: {run.id for run in runs} for step, runs in live.runs.items()})

    def stop(self) -> None:
        self._stopping.set()
        self._work.put(False)
        self._thread.join(timeout=10)

    def publish_the_end(self) -> None:
        """After `stop`, when nothing more is committed: tables show the last commit."""
        if self._every is None or self._thread.is_alive():
            return
        try:
            self._publisher.publish(self._ledger.head)
        except OSError as error:
            raise cannot_write(error) from error

    def _due(self, live: Live, busy: set[str]) -> list[str]:
        return [
            table for table in live.state_keys() if table not in busy and layers_to_merge(live.runs.get(table, ()))[0]
        ]

    def _run(self) -> None:
        yield_to_ticks()
        while self._wait_for_work() and not self._stopping.is_set():
            try:
                # First who is busy, then the head, and the head of now: a step that is not busy any more has its
                # merged runs in that head. The other way round, runs that are gone would be merged again.
                busy = set(self._busy)
                self.begun += 1
                self._keep_house(self._ledger.head, busy)
                self.ended += 1
            except Exception as error:  # whatever it is, the negotiator must hear of it
                self._failure = error
                return

    def _wait_for_work(self) -> bool:
        """False when this is the end."""
        try:
            until = self._until_publication()
            return self._work.get(timeout=_IDLE_SECONDS if until is None else min(until, _IDLE_SECONDS))
        except queue.Empty:
            return True

    def _until_publication(self) -> float | None:
        return None if self._every is None else max(0.0, self._next_publication - time.monotonic())

    def _keep_house(self, live: Live, busy: set[str]) -> None:
        if live.commit - self._manifest >= MANIFEST_EVERY:
            self._ledger.write_manifest(live)
            self._manifest = live.commit
        keys = live.state_keys()
        for step in self._due(live, busy):
            self._busy.add(step)
            change = compact(
                self._ledger.store,
                self._ledger.cache,
                step,
                keys[step],
                live.runs[step],
                self._ledger.stamp,
                self._stopping.is_set,
                past=live.past(step),
                elsewhere=self._elsewhere,
                borders=self._borders,
            )
            if change is None:
                self._busy.discard(step)
            else:
                self._done.put((step, change))
        if self._until_publication() == 0:
            self._publish()
        with turn(self._ledger.store) as ours:
            # A piece at a time, so that runs that wait to be merged do not wait for it.
            if ours and self._vacuum.work():
                self._work.put(True)

    def _publish(self) -> None:
        assert self._every is not None
        began = time.monotonic()
        self._publisher.publish(self._ledger.head)
        ended = time.monotonic()
        self._next_publication = ended + max(self._every, (ended - began) / _PUBLISHING_SHARE)
