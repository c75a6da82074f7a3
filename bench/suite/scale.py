"""Scale: what a tick costs the driver itself when 10, 100, 1,000 or 10,000 tasks take part in it. docs/scale.md.

The real path with made-up reports: choosing among partitions, the order, the reports as tasks send them, the outcome,
the commit, what is live after it, a manifest, and reading that. Each task has a partition, and writes one run of state
and one file for a sink; eight layers of runs are live, as tiers keep them. The files are not there: the store knows
their sizes. What a store at the other end of a network would take is not in it.

CPU time of this process, so that others on the machine count for little. Nothing is required.
"""

from __future__ import annotations

import pickle
import shutil
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa

import hailstorm as hs
from bench.bench import Bench, Outcome, Say
from bench.peers.peer import scratch_folder
from hailstorm.clock.clock import Clock
from hailstorm.engine.advance import Outcome as Advanced
from hailstorm.engine.advance import Work, _Wave
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.stages.order import Report, Seen
from hailstorm.engine.ticks.committing import Committer
from hailstorm.engine.ticks.logs import Logs
from hailstorm.ledger.commit import DataFile, Run, Stamp, commit_name, encode
from hailstorm.ledger.compaction import compact
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.runs import run_name, write_run
from hailstorm.ledger.stores.local import LocalStore

TASKS = (10, 100, 1_000, 10_000)
LAYERS = 8
_ROWS = 1_000  # of a task, in a tick
_HASHES = 1 << 62


