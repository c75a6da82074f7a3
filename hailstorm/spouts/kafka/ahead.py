"""Reading ahead: what comes after a tick's records is fetched while the tick is computed and committed.

A worker that stays follows its partitions with one consumer, kept at its position. The consumer waits at the broker (a
long poll), so whoever asks for the next records has them already, and whoever waits for news hears of it at once.

What is kept of a partition is complete from `first` up to `position`: all records that there are between these offsets.
A reader gets exactly what its range asks for out of that, or nothing: then it reads the range as ever (reader.py). So
following changes when records are fetched and never which ones a tick reads. Nothing here raises: a consumer that meets
an error is given up, and whoever reads the range meets the error again and tells it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hailstorm.errors import LogError
from hailstorm.spouts.kafka.client import Cluster, Complaints, Trouble, explained, load

Place = tuple[str, int]  # topic and partition

_TAKE = 5_000  # messages taken from librdkafka at once
_MOST_MESSAGES, _MOST_BYTES = 50_000, 32_000_000  # kept for ticks; a partition that nobody reads is not read on
_POLL_SECONDS = 0.5
_PATIENCE = 0.3  # seconds, for what a range asks for and is not here yet
_SECONDS_OF_ONE = 1.0  # a consumer that is of no use so soon is not followed by another one at once

_DEFAULTS = {
    "isolation.level": "read_committed",
    "fetch.wait.max.ms": 100,  # how long the broker keeps us waiting when there is nothing new
    "fetch.queue.backoff.ms": 1,
    "queued.min.messages": 50_000,
}
_FIXED = {
    "group.id": "hailstorm",  # asked for, but never joined
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
}


@dataclass
class _Kept:
    """The records of one partition with first <= offset < position."""

    first: int
    position: int
    messages: deque[Any] = field(default_factory=deque)


class Ahead:
    """One consumer and its thread. Its partitions and where it began never change: who wants others makes another one,
    because what a consumer still has in its queue from before it was moved cannot be told from what comes after.
    """

    def __init__(self, cluster: Cluster, positions: Mapping[Place, int], wake: Callable[[], None]) -> None:
        self._wake = wake
        self._kept = {place: _Kept(position, position) for place, position in positions.items()}
        self._messages = self._bytes = 0
        self._changed = threading.Condition()
        self.over = False  # closed, or given up
        self.made = time.monotonic()
        library = load()
        self._consumer = library.Consumer(cluster.settings(Complaints(), _DEFAULTS, _FIXED))
        self._consumer.assign([library.TopicPartition(*place, offset) for place, offset in positions.items()])
        threading.Thread(target=self._run, name="read ahead", daemon=True).start()

    def goes_on_from(self, positions: Mapping[Place, int]) -> bool:
        """Whether it has, or will have, all that comes after these positions. What is before them is dropped."""
        with self._changed:
            if self.over or positions.keys() != self._kept.keys():
                return False
            if any(not kept.first <= positions[place] <= kept.position for place, kept in self._kept.items()):
                return False
            for place, kept in self._kept.items():
                self._drop(kept, positions[place])
            self._changed.notify_all()
            return True

    def positions(self) -> dict[Place, int]:
        """How far it has read."""
        with self._changed:
            return {} if self.over else {place: kept.position for place, kept in self._kept.items()}

    def take(self, place: Place, start: int, end: int) -> list[Any] | None:
        """All messages of a range; None when they are not all here."""
        with self._changed:
            kept = self._kept.get(place)
            if kept is None or not kept.first <= start <= kept.position:
                return None
            if not self._changed.wait_for(lambda: self.over or kept.position >= end, _PATIENCE) or self.over:
                return None
            self._drop(kept, start)
            taken = self._drop(kept, end)
            self._changed.notify_all()
            return taken

    def close(self) -> None:
        with self._changed:
            self.over = True
            self._changed.notify_all()

    def _drop(self, kept: _Kept, until: int) -> list[Any]:
        """The messages before an offset, which are kept no longer."""
        dropped = []
        while kept.messages and kept.messages[0].offset() < until:
            dropped.append(kept.messages.popleft())
        self._messages -= len(dropped)
        self._bytes -= sum(map(len, dropped))
        kept.first = max(kept.first, until)
        return dropped

    def _run(self) -> None:
        try:
            while not self.over:
                with self._changed:
                    if not self._changed.wait_for(self._has_room, _POLL_SECONDS):
                        continue
                first = self._consumer.poll(_POLL_SECONDS)
                if first is not None and self._keep([first, *self._consumer.consume(_TAKE, 0)]):
                    self._wake()
        except Exception:  # whatever it is: who reads the range meets it, too
            self.close()
        finally:
            self._consumer.close()

    def _has_room(self) -> bool:
        return self.over or (self._messages < _MOST_MESSAGES and self._bytes < _MOST_BYTES)

    def _keep(self, found: list[Any]) -> bool:
        """Whether there is news."""
        news = False
        with self._changed:
            for message in found:
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    self.over |= explained(error)[0] not in (Trouble.UNREACHABLE, Trouble.BUSY)
                    continue
                kept = self._kept[message.topic(), message.partition()]
                if error is not None:
                    news |= message.offset() > kept.position
                    kept.position = max(kept.position, message.offset())
                elif message.offset() >= kept.position:  # what is fetched again after a break may come twice
                    kept.messages.append(message)
                    kept.position = message.offset() + 1
                    self._messages += 1
                    self._bytes += len(message)
                    news = True
            self._changed.notify_all()
        return news and not self.over


_lock = threading.Lock()
_following: dict[tuple[int, str, frozenset[Place]], Ahead] = {}  # by process, cluster and partitions


def follow(cluster: Cluster, positions: Mapping[Place, int], wake: Callable[[], None]) -> dict[Place, int]:
    """Read on from these positions, and call `wake`, from another thread, whenever there is more. How far it has come
    by now, by partition; nothing for partitions that are not followed at the moment."""
    if not positions:
        return {}
    key = os.getpid(), cluster.identity(), frozenset(positions)
    with _lock:
        ahead = _following.get(key)
        if ahead is None or not ahead.goes_on_from(positions):
            if ahead is not None:
                ahead.close()
                if time.monotonic() - ahead.made < _SECONDS_OF_ONE:
                    return {}
            try:
                ahead = _following[key] = Ahead(cluster, positions, wake)
            except (LogError, load().KafkaException):
                return {}
    return ahead.positions()


def taken_ahead(cluster: Cluster, place: Place, start: int, end: int) -> list[Any] | None:
    """The messages of a range, where a consumer that follows the partition has them all; else None."""
    mine = os.getpid(), cluster.identity()
    with _lock:
        found = [ahead for key, ahead in _following.items() if key[:2] == mine and place in key[2] and not ahead.over]
    return next((taken for ahead in found if (taken := ahead.take(place, start, end)) is not None), None)
