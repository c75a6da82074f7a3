"""How long a cluster is silent after a death: of an executor, and of the driver while a standby waits.

A running count with a million keys, on two executors; 20,000 rows come in every second. `kill -9` hits a whole machine:
a worker with its executors, or the driver with its JVM. The connections of a process that is killed are closed, and so
Spark knows at once that it is gone; of a machine that loses its power it would know after `spark.network.timeout`.

* An executor: until the second commit after it. The first may be of a tick that was all but done.
* The driver: until the first commit of the standby. It has another host name, so that it cannot look at the process: it
  has to wait until the signs of life stop, as on another machine. (Where this bench may not rename a host, it says so.)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from bench.bench import Bench, Check, Outcome, Say, at_most
from bench.cluster import WORKERS, Place, Run, can_rename_host, place
from bench.contest import Ratio, Series
from bench.peers.peer import Tick
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.stores import open_store

_LEDGER, _RATE = "steady", 20_000
_ROOM = 4  # executors for each worker: those of two drivers, and those that come in place of the dead
_EXECUTOR, _DRIVER = "an executor dies", "the driver dies"


def measure(quick: bool, say: Say) -> Outcome:
    keys, rounds = (100_000, 1) if quick else (1_000_000, 3)
    with place(say, _ROOM) as where:
        executor, driver = _Deaths(where, keys).measured(rounds, say)
        notes = {"store": where.store, "the standby is on another host": str(can_rename_host())}
    checks = (_check(_EXECUTOR, executor, 15), _check(_DRIVER, driver, 20))
    return Outcome((_series(_EXECUTOR, executor), _series(_DRIVER, driver)), checks, notes)


class _Deaths:
    """One ledger, and the drivers that have it, one after another."""

    def __init__(self, where: Place, keys: int) -> None:
        self._where, self._keys, self._started = where, keys, 0
        began = datetime.now(UTC) - timedelta(seconds=keys / _RATE)
        self._known = {"BENCH_RATE": str(_RATE), "BENCH_KEYS": str(keys), "BENCH_START": began.isoformat()}
        self._address = where.ledger(_LEDGER)

    def measured(self, rounds: int, say: Say) -> tuple[list[float], list[float]]:
        """The seconds of silence after deaths of executors, and of drivers."""
        executors, drivers = [], []
        say("fill the state")
        runs = [self._start()]
        try:
            runs[0].await_(lambda: self._rows() >= self._keys, "all keys")
            for number in range(rounds):
                say(f"round {number + 1} of {rounds}")
                runs.append(self._start("--standby"))
                runs[-1].await_(lambda: _is_ready(runs[-1]), "a standby that is ready")
                self._await_commits(runs[-2], 5)
                executors.append(self._executor_dies(runs[-2], number))
                self._await_commits(runs[-2], 5)
                drivers.append(self._driver_dies(runs[-2], runs[-1]))
                self._await_commits(runs[-1], 5)
        finally:
            for run in runs:
                run.end()
        return executors, drivers

    def _start(self, *words: str) -> Run:
        self._started += 1
        options = ("--set", "ways=planned", *words)
        # A name that Java can resolve, of which this machine has many.
        host = f"127.0.0.{10 + self._started}" if can_rename_host() else ""
        return Run(self._where, f"run-{self._started}", _LEDGER, options, self._known, host)

    def _executor_dies(self, driver: Run, number: int) -> float:
        """With its machine, in place of which another one comes when it is over."""
        cluster, which = self._where.cluster, number % len(WORKERS)
        before, began = self._commits(), time.monotonic()
        cluster.end(cluster.workers[which])
        driver.await_(lambda: self._commits() >= before + 2, "commits after an executor's death")
        seconds = time.monotonic() - began
        cluster.workers[which] = cluster.add_worker(f"{WORKERS[which]}-{number}", _ROOM, hidden=False)
        return seconds

    def _driver_dies(self, driver: Run, standby: Run) -> float:
        began = time.monotonic()
        driver.end()
        before = self._rows()  # with a commit that was under way
        standby.await_(lambda: self._rows() > before, "a commit of the standby")
        return time.monotonic() - began

    def _await_commits(self, driver: Run, more: int) -> None:
        wanted = self._commits() + more
        driver.await_(lambda: self._commits() >= wanted, f"{more} more commits")

    def _commits(self) -> int:
        """The number of the newest commit. Names alone: whoever looks must not be in the way."""
        names = open_store(self._address).list("commits")
        return max((int(name.partition(".")[0]) for name in names if name.endswith(".json")), default=0)

    def _rows(self) -> int:
        """How many rows the newest commit has read; 0 before there is one."""
        if not self._commits():
            return 0
        return sum(Ledger(self._address).head.clock.get("rows", {}).values())


def _is_ready(standby: Run) -> bool:
    lines = [line for line in standby.said().splitlines() if "standing by: " in line]
    return bool(lines) and "getting ready" not in lines[-1]


def _series(label: str, seconds: Sequence[float]) -> Series:
    return Series(label, tuple((Tick(1000 * one, 0),) for one in seconds))


def _check(what: str, seconds: Sequence[float], limit: float) -> Check:
    found = sorted(seconds)
    return at_most(f"s from when {what} to the next commit", Ratio(found[len(found) // 2], found[0], found[-1]), limit)


BENCH = Bench("cluster-death", "from a death to the next commit, 1M keys", measure)
