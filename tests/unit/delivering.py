"""An outbox in memory and sinks that remember, for the tests of delivery."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from hailstorm.columns import KIND, OLD
from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.delivery.outbox import Beginning, Entry
from hailstorm.engine.delivery.sink_state import SinkState
from hailstorm.engine.tolerance import Recent
from hailstorm.errors import Location
from hailstorm.sinks.sink import Cursor, Delivery, Parcel, Rejected, Sink
from hailstorm.topology import ends
from hailstorm.topology.schema import Column, Schema

SCHEMA = Schema((Column("word", "string"), Column("n", "bigint")))


@dataclass
class MemoryOutbox:
    """Commits by number, each a list of words for all sinks; survives the 'crash' of a deliverer."""

    commits: dict[int, list[str]] = field(default_factory=dict)
    cursors: dict[str, int] = field(default_factory=dict)
    counts: dict[str, Recent] = field(default_factory=dict)
    stores: int = 0
    page: int = 100
    newest_commit: int = 0
    rejected: dict[tuple[str, int], list[tuple[str, bytes]]] = field(default_factory=dict)
    retries: set[int] = field(default_factory=set)
    ledger: str = "ledger"
    is_table: bool = False
    since: int = 0
    whole: int = 0
    resent: int = 0
    first: int = 1  # the first commit whose rows are still there
    health: list[tuple[str, str | None, bool]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # seconds until the next try, as of the telling

    def commit(self, *words: str) -> int:
        self.newest_commit += 1
        if words:
            self.commits[self.newest_commit] = list(words)
        return self.newest_commit

    def is_ours(self) -> bool:
        return True

    def beginning(self, sink: str) -> Beginning:
        return Beginning(since=self.since, last=max(self.commits, default=0), whole=self.whole, resent=self.resent)

    def pending(self, sink: str, after: int) -> list[Entry]:
        later = [number for number in sorted(self.commits) if number > after and number >= self.whole]
        return [
            Entry(number, len(self.commits[number]), (str(number),), number == self.whole)
            for number in later[: self.page]
        ]

    def has_all(self, sink: str, after: int, until: int) -> bool:
        return after >= self.first - 1

    def pieces(self, entry: Entry) -> Iterator[pa.Table]:
        """As Spark may write it: other order, other types and hidden columns; at most three rows at a time."""
        words = self.commits[entry.commit]
        for start in range(0, len(words), 3):
            part = words[start : start + 3]
            count = len(part)
            yield pa.table(
                {"_time": [0] * count, "n": pa.array([1] * count, pa.int32()), "word": part, **self.hidden(count)}
            )

    def hidden(self, count: int) -> dict[str, Any]:
        return {KIND: ["insert"] * count, OLD: pa.nulls(count, pa.struct([("n", pa.int64())]))} if self.is_table else {}

    def load_cursor(self, sink: str) -> int:
        return self.cursors.get(sink, 0)

    def recent(self, sink: str) -> Recent:
        return self.counts.get(sink, ())

    def store_cursor(self, sink: str, commit: int, recent: Recent, ahead: bool = False) -> None:
        self.stores += 1
        self.cursors[sink] = commit
        self.counts[sink] = recent

    def store_health(self, sink: str, error: str | None, next_try: datetime | None) -> None:
        self.health.append((sink, error, next_try is not None))
        if next_try is not None:
            self.waits.append((next_try - datetime.now(UTC)).total_seconds())

    def waiting(self, sink: str, after: int) -> tuple[int, int]:
        found = [words for number, words in self.commits.items() if number > after]
        return len(found), sum(map(len, found))

    def newest(self) -> int:
        return self.newest_commit

    def is_retry(self, commit: int) -> bool:
        return commit in self.retries

    def store_rejected(self, sink: str, commit: int, letters: Sequence[tuple[str, bytes]], rows: pa.Table) -> None:
        assert rows.num_rows == len(letters)
        self.rejected[sink, commit] = list(letters)

    def forget_rejected(self, sink: str, commit: int) -> None:
        self.rejected.pop((sink, commit), None)


@dataclass
class Recorder:
    """A sink that keeps no cursor, with errors on demand: before anything arrives, or after."""

    got: list[tuple[int, str]] = field(default_factory=list)
    before: list[Exception] = field(default_factory=list)
    after: list[Exception] = field(default_factory=list)
    opening: list[Exception] = field(default_factory=list)
    opened: int = 0
    closed: int = 0
    gate: threading.Event | None = None
    keeps_cursor: bool = False
    forgets: bool = False
    wholes: list[int] = field(default_factory=list)

    def open(self, delivery: Delivery) -> None:
        if self.opening:
            raise self.opening.pop(0)
        self.opened += 1

    def cursor(self) -> Cursor | None:
        return None

    def deliver(self, parcel: Parcel) -> None:
        if self.gate is not None:
            self.gate.wait(10)
        if self.before:
            raise self.before.pop(0)
        if parcel.whole:
            self.wholes.append(parcel.commit)
        self.got += [(parcel.commit, word) for rows in parcel.pieces() for word in rows["word"].to_pylist()]
        if self.after:
            raise self.after.pop(0)

    def close(self) -> None:
        self.closed += 1

    def resolve(self, folder: Path) -> Sink:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {}


def sink_step(sink: Sink, mode: str = "exactly-once", name: str = "board") -> ends.Sink:
    return ends.Sink(name, Location("app.py", 3), ("words",), SCHEMA, sink=sink, delivery=mode)  # type: ignore[arg-type]


@contextmanager
def delivering(outbox: MemoryOutbox, *sinks: ends.Sink) -> Iterator[Deliverer]:
    deliverer = Deliverer("trending", sinks, outbox)
    deliverer.start()
    try:
        yield deliverer
    finally:
        deliverer.stop()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)


def run_once(outbox: MemoryOutbox, sink: ends.Sink) -> SinkState:
    """Until all is delivered or the sink has stopped: a process that lives until then."""
    with delivering(outbox, sink) as deliverer:
        deliverer.wait(10, outbox.newest())
        return deliverer.states()[sink.name]


def table_step(sink: Sink) -> ends.Sink:
    return replace(sink_step(sink), is_table=True, key=("word",))


@dataclass
class Picky(Recorder):
    """A sink whose target takes no word that begins with a `!`."""

    delivery: Delivery | None = None

    def open(self, delivery: Delivery) -> None:
        self.delivery = delivery

    def deliver(self, parcel: Parcel) -> None:
        rows = pa.concat_tables(parcel.pieces())
        words = rows["word"].to_pylist()
        bad = [number for number, word in enumerate(words) if word.startswith("!")]
        if bad:
            assert self.delivery is not None
            self.delivery.reject(parcel.commit, [Rejected(number, "has a !") for number in bad])
        good = [number for number in range(len(words)) if number not in bad]
        super().deliver(Parcel.of(parcel.commit, rows.take(pa.array(good, pa.int64()))))