class Announced(LocalStore):
    """A folder in which every file of state and of outboxes is, as far as anybody asks."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.announced: dict[str, int] = {}
        self.asked = 0

    def size(self, name: str) -> int | None:
        self.asked += 1
        return self.announced.get(name)


@dataclass
class Stopwatch:
    """CPU seconds of this process, by part, tick by tick."""

    spent: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        self.spent[name].append(time.process_time() - began)

    def milliseconds(self) -> dict[str, float]:
        return {name: 1000 * statistics.median(seconds) for name, seconds in self.spent.items()}


def measure(quick: bool, say: Say) -> Outcome:
    notes: dict[str, float | int] = {}
    for tasks in TASKS[: 2 if quick else None]:
        say(f"{tasks:,} tasks")
        for name, value in simulated(tasks, 2 if quick or tasks > 1_000 else 7).items():
            notes[f"{tasks:,} tasks, {name}"] = value
    say("a merge")
    notes |= merge_cost(10_000 if quick else 250_000)
    return Outcome((), (), notes)


def simulated(tasks: int, ticks: int) -> dict[str, float]:
    """What the parts of a tick cost, in milliseconds, how large its files are, in bytes, and its requests for files."""
    folder = scratch_folder(f"scale{tasks}")
    topology = _topology(tasks)
    ledger = Ledger(folder, create=True)
    store = ledger.store = Announced(folder)
    layers = tuple(run for seq in range(1, LAYERS + 1) for run in _runs(tasks, Stamp(seq, 1)))
    ledger.head = Live(
        clock={"events": {str(p): 0 for p in range(tasks)}},
        runs={"counts": layers},
        fingerprints={"counts": "made up"},
        coverage={"counts": {"events": {}}},
    )
    committer = Committer(topology, ledger, LedgerOutbox(ledger))
    watch, sizes = Stopwatch(), {}
    for _ in range(ticks):
        head = ledger.head
        logs = Logs(topology, head)
        ends = Clock({"events": {p: head.clock["events"][str(p)] + _ROWS for p in range(tasks)}})
        with watch.part("choose"):
            choice = logs.choose(head.position(), ends, None, tasks * _ROWS)
        outcome = Advanced(choice.interval)
        work = Work(ledger, head, choice.interval, int(time.time() * 1e6))
        wave = _Wave(cast(Any, None), cast(Any, _Tasks(tasks)), work, outcome, dict(head.runs))
        with watch.part("order"):
            order = wave._order().encode()
        sent = [pickle.dumps([_report(task, tasks, ledger.stamp)]) for task in range(tasks)]
        with watch.part("reports"):
            reports = list({one.slot: one for text in sent for one in pickle.loads(text)}.values())
        with watch.part("outcome"):
            wave.take(reports)
        store.announced = {run_name("counts", run.id): run.bytes for run in outcome.state["counts"].added}
        store.announced |= {file.path: file.bytes for file in outcome.outbox["board"]}
        store.asked = 0
        with watch.part("commit"):
            commit = committer.tick(choice, outcome, (), datetime.now(UTC), 1.0)
        with watch.part("manifest"):
            manifest = encode(ledger.head)
        with watch.part("open a manifest"):
            msgspec.json.decode(manifest, type=Live)
        sizes = {
            "bytes of the order": len(order),
            "bytes of the reports": sum(map(len, sent)),
            "bytes of the commit": LocalStore(folder).size(commit_name(commit.commit)) or 0,
            "bytes of a manifest": len(manifest),
            "files that are looked for": store.asked,
        }
        ledger.head = msgspec.structs.replace(ledger.head, runs={"counts": layers})
    shutil.rmtree(folder)
    return {**{f"{name} ms": ms for name, ms in watch.milliseconds().items()}, **sizes}


def merge_cost(rows: int) -> dict[str, float]:
    """What a row costs that is merged with others: eight layers become one, read from the ledger and written to it."""
    folder = scratch_folder("merge")
    ledger, chance = Ledger(folder, create=True), np.random.default_rng(1)
    runs = []
    for seq in range(1, LAYERS + 1):
        hashes = np.unique(chance.integers(-_HASHES, _HASHES, rows))
        table = pa.table({"_hash": hashes, "k": hashes, "n": hashes & 255, "_deleted": np.zeros(len(hashes), bool)})
        runs.append(write_run(ledger.store, "counts", table, Stamp(seq, 1)))
    total, size = sum(run.rows for run in runs), sum(run.bytes for run in runs)
    began = time.process_time()
    assert compact(ledger.store, ledger.cache, "counts", ("k",), runs, Stamp(LAYERS + 1, 1)) is not None
    spent = time.process_time() - began
    shutil.rmtree(folder)
    return {"a merged row, µs": 1e6 * spent / total, "a merged row, bytes in the ledger": size / total}


@dataclass(frozen=True)
class _Tasks:
    """Of a plan, what an order needs to know."""

    tasks: int


def _topology(partitions: int) -> hs.Topology:
    storm = hs.Topology("scale")
    source = hs.Rate(1000, partitions=partitions, start="2024-01-01T00:00:00Z")
    events = storm.spout("events", source, schema="value BIGINT, at TIMESTAMP")
    events.fold("counts", by="value", n=hs.count())
    return storm


def _runs(tasks: int, stamp: Stamp) -> Iterator[Run]:
    return (_run(task, tasks, stamp) for task in range(tasks))


def _run(task: int, tasks: int, stamp: Stamp) -> Run:
    """As tasks write them that have a range of the hashes each."""
    first, last = (-_HASHES + 2 * _HASHES * place // tasks for place in (task, task + 1))
    size, sums = 30_000 + task, (task * 2_654_435_761 % 2**32, task * 40_503 % 2**32)
    return Run(id=stamp.new_name(), seq=stamp.commit, rows=_ROWS, bytes=size, first=first, last=last - 1, sums=sums)


def _report(task: int, tasks: int, stamp: Stamp) -> Report:
    run = _run(task, tasks, stamp)
    file = DataFile(path=f"outbox/board/{stamp.new_name()}.parquet", rows=_ROWS, bytes=20_000 + task, sums=run.sums)
    seen = {"events": {task: Seen(_ROWS, 60_000, 1_700_000_000_000_000 + task, 1_700_000_000_000_000.0)}}
    timings = {"read": 0.1, "compute": 0.2, "look up": 0.1, "merge": 0.1, "write": 0.1}
    return Report(f"counts#1/{task}", seen, {"counts": [run]}, {"board": [file]}, timings=timings)


BENCH = Bench("scale", "the driver's part of a tick with 10 to 10,000 tasks", measure)
