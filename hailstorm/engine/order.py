"""The work order: what the tasks of one wave need to know, sent as a job-local property.

The DataFrames of a prepared tick never change, so everything that does change (the interval, the live runs, where
scratch files are) reaches the tasks this way. Reports come back through an accumulator: one per task and Python
pass, named by a slot, so that a task that Spark runs twice is counted once.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
from pyspark import TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from hailstorm.ledger.commit import DataFile, Run

PROPERTY = "hailstorm.order"


class TaskRange(msgspec.Struct, frozen=True, array_like=True):
    spout: str
    partition: int
    start: int
    end: int


class Order(msgspec.Struct, frozen=True):
    ledger: str
    cache: str
    scratch: str  # the folder for this advance's scratch files
    seq: int  # the number that the commit will have
    now: int
    ranges: tuple[tuple[TaskRange, ...], ...] = ()  # one entry a task
    runs: dict[str, tuple[Run, ...]] = {}
    inputs: dict[str, tuple[str, ...]] = {}  # scratch files by step
    refill: str = ""  # the step whose whole state is to be read instead of its changes
    excluded: dict[str, dict[int, dict[int, str]]] = {}  # records to refuse: spout, partition, offset, why
    letters: tuple[str, ...] = ()  # files of dead letters that get their second chance

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def of_this_task() -> Order:
        context = TaskContext.get()
        assert context is not None, "outside of a Spark task"
        text = context.getLocalProperty(PROPERTY)
        assert text is not None, "no order"
        return msgspec.json.decode(text, type=Order)


class Seen(msgspec.Struct):
    """What a read saw of one partition: rows, and the highest event time in µs."""

    rows: int = 0
    highest: int | None = None


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
    replaced: list[str] = []  # steps whose earlier runs these runs replace
    outbox: dict[str, list[DataFile]] = {}
    scratch: dict[str, list[str]] = {}
    letters: list[DataFile] = []
    failures: dict[str, Failures] = {}
    null_keys: list[str] = []  # folds that met a null key
    refill: list[str] = []  # tops that need their table's whole state
    timings: dict[str, float] = {}


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
