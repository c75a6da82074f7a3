"""Housekeeping: compaction, manifests and publishing, in a thread of its own, while ticks go on.

The thread only makes files. What it has merged is committed by the negotiator between two ticks, because there is one
writer of commits. The thread runs at low priority: a tick comes first.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping

from hailstorm.engine.priorities import yield_to_ticks
from hailstorm.ledger.commit import StateChange
from hailstorm.ledger.compaction import compact, layers_to_merge
from hailstorm.ledger.ledger import MANIFEST_EVERY, Ledger, cannot_write
from hailstorm.ledger.live import Live
from hailstorm.ledger.publishing import Publisher

_PUBLISHING_SHARE = 0.05  # of the time, at most: a large state is published less often


class Housekeeper:
    def __init__(self, ledger: Ledger, keys: Mapping[str, tuple[str, ...]], publish_every: float | None = None) -> None:
        """`keys` are the key columns of every step whose runs are compacted. Tables are published so often, in
        seconds, or never."""
        self._ledger, self._keys, self._every = ledger, keys, publish_every
        self._publisher = Publisher(ledger)
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
        steps = [step for step in self._keys if step not in busy]
        return [step for step in steps if layers_to_merge(live.runs.get(step, ()))[0]]

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
            return self._work.get(timeout=self._until_publication())
        except queue.Empty:
            return True

    def _until_publication(self) -> float | None:
        return None if self._every is None else max(0.0, self._next_publication - time.monotonic())

    def _keep_house(self, live: Live, busy: set[str]) -> None:
        if live.commit - self._manifest >= MANIFEST_EVERY:
            self._ledger.write_manifest(live)
            self._manifest = live.commit
        for step in self._due(live, busy):
            self._busy.add(step)
            change = compact(
                self._ledger.store,
                self._ledger.cache,
                step,
                self._keys[step],
                live.runs[step],
                self._stopping.is_set,
            )
            if change is None:
                self._busy.discard(step)
            else:
                self._done.put((step, change))
        if self._until_publication() == 0:
            self._publish()

    def _publish(self) -> None:
        assert self._every is not None
        began = time.monotonic()
        self._publisher.publish(self._ledger.head)
        ended = time.monotonic()
        self._next_publication = ended + max(self._every, (ended - began) / _PUBLISHING_SHARE)
