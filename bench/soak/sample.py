"""One sample of a running topology: what its processes and its ledger use at this moment. Reads only.

Memory is anonymous memory. Pages of mapped files belong to the page cache, which the system takes back whenever it
wants; but a deleted file that somebody has mapped needs its disk as long as that, so those are counted, too.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from bench.peers.memory import family, status_of
from hailstorm.ledger.commit import Commit, commit_name, decode
from hailstorm.ledger.packs import Listing, list_commits
from hailstorm.ledger.stores import open_store

_LATEST = 20  # commits whose time is looked at


@dataclass(frozen=True)
class Sample:
    """A row of the CSV. `commits` are those that are kept; `deleted_mb` is what only a process holds."""

    seconds: float
    commit: int
    tick_ms: float
    driver_mb: float
    workers_mb: float
    jvm_mb: float
    deleted_mb: float
    disk_mb: float
    files: int
    commits: int

    @property
    def python_mb(self) -> float:
        return self.driver_mb + self.workers_mb


def take_sample(seconds: float, process: int, ledger: Path) -> Sample | None:
    """None while the ledger has no commit."""
    store = open_store(ledger)
    listing = list_commits(store)
    if not listing.loose:
        return None
    latest = [store.get(commit_name(number)) for number in listing.loose[-_LATEST:]]
    ticks = [decode(data, Commit, "commit") for data in latest if data is not None]
    memory = _memory(process)
    disk, files = _disk(ledger)
    return Sample(
        seconds=round(seconds, 1),
        commit=listing.loose[-1],
        tick_ms=statistics.median([tick.ms for tick in ticks if tick.reason == "tick"] or [0.0]),
        driver_mb=memory["driver"],
        workers_mb=memory["workers"],
        jvm_mb=memory["jvm"],
        deleted_mb=sum(_deleted(pid) for pid in family(process)),
        disk_mb=disk,
        files=files,
        commits=len(listing.loose) + _packed(ledger, listing),
    )


def _memory(process: int) -> Mapping[str, float]:
    found = {"driver": 0.0, "workers": 0.0, "jvm": 0.0}
    for pid in family(process):
        status = status_of(pid)
        what = "driver" if pid == process else "jvm" if status.get("Name") == "java" else "workers"
        found[what] += int(status.get("RssAnon", "0 kB").split()[0]) / 1024
    return found


def _deleted(pid: int) -> float:
    """Megabytes of deleted files that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # it has ended meanwhile
        return 0.0
    ranges = (line.split()[0].split("-") for line in lines if line.endswith("(deleted)") and "/ledger/" in line)
    return sum(int(end, 16) - int(start, 16) for start, end in ranges) / 2**20


def _disk(folder: Path) -> tuple[float, int]:
    """Megabytes on the disk, and the number of files. A file with several names is there once."""
    sizes: dict[int, int] = {}
    for about in _stats(folder):
        sizes[about.st_ino] = about.st_blocks * 512
    return sum(sizes.values()) / 2**20, len(sizes)


def _stats(folder: Path) -> Iterator[os.stat_result]:
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.stat(Path(where) / name)
            except FileNotFoundError:
                continue


def _packed(ledger: Path, listing: Listing) -> int:
    """How many commits are in packs. One that is replaced meanwhile is left out."""
    count = 0
    for pack in listing.packs:
        try:
            count += pq.read_metadata(ledger / pack.name).num_rows
        except FileNotFoundError:
            continue
    return count
