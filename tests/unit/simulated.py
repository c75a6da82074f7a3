"""A ledger in memory with a clock of its own: months of commits in seconds.

Ticks add a run each and outbox rows; every eighth one merges the runs. Files are named by commits and hold nothing.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hailstorm.ledger import ledger as module
from hailstorm.ledger.commit import DataFile, Run, StateChange, StepShape
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.ledger import MANIFEST_EVERY, Ledger, next_commit
from hailstorm.ledger.live import Live
from hailstorm.ledger.runs import run_name
from hailstorm.ledger.stores.store import StoredFile
from hailstorm.ledger.vacuum import Vacuum
from hailstorm.topology.retention import DEFAULT, Retention

SHAPE = StepShape(kind="fold", key=("k",), values=("n",), fingerprint="f")


class MemoryStore:
    """A store without a disk. Files are as old as the simulated clock says."""

    address = "memory"

    def __init__(self, now: Callable[[], float]) -> None:
        self.content: dict[str, tuple[bytes, float]] = {}
        self.folders: dict[str, dict[str, None]] = {}  # what is in each
        self._now = now
        self.reads = 0

    def put_if_absent(self, name: str, data: bytes, unsynced: Sequence[str] = ()) -> bool:
        if name in self.content:
            return False
        self.put(name, data)
        return True

    def put(self, name: str, data: bytes) -> None:
        self.content[name] = (data, self._now())
        folder, _, last = name.rpartition("/")
        self.folders.setdefault(folder, {})[last] = None
        if folder:
            outer, _, inner = folder.rpartition("/")
            self.folders.setdefault(outer, {})[inner] = None

    def identity(self, name: str) -> object:
        return self.content.get(name)

    def write(self, name: str, fill: Callable[[pa.NativeFile], object], synced: bool = True) -> int:
        sink = pa.BufferOutputStream()
        fill(sink)
        self.put(name, sink.getvalue().to_pybytes())
        return len(self.content[name][0])

    def get(self, name: str) -> bytes | None:
        self.reads += 1
        return self.content[name][0] if name in self.content else None

    def open(self, name: str, whole: bool = False) -> pa.NativeFile:
        data = self.get(name)
        if data is None:
            raise FileNotFoundError(name)
        return pa.BufferReader(data)

    def exists(self, name: str) -> bool:
        return name in self.content

    def list(self, folder: str) -> list[str]:
        return sorted(self.folders.get(folder, {}))

    def files(self, folder: str) -> Iterator[StoredFile]:
        start = f"{folder}/" if folder else ""
        for name, (data, modified) in list(self.content.items()):
            if name.startswith(start):
                yield StoredFile(name, len(data), modified)

    def delete(self, name: str) -> None:
        self.content.pop(name, None)
        folder, _, last = name.rpartition("/")
        self.folders.get(folder, {}).pop(last, None)

    def discard_unfinished(self, folder: str, before: float) -> int:
        return 0

    def delete_folder(self, folder: str) -> None:
        for name in fnmatch.filter(list(self.content), f"{folder}/*"):
            self.delete(name)

    def link(self, name: str, other: str, durable: bool = False) -> None:
        self.content.setdefault(other, self.content[name])


class Simulation:
    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, retention: Retention = DEFAULT, limit: int | None = None
    ) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
        self.store = MemoryStore(lambda: self.time)
        monkeypatch.setattr(module, "open_store", lambda root: self.store)
        self.ledger = Ledger(Path("simulated"), create=True)
        self.vacuum = Vacuum(self.ledger, retention, limit, now=lambda: self.time)
        self.lives: dict[int, Live] = {}  # what was live at every commit
        self.sinks = ("board",)
        self.commit(steps={"counts": SHAPE})

    def commit(self, **fields: Any) -> None:
        head = self.ledger.head
        now = datetime.fromtimestamp(self.time, UTC)
        self.ledger.commit(next_commit(head, "tick", self.ledger.epoch, now, **fields))
        self.lives[self.ledger.head.commit] = self.ledger.head
        if self.ledger.head.commit % MANIFEST_EVERY == 0:
            self.ledger.write_manifest(self.ledger.head)

    def tick(self, seconds: float, delivered: bool = True, **fields: Any) -> None:
        """One tick, after so many seconds."""
        self.time += seconds
        head, stamp = self.ledger.head, self.ledger.stamp
        runs = head.runs.get("counts", ())
        merged = tuple(run.id for run in runs) if len(runs) >= 8 else ()
        run = Run(id=stamp.new_name(), seq=stamp.commit, rows=1, bytes=1, first=0, last=1)
        self.store.put(run_name("counts", run.id), b"run")
        outbox = {}
        for sink in self.sinks:
            path = f"outbox/{sink}/{stamp.new_name()}.parquet"
            self.store.put(path, b"outbox")
            outbox[sink] = (DataFile(path=path, rows=1, bytes=1),)
        end = {"t": {"0": head.clock.get("t", {}).get("0", 0) + 10}}
        change = StateChange(added=(run,), removed=merged)
        self.commit(**{"state": {"counts": change}, "outbox": outbox, "end": end, "rows": 10, **fields})
        if delivered:
            for sink in self.sinks:
                self.deliver(sink)

    def deliver(self, sink: str, until: int | None = None) -> None:
        commit = self.ledger.head.commit if until is None else until
        self.ledger.cursors.store(sink, SinkRecord(commit=commit))

    def clean(self, whole: bool = False) -> None:
        while self.vacuum.work(whole):
            pass

    def missing(self) -> list[str]:
        """Files that kept commits need and that are not there."""
        found, checked = [], set()
        live = Live()
        for commit in self.ledger.commits():
            live = live.after(commit)
            assert live == self.lives[commit.commit], commit.commit
            needed = {run_name("counts", run.id) for run in live.runs.get("counts", ())} - checked
            checked |= needed
            waiting = (sink for sink in commit.outbox if self.ledger.cursors.load(sink).commit < commit.commit)
            needed |= {file.path for sink in waiting for file in commit.outbox[sink]}
            found += [name for name in needed if not self.store.exists(name)]
        assert live.commit == self.ledger.head.commit
        return found

    def count(self, folder: str) -> int:
        return sum(name.startswith(f"{folder}/") for name in self.store.content)
