"""Which logs a spout has read, by number, and what tells each of them from another one under the same name.

A clock knows partitions by one number. Partition p of a spout's log number n is `n * 10_000 + p`, so the partitions of
the first log, and of a spout that only ever had one, have the log's own numbers. Which log has which number is the
roster. It only grows, and the ledger keeps it together with the ids of the logs: so a log that was deleted and made
again, or another one in its place, is noticed, and is never read at the old one's offsets. Once the user has accepted
it, it gets a number of its own and begins at its beginning. docs/decisions/0030-kafka.md says why.

Kafka has many logs (its topics) and keeps its roster itself; `OneLog` does it for every source that is one log.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from hailstorm.errors import LogError
from hailstorm.spouts.source import Gradual, LivingSource, SingleLog, Source, Watched

MOST_PARTITIONS = 10_000  # of one log


@dataclass(frozen=True)
class Known:
    """A log as a roster knows it. The id was made with the log; it is empty when nobody has asked for it yet."""

    name: str
    id: str = ""


@dataclass(frozen=True)
class Roster:
    """The logs of a spout by number. Numbers are never given twice."""

    logs: tuple[Known, ...] = ()

    @staticmethod
    def of_json(known: Mapping[str, str]) -> Roster:
        """From `{"0": "orders:4x2…"}`, as a commit holds it. A name has no colon."""
        texts = (known[str(number)].partition(":") for number in range(len(known)))
        return Roster(tuple(Known(name, id) for name, _, id in texts))

    def to_json(self) -> dict[str, str]:
        return {str(number): f"{known.name}:{known.id}" for number, known in enumerate(self.logs)}

    def replaced(self, found: Mapping[str, str]) -> list[str]:
        """The names that now belong to another log than the one that was read."""
        newest = {known.name: known.id for known in self.logs}
        return [name for name, id in found.items() if newest.get(name) and Known(name, id) not in self.logs]

    def gone(self, found: Collection[str]) -> list[str]:
        """The names of logs that were read and are not there now, except where that has been accepted."""
        newest = {known.name: known.id for known in self.logs}
        return [name for name, id in newest.items() if id and name not in found]

    def extended(self, found: Mapping[str, str]) -> Roster:
        """With a number for each log that is there now (name -> id) and has none, in their order.

        For a name whose log is gone, a number waits for the log that may get the name.
        """
        logs = [*self.logs, *(Known(name) for name in self.gone(found))]
        for name, id in found.items():
            if Known(name, id) not in logs:
                waiting = logs.index(Known(name)) if Known(name) in logs else None
                if waiting is None:
                    logs.append(Known(name, id))
                else:
                    logs[waiting] = Known(name, id)
        return Roster(tuple(logs))

    def number(self, name: str, id: str) -> int:
        return self.logs.index(Known(name, id))

    def place(self, partition: int) -> tuple[Known, int]:
        """The log and its own partition, of a partition of the spout."""
        number, own = divmod(partition, MOST_PARTITIONS)
        if number >= len(self.logs) or partition < 0:
            raise LogError(13, f"there is no partition {partition}: this spout has read {len(self.logs)} logs")
        return self.logs[number], own


def numbered(number: int, name: str, partition: int) -> int:
    if partition >= MOST_PARTITIONS:
        raise LogError(37, f"'{name}' has more than {MOST_PARTITIONS} partitions, more than a clock can name")
    return number * MOST_PARTITIONS + partition


@dataclass(frozen=True)
class OneLog:
    """A source that is one log, with a roster of the logs that were in its place before."""

    source: SingleLog
    remembered: Mapping[str, str] = field(default_factory=dict)
    spout: str = field(default="SPOUT", compare=False)  # for messages

    @property
    def columns(self) -> str | None:
        return self.source.columns

    @property
    def has_time(self) -> bool:
        return self.source.has_time

    def earliest(self) -> dict[int, int]:
        return self._numbered(self.source.earliest())

    def latest(self) -> dict[int, int]:
        return self._numbered(self.source.latest())

    def latest_of_all(self) -> dict[int, int]:
        log = self.source
        return self._numbered(log.latest_of_all() if isinstance(log, Gradual) else log.latest())

    def beginning(self, first: bool) -> dict[int, int]:
        return self.earliest()

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if start < end:
            known, own = self._roster().place(partition)
            if known.id and known.id != self.source.identity():
                raise self._replaced()
            yield from self.source.read(own, start, end)

    def size(self, partition: int, start: int, end: int) -> int | None:
        return self.source.size(self._roster().place(partition)[1], start, end)

    def roster(self, accept: bool = False) -> dict[str, str]:
        roster, found = self._roster(), {self._name: self.source.identity()}
        if roster.replaced(found) and not accept:
            raise self._replaced()
        return roster.extended(found).to_json()

    def remembering(self, roster: Mapping[str, str], spout: str = "") -> OneLog:
        return replace(self, remembered=dict(roster), spout=spout or self.spout)

    def committed(self, offsets: Mapping[int, int]) -> None:
        """Nobody is to be told."""

    def resolve(self, folder: Path) -> OneLog:
        return replace(self, source=self.source.resolve(folder))

    def describe(self) -> Mapping[str, Any]:
        return self.source.describe()

    @property
    def _name(self) -> str:
        """What kind of log it is. Not where it is: a log that was moved is the same one."""
        return next(iter(self.source.describe()))

    def _roster(self) -> Roster:
        # Until the ledger remembers anything, the log has the first number.
        return Roster.of_json(self.remembered) if self.remembered else Roster((Known(self._name),))

    def _numbered(self, offsets: Mapping[int, int]) -> dict[int, int]:
        # An old log that was put back has its old number, and is read on from where it was left.
        number = Roster.of_json(self.roster()).number(self._name, self.source.identity())
        return {numbered(number, self._name, own): offset for own, offset in offsets.items()}

    def _replaced(self) -> LogError:
        who = next(iter(self.source.describe().items()))
        return LogError(
            61,
            f"{who[0]} {who[1]} is not the log that was read before: it has another id",
            hint="It was deleted and made again, or another log is in its place. What was read of the old one says\n"
            "nothing about this one. Put the old one back, or name it again.\n"
            f"To read this one from its beginning, beside what was read of the old one: --accept {self.spout}",
        )


def living(source: Source) -> LivingSource:
    """The source as the engine asks it: with a roster."""
    if isinstance(source, LivingSource):
        return source
    assert isinstance(source, SingleLog), f"{type(source).__name__} says neither what it is nor what it has read"
    return OneLog(source)


def watched(source: LivingSource) -> Watched | None:
    """The log behind it, if it is one that can be watched."""
    log = source.source if isinstance(source, OneLog) else source
    return log if isinstance(log, Watched) else None
