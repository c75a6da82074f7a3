"""The work order: what the tasks of one wave need to know, sent as a job-local property.

The DataFrames of a prepared tick never change, so everything that does change (the interval, the live runs, where
scratch files are) reaches the tasks this way. Reports come back through an accumulator: one per task and Python
pass, named by a slot, so that a task that Spark runs twice is counted once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from hailstorm.ledger.commit import Covered, DataFile, Run, Stamp
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores import open_store

PROPERTY = "hailstorm.order"
LARGEST = 1 << 18  # bytes of an order that is sent with every task


class TaskRange(msgspec.Struct, frozen=True, array_like=True):
    spout: str
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start


class Order(msgspec.Struct, frozen=True):
    ledger: str  # what the advance starts from
    cache: str | None  # the folder for copies of its runs; None: every machine has one of its own
    scratch: str  # the address of this advance's scratch files
    seq: int  # the number that the commit will have
    epoch: int  # of the run: in the names of files, with that number
    now: int
    copies: str = ""  # which copies of its runs can be believed
    # Where files go, and its cache (None: with the other copies of each machine). None: into the ledger.
    place: tuple[str, str | None] | None = None
    written: frozenset[str] = frozenset()  # runs that earlier waves wrote there
    synced: bool = True  # whether tasks make their files durable; else the driver does, before it commits
    watermarks: dict[str, tuple[int | None, int | None]] = {}  # step -> input and output, of the commit before
    reached: dict[str, int] = {}  # agenda -> how far it has been handled
    ranges: tuple[tuple[TaskRange, ...], ...] = ()  # one entry a task
    rosters: dict[str, dict[str, str]] = {}  # of spouts, where logs have come or gone since the plan was made
    runs: dict[str, tuple[Run, ...]] = {}
    inputs: dict[str, tuple[str, ...]] = {}  # names of scratch files by step
    excluded: dict[str, dict[int, dict[int, str]]] = {}  # records to refuse: spout, partition, offset, why
    coverage: Covered = {}  # of a retry: what steps were given
    # Dead letters that get their second chance: path, number of the file, and a range of its rows. `excluded` has those
    # that are known to make a later step fail.
    letters: tuple[TaskRange, ...] = ()

    @property
    def stamp(self) -> Stamp:
        return Stamp(self.seq, self.epoch)

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    def sent(self, number: int) -> str:
        """What goes to every task: the order, or, when it is large, the address of a scratch file that has it.

        Spark sends a property to each task by itself, so a large order would be sent as often as there are tasks.
        """
        text = self.encode()
        if len(text) <= LARGEST:
            return text
        name = f"order-{number}.json"
        open_store(self.scratch).put(name, text.encode())
        return f"{self.scratch}/{name}"

    @staticmethod
    def of_this_task() -> Order:
        context = TaskContext.get()
        assert context is not None, "outside of a Spark task"
        text = context.getLocalProperty(PROPERTY)
        assert text is not None, "no order"
        return received(text)


@lru_cache(2)  # a worker runs several tasks of a job, one after another
def received(sent: str) -> Order:
    if sent.startswith("{"):
        return msgspec.json.decode(sent, type=Order)
    scratch, _, name = sent.rpartition("/")
    data = open_store(scratch).get(name)
    assert data is not None, "a task of a tick that is over"
    return msgspec.json.decode(data, type=Order)


def letter_id(file: int, row: int) -> int:
    """A dead letter among those of one retry: the number of its file in the order, and its row there."""
    return (file << 32) + row


class Seen(msgspec.Struct):
    """What a read saw of one partition: records, their bytes, the highest event time in µs, and the mean of the times
    at which the log got them."""

    rows: int = 0
    bytes: int = 0
    highest: int | None = None
    arrived: float | None = None

    def add(self, other: Seen) -> None:
        self.arrived = mean_arrival((self, other))
        self.rows += other.rows
        self.bytes += other.bytes
        self.highest = max((one for one in (self.highest, other.highest) if one is not None), default=None)


def mean_arrival(seen: Iterable[Seen]) -> float | None:
    """Of all their records, in µs since 1970; None where logs do not tell."""
    known = [(one.arrived, one.rows) for one in seen if one.arrived is not None and one.rows]
    rows = sum(count for _, count in known)
    return sum(at * count for at, count in known) / rows if rows else None


class Failures(msgspec.Struct):
    """Rows on which a step failed, and the first reason."""

    count: int = 0
    reason: str = ""
    fatal: bool = False


class Report(msgspec.Struct):
    """What one Python pass of one task did."""

    slot: str
    seen: dict[str, dict[int, Seen]] = {}
    runs: dict[str, list[Run]] = {}
    outbox: dict[str, list[DataFile]] = {}
    scratch: dict[str, list[str]] = {}
    letters: list[DataFile] = []
    late: dict[str, int] = {}  # rows by the step for which they were late
    again: dict[int, str] = {}  # dead letters that failed once more, by id, and why
    failures: dict[str, Failures] = {}
    null_keys: list[str] = []  # folds that met a null key
    refill: list[str] = []  # tops that need their table's whole state
    timings: dict[str, float] = {}

    def files(self) -> Iterator[str]:
        """The names of all files that it wrote and a commit would name."""
        yield from (run_name(step, run.id) for step, runs in self.runs.items() for run in runs)
        yield from (file.path for files in self.outbox.values() for file in files)
        yield from (file.path for file in self.letters)


class _Reports(AccumulatorParam[list[Report]]):
    def zero(self, value: list[Report]) -> list[Report]:
        return []

    def addInPlace(self, value1: list[Report], value2: list[Report]) -> list[Report]:
        value1.extend(value2)
        return value1


class Inbox:
    """Where the driver collects reports. One per compiled topology; tasks hold a copy of the accumulator."""

    def __init__(self, spark_context: Any) -> None:
        self.accumulator: Accumulator[list[Report]] = spark_context.accumulator([], _Reports())
        self._passes = itertools.count(1)

    def slot(self, name: str) -> str:
        """A name for one more pass. No two passes may report under one name."""
        return f"{name}#{next(self._passes)}"

    def take(self) -> Iterable[Report]:
        """The reports since the last call, the last one of each slot."""
        reports = {report.slot: report for report in self.accumulator.value}
        self.accumulator._value = []
        return reports.values()
