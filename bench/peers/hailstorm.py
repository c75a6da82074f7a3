"""Hailstorm itself: a negotiator that is driven tick by tick, on a ledger in a fresh folder, or in an object store.

A tick is timed from outside, from choosing the clock to the commit, with everything that a tick does: files are
fsynced, compaction runs when it is due. Pacing is given so much time that it never cuts a tick in two.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

import bench
import hailstorm as hs
from bench.peers.ageing import grow_old
from bench.peers.memory import python_memory_mb
from bench.peers.peer import CORES, Tick, scratch_folder
from bench.peers.topologies import SPOUT, topology_of
from bench.work import Work, lines
from hailstorm.clock.clock import Clock
from hailstorm.engine.negotiator import Negotiator
from hailstorm.engine.progress import Progress
from hailstorm.engine.spark.executors import require_executors
from hailstorm.engine.spark.session import is_on_this_machine, start_session
from hailstorm.engine.spark.shipping import ship_by_value
from hailstorm.ledger.ledger import Ledger

BESIDE = "beside housekeeping"  # 1 where something was merged, written down or published beside a tick


class Hailstorm:
    """`ledger` is the address of one that outlives this process; `fill` says whether to fill the state with all keys,
    and `commits` how many commits the ledger gets before the first burst. `ways` are the ways to run a tick that pacing
    may choose from; else all. `master` and `conf` are Spark's, where it is a cluster. `settings` are the topology's."""

    def __init__(
        self,
        work: Work,
        ledger: str | None = None,
        fill: bool = True,
        commits: int = 0,
        ways: list[int] | None = None,
        master: str = f"local[{CORES}]",
        conf: Mapping[str, str] | None = None,
        **settings: str,
    ) -> None:
        self.work, self.fill, self.commits, self.settings = work, fill, commits, settings
        self.master, self.conf = master, conf
        self.ways = None if ways is None else tuple(ways)
        self.folder = scratch_folder("hailstorm")
        self.root = ledger or str(self.folder / "ledger")
        self.progress = Progress("starting")

    def prepare(self) -> Mapping[str, float]:
        began = time.perf_counter()
        topology = self.topology()
        never_cut = {"latency": "1000 seconds", "max_tick_rows": 50_000_000}
        settings = topology.settings.with_options({**never_cut, **self.settings})
        ledger = Ledger(self.root, create=True)
        ledger.cache.clear_after_reboot()  # as a run does: readers trust the copies of such a cache alone
        self.spark = start_session("bench", self.folder / "spark.log", self.master, self.conf)
        if not is_on_this_machine(self.spark):
            ship_by_value(Path(bench.__file__).parent)
            require_executors(self.spark, ledger.address, {})
        spark_s = time.perf_counter() - began
        self.negotiator = Negotiator(self.spark, topology, ledger, settings, self._watch, ways=self.ways)
        self.negotiator.start()
        started = time.perf_counter()
        self._advance(self.work.fill if self.fill else 1)
        first = time.perf_counter()
        if self.commits:
            grow_old(self.negotiator, "counts", self.commits)
        aged = time.perf_counter()
        return {"spark_s": spark_s, "fill_s": first - started, "first_tick_s": first - began, "ageing_s": aged - first}

    def topology(self) -> hs.Topology:
        """What is run; its logs are there."""
        if self.work.is_json:
            hs.Log(self.folder / "log").create()
        return topology_of(self.work, self.folder)

    def burst(self, ticks: int) -> list[Tick]:
        return [tick for _ in range(ticks + 1) for tick in self._advance(self.work.rows)][1:]

    def figures(self) -> Mapping[str, float]:
        head = self.negotiator.ledger.head
        live = [run for runs in head.runs.values() for run in runs]
        jvm = self.spark._jvm
        assert jvm is not None
        jvm.System.gc()  # what is garbage is no growth
        heap = jvm.Runtime.getRuntime()
        heap_mb = (heap.totalMemory() - heap.freeMemory()) / 2**20
        python = python_memory_mb()
        return {
            "commits": head.commit,
            "live_runs": len(live),
            "live_bytes": sum(run.bytes for run in live),
            "jvm_heap_mb": heap_mb,
            "python_mb": python,
            "memory_mb": heap_mb + python,
        }

    def close(self) -> None:
        if hasattr(self, "negotiator"):
            self.negotiator.stop()
            self.spark.stop()

    def _advance(self, rows: int) -> list[Tick]:
        """So many rows more; as one tick, once pacing has seen ticks of that size."""
        start = self.negotiator.position().offset(SPOUT, 0) or 0
        if self.work.is_json:
            text = lines(self.work, start, start + rows)
            hs.Log(self.folder / "log").append_arrow(pa.table({"value": text.cast(pa.binary())}))
        target = Clock({SPOUT: {0: start + rows}})
        ticks = []
        while not self.negotiator.position().covers(target):
            keeper = self.negotiator._beside.housekeeper
            ended, began = keeper.ended, time.perf_counter()
            self.negotiator.tick(target)
            ms = (time.perf_counter() - began) * 1000
            parts = {**self.progress.timings, BESIDE: float(keeper.begun > ended)}
            ticks.append(Tick(ms, self.progress.rows, parts))
        return ticks

    def _watch(self, progress: Progress) -> None:
        self.progress = progress
