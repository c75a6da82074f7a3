"""The test driver: run a topology on rows that a test gives it, without logs, servers or a command line.

    with Driver(storm) as driver:
        driver.feed("tweets", [{"text": "hail and rain"}])
        driver.advance()
        assert driver.rows("words") == [...]           # everything that a stream, or a sink, has got
        assert driver.table("counts") == [...]         # a table's rows now

It runs the real engine on a real ledger in a temporary folder; only the logs are replaced by embedded ones, and the
sinks by nothing: what they would get is read from their outboxes. `Driver(storm, deliver=True)` keeps the sinks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Summary
from hailstorm.engine.spark.scratch import scratch_folder
from hailstorm.engine.spark.session import start_session
from hailstorm.engine.taps import Nowhere, tap_of, tapped
from hailstorm.engine.ticks.logs import OnDataLoss
from hailstorm.engine.ticks.pacing import PREPARED
from hailstorm.engine.ticks.replacing import Replacement
from hailstorm.errors import UsageError
from hailstorm.faults import inject
from hailstorm.history.backfill import finished, made_first
from hailstorm.history.rewind import rewind
from hailstorm.history.rewind_steps import run_since
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.reader import open_ledger
from hailstorm.ledger.stores.store import read_table
from hailstorm.spouts.decode.kafka_columns import in_value
from hailstorm.spouts.log import Log
from hailstorm.testing.surrounded import SurroundedLog
from hailstorm.topology.ends import Spout
from hailstorm.topology.settings import Settings
from hailstorm.topology.topology import Topology


class Crash(Exception):
    """What `Driver.crash` lets the engine die of."""


class Driver:
    """A topology that runs when a test says so, on the rows that the test has fed. Used with `with`."""

    def __init__(
        self,
        topology: Topology,
        spark: SparkSession | None = None,
        tasks: tuple[int, ...] = (1,),
        settings: Settings | None = None,
        deliver: bool = False,
        now: datetime | None = None,
    ) -> None:
        """`tasks` are the ways to run that pacing may choose from: 0 is resident, 1 is prepared, more is planned.

        With `deliver` the topology's own sinks get their rows: some while it runs, all by `stop`. With `now` system
        time stands still there, until `advance_to`; without, it is the real one.
        """
        topology.validate()
        self._folder = tempfile.TemporaryDirectory(prefix="driver-", dir=scratch_folder())
        self.root = Path(self._folder.name)
        self._spark = spark or start_session("hailstorm driver")
        # Everything is kept: `rows` reads what has been delivered long ago.
        self._tasks, self._deliver = tasks, deliver
        self._now = None if now is None else _in_utc(now)
        self._settings = replace(settings or topology.settings, retention="all")
        self.logs: dict[str, Log] = {}
        self.topology = self._surrounded(topology)
        try:
            self._open()
        except BaseException:
            self._folder.cleanup()
            raise

    def feed(
        self,
        spout: str,
        rows: Iterable[Mapping[str, Any] | str | bytes],
        partition: int = 0,
        time: datetime | None = None,
        **around: Any,
    ) -> None:
        """Append rows to a spout's log: dicts become JSON, text and bytes are taken as they are.

        `time` is that of the records; without it, it is now. A spout with columns from around the value is told them
        by name, for all these rows: `kafka_key="a"`.
        """
        log = self.logs[spout]
        if isinstance(log, SurroundedLog):
            rows = log.wrapped(rows, partition, around)
        elif around:
            raise UsageError(17, f"spout '{spout}' has no column '{next(iter(around))}'")
        log.append(list(rows), partition=partition, partitions=partition + 1, time=time or self._now)

    def advance(self) -> int:
        """Read everything that was fed, in as many ticks as pacing makes of it, until nothing is due. How many rows it
        read."""
        before = self.ledger.head.rows
        target = self._negotiator.logs.look(self._negotiator.position()).ends
        while not self._negotiator.position().covers(target) or self._negotiator.due():
            self._negotiator.tick(target)
        return self.ledger.head.rows - before

    def advance_to(self, now: datetime) -> int:
        """Let system time pass until then, and advance."""
        self._now = _in_utc(now)
        return self.advance()

    def complete(self) -> int:
        """Read everything, and then do all that has waited for time: no more input will come."""
        rows = self.advance()
        self._negotiator.complete()
        return rows

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

    def restart(
        self, topology: Topology | None = None, accept: tuple[str, ...] = (), recompute: tuple[str, ...] = ()
    ) -> None:
        """Stop the engine and start it again on the same ledger; with another topology, as after an edit of the app.

        `accept` and `recompute` name steps as `run --accept` and `run --recompute` do.
        """
        self._negotiator.fail()
        if topology is not None:
            topology.validate()
            self.topology = self._surrounded(topology)
        self._open(accept, made_first(recompute, lose=True) if recompute else None)

    def backfill(
        self, step: str, from_files: Mapping[str, str] | None = None, on_data_loss: OnDataLoss = "fail"
    ) -> None:
        """Give a step, and what is below it, the past that the logs hold, as `hailstorm backfill` does; by spout, with
        files of records that the logs no longer have."""
        self._negotiator.fail()
        self._open((), made_first((step,), lose=False, from_files=from_files, on_data_loss=on_data_loss))

    def rewind(
        self,
        to: int,
        topology: Topology | None = None,
        accept: tuple[str, ...] = (),
        steps: tuple[str, ...] = (),
    ) -> None:
        """Go back to a commit, as `hailstorm rewind --append keep` does, and start again from there; with another
        topology, as after an edit of the app. With `steps`, only these and what is below them, as `--steps` does."""
        self._negotiator.fail()
        if topology is not None:
            topology.validate()
            self.topology = self._surrounded(topology)
        if steps:
            self._open(accept, lambda negotiator: finished(run_since(negotiator, to, steps, accept)))
            return
        ledger = Ledger(self.ledger.root)
        negotiator = Negotiator(self._spark, self.topology, ledger, self._settings, ways=self._tasks)
        negotiator.rename()
        rewind(self._spark, self.topology, ledger, negotiator.plan(PREPARED), to, "keep", accept)
        self._open(accept)

    def stop(self) -> Summary:
        """Stop the engine as a run does at its end: what is committed is delivered. What there is can still be read."""
        return self._negotiator.stop()

    def rows(self, step: str) -> list[dict[str, Any]]:
        """Everything that flowed out of a step, or into a sink, so far. Of tables: changes, with `_kind`. After an edit
        of the topology, rows from before it have the columns of then."""
        sink = tap_of(step) if self.topology.step(step).gives_rows else step
        return [
            row
            for commit in open_ledger(self.ledger.root).commits()
            for file in commit.outbox.get(sink, ())
            for row in read_table(self.ledger.store, file.path).to_pylist()
        ]

    def table(self, step: str, at: int | None = None) -> list[dict[str, Any]]:
        """A table's rows now, or at a commit, sorted by key."""
        state = open_ledger(self.ledger.root).state(step, at)
        key = self.topology.step(step).state_key
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
        """The event time up to which input is believed complete; None before there is any."""
        found = self.ledger.head.watermark
        return None if found is None else datetime.fromisoformat(found)

    def close(self) -> None:
        """Stop the engine and remove its ledger and logs. At the end of `with` it happens by itself."""
        self._negotiator.fail()
        self._folder.cleanup()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(
        self, accept: tuple[str, ...] = (), first: Callable[[Negotiator], Replacement | None] | None = None
    ) -> None:
        self.ledger = Ledger(self.root / "ledger", create=True)
        self._negotiator = Negotiator(
            self._spark, self.topology, self.ledger, self._settings, accept=accept, ways=self._tasks, now=self._time
        )
        if first is not None:
            self._negotiator.rename()
        self._negotiator.start(replacement=None if first is None else first(self._negotiator))

    def _time(self) -> datetime:
        return self._now or datetime.now(UTC)

    def _surrounded(self, topology: Topology) -> Topology:
        """The topology with logs of the driver's own, and everything captured."""
        for spout in topology.spouts:
            if spout.name not in self.logs:
                self.logs[spout.name] = _log(self.root / "logs" / spout.name, spout).create(1)
        return tapped(self._fed_by_test(topology), topology.givers)

    def _fed_by_test(self, topology: Topology) -> Topology:
        fed = topology.with_sources(lambda spout: self.logs[spout.name])
        return fed if self._deliver else fed.with_sinks(lambda step: Nowhere())


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _log(path: Path, spout: Spout) -> Log:
    columns = tuple((column.name, column.type or "") for column in spout.schema)
    return Log(path) if in_value(columns) == columns else SurroundedLog(path)
