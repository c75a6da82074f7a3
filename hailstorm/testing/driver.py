"""The test driver: run a topology on rows that a test gives it, without logs, servers or a command line.

    with Driver(storm) as driver:
        driver.feed("tweets", [{"text": "hail and rain"}])
        driver.advance()
        assert driver.rows("words") == [...]           # everything that a stream, or a sink, has got
        assert driver.table("counts") == [...]         # a table's rows now

It runs the real engine on a real ledger in a temporary folder; only the logs are replaced by embedded ones, and the
sinks by nothing: what they would get is read from their outboxes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.session import start_session
from hailstorm.errors import UsageError
from hailstorm.ledger.faults import inject
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.sinks.sink import Delivery
from hailstorm.spouts.decode.kafka_columns import in_value
from hailstorm.spouts.log import Log
from hailstorm.testing.surrounded import SurroundedLog
from hailstorm.topology.settings import Settings
from hailstorm.topology.step import Sink, Spout, Step
from hailstorm.topology.topology import Topology

_CAPTURE = "captured-"


class Crash(Exception):
    """What `Driver.crash` lets the engine die of."""


class Driver:
    def __init__(
        self,
        topology: Topology,
        spark: SparkSession | None = None,
        tasks: tuple[int, ...] = (1,),
        settings: Settings | None = None,
    ) -> None:
        """`tasks` are the ways to run that pacing may choose from: 1 is prepared, more is planned."""
        topology.validate()
        self._folder = tempfile.TemporaryDirectory(prefix="hailstorm-driver-")
        self.root = Path(self._folder.name)
        self._spark = spark or start_session("hailstorm driver", self.root / "spark.log")
        self._tasks, self._settings = tasks, settings
        spouts = [step for step in topology.steps if isinstance(step, Spout)]
        self.logs = {step.name: _log(self.root / "logs" / step.name, step) for step in spouts}
        for log in self.logs.values():
            log.create(1)
        self.topology = _captured(topology.with_steps(self._fed_by_test))
        try:
            self._open()
        except BaseException:
            self._folder.cleanup()
            raise

    def feed(
        self, spout: str, rows: Iterable[Mapping[str, Any] | str | bytes], partition: int = 0, **around: Any
    ) -> None:
        """Append rows to a spout's log: dicts become JSON, text and bytes are taken as they are.

        A spout with columns from around the value is told them by name, for all these rows: `kafka_key="a"`.
        """
        log = self.logs[spout]
        if isinstance(log, SurroundedLog):
            rows = log.wrapped(rows, partition, around)
        elif around:
            raise UsageError(17, f"spout '{spout}' has no column '{next(iter(around))}'")
        log.append(list(rows), partition=partition, partitions=partition + 1)

    def advance(self) -> int:
        """Read everything that was fed, in as many ticks as pacing makes of it. How many rows it read."""
        before = self.ledger.head.rows
        target = self._negotiator.logs.latest()
        while not self._negotiator.position().covers(target):
            self._negotiator.tick(target)
        return self.ledger.head.rows - before

    def crash(self, at: str) -> None:
        """Let the next advance die at a fault point, and start again from the last commit."""
        try:
            with inject(at, Crash(at)):
                self.advance()
        except Crash:
            self._negotiator.fail()
            self._open()
        else:
            raise AssertionError(f"the advance did not pass '{at}'")

    def rows(self, step: str) -> list[dict[str, Any]]:
        """Everything that flowed out of a step, or into a sink, so far. Of tables: changes, with `_kind`."""
        sink = step if isinstance(self.topology.step(step), Sink) else _CAPTURE + step
        tables = [
            pq.read_table(self.ledger.store.path(file.path))
            for commit in open_ledger(self.ledger.root).commits()
            for file in commit.outbox.get(sink, ())
        ]
        return pa.concat_tables(tables).to_pylist() if tables else []

    def table(self, step: str, at: int | None = None) -> list[dict[str, Any]]:
        """A table's rows now, or at a commit, sorted by key."""
        state = open_ledger(self.ledger.root).state(step, at)
        key = self.topology.step(step).key
        rows: list[dict[str, Any]] = state.arrow().to_pylist()
        return sorted(rows, key=lambda row: [repr(row[name]) for name in key])

    def errors(self) -> list[dict[str, Any]]:
        """The dead letters so far."""
        letters: list[dict[str, Any]] = open_ledger(self.ledger.root).errors().to_pylist()
        return letters

    def retry(self) -> tuple[int, int]:
        """Give the dead letters their second chance. How many there were, and how many failed again."""
        done = self._negotiator.retry()
        return done.letters, done.failed

    @property
    def watermark(self) -> datetime | None:
        found = self.ledger.head.watermark
        return None if found is None else datetime.fromisoformat(found)

    def close(self) -> None:
        self._negotiator.fail()
        self._folder.cleanup()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> None:
        self.ledger = Ledger(self.root / "ledger", create=True)
        self._negotiator = Negotiator(self._spark, self.topology, self.ledger, self._settings, ways=self._tasks)
        self._negotiator.start()

    def _fed_by_test(self, step: Step) -> Step:
        if isinstance(step, Spout):
            return replace(step, source=self.logs[step.name])
        return replace(step, sink=_Nowhere()) if isinstance(step, Sink) else step


def _log(path: Path, spout: Spout) -> Log:
    columns = tuple((column.name, column.type or "") for column in spout.schema)
    return Log(path) if in_value(columns) == columns else SurroundedLog(path)


def _captured(topology: Topology) -> Topology:
    """The topology with a sink on every step, so that what flowed can be read from the ledger."""
    whole = topology.with_steps(lambda step: step)
    for step in topology.steps:
        if not isinstance(step, Sink):
            whole.add(
                Sink(
                    name=_CAPTURE + step.name,
                    at=step.at,
                    inputs=(step.name,),
                    schema=step.schema,
                    key=step.key,
                    sink=_Nowhere(),
                    delivery="exactly-once",
                )
            )
    return whole


@dataclass(frozen=True)
class _Nowhere:
    """A sink that keeps nothing."""

    keeps_cursor: bool = False

    def open(self, delivery: Delivery) -> None: ...

    def cursor(self) -> int | None:
        return None

    def deliver(self, commit: int, rows: pa.Table) -> None: ...

    def close(self) -> None: ...

    def resolve(self, folder: Path) -> _Nowhere:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {"sink": "nowhere"}
