"""Standing by: a second driver that waits for the first one to end, with all ready that needs no ledger of its own.

Spark is up, the topology is compiled, and every way of running a tick has been run once over nothing: its code is
generated and its Python workers are there. Where tasks run on this machine and the ledger is elsewhere, copies of the
state are here, too. What is left to do when the lease is free is what every run does first.

`run.py` makes one for `--standby`, and the lease calls it while another driver has the ledger. It commits nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from pyspark.sql import SparkSession

from hailstorm.clock.clock import Clock, Interval
from hailstorm.engine.advance import Work, advance
from hailstorm.engine.place import nowhere
from hailstorm.engine.plan.compiler import compile_topology
from hailstorm.engine.progress import OnProgress, Progress
from hailstorm.engine.spark.session import is_on_this_machine
from hailstorm.engine.ticks.evolution import evolution, require_consent
from hailstorm.engine.ticks.logs import Logs
from hailstorm.engine.ticks.pacing import PREPARED, ways_called
from hailstorm.engine.ticks.plans import Made
from hailstorm.errors import LedgerError, TransientRunError
from hailstorm.ledger.lease import Holder
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.stores import is_folder
from hailstorm.topology.settings import Settings
from hailstorm.topology.topology import Topology

NEAR_SECONDS, FAR_SECONDS = 0.5, 2.0  # between two looks: in a folder, and where each look is requests that cost money


class StoodDownError(Exception):
    """Asked to stop before there was anything to take over."""


class StandBy:
    """`start_spark` is called once, when there is somebody to wait for. `spark` and `plans` are what is ready then."""

    def __init__(
        self,
        topology: Topology,
        ledger: Ledger,
        settings: Settings,
        accept: tuple[str, ...],
        stop: threading.Event,
        tell: OnProgress,
        start_spark: Callable[[], SparkSession],
    ) -> None:
        self._topology, self._ledger, self._settings, self._accept = topology, ledger, settings, accept
        self._stop, self._tell, self._start_spark = stop, tell, start_spark
        self._seconds = NEAR_SECONDS if is_folder(ledger.address) else FAR_SECONDS
        self._copied: set[tuple[str, str]] = set()
        self.spark: SparkSession | None = None
        self.plans: Made = {}

    def __call__(self, holder: Holder) -> None:
        """One look at how far the other driver is; the first time, get ready."""
        self._say(holder, ", getting ready" if self.spark is None else "")
        if self.spark is None:
            self._ledger.cache.clear_after_reboot()
            self.spark = self._start_spark()
            self._get_ready(self.spark)
            wait = 0.0
        else:
            wait = self._seconds
        if self._stop.wait(wait):
            raise StoodDownError
        # A store that is away for a moment keeps the other driver from committing, too.
        with suppress(OSError, LedgerError):
            self._ledger.catch_up()
            self._copy_state(self.spark)

    def _say(self, holder: Holder, also: str) -> None:
        message = f"standing by: '{self._topology.name}' runs on {holder.host}, process {holder.pid}{also}"
        self._tell(Progress("standing by", message, commit=self._ledger.head.commit))

    def _get_ready(self, spark: SparkSession) -> None:
        logs = Logs(self._topology, self._ledger.head, accept=self._accept)
        used = logs.used_by(self._topology)
        ways = ways_called(self._settings.ways, spark.sparkContext.defaultParallelism)
        for tasks in dict.fromkeys(max(way, PREPARED) for way in ways):
            self.plans[tasks] = compile_topology(spark, used, tasks), dict(logs.rosters)
        plan = next(iter(self.plans.values()))[0]
        # Better now than in the night in which it is needed.
        require_consent(self._topology, evolution(self._topology, self._ledger.head, plan.key_types), self._accept)
        if not is_on_this_machine(spark):
            return  # the other driver may have all executors, and then nothing runs here until it is gone
        none = Interval(Clock(), Clock())
        for plan, _ in self.plans.values():
            # Nothing is live and nothing is read: so nothing is due either, and no function of the user's is called.
            with nowhere(self._ledger) as place, suppress(TransientRunError):
                advance(spark, plan, Work(self._ledger, Live(), none, int(time.time() * 1_000_000), place=place))

    def _copy_state(self, spark: SparkSession) -> None:
        """What the other driver has committed to a store that is elsewhere is copied into this machine's cache."""
        if is_folder(self._ledger.address) or not is_on_this_machine(spark):
            return
        live = self._ledger.head.runs
        for step, runs in live.items():
            for run in runs:
                if (step, run.id) not in self._copied and not self._stop.is_set():
                    self._ledger.cache.open(step, run)
        self._copied = {(step, run.id) for step, runs in live.items() for run in runs}
        self._ledger.cache.let_go({})
        self._ledger.cache.tidy(live)
