"""The cache: uncompressed Arrow copies of runs, memory-mapped, one folder a machine.

It holds only what the ledger holds, so it may be deleted at any time, also while a topology runs: what is missing
is copied again from the ledger. Tasks share it through the page cache; each worker process keeps its maps open.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.ledger.commit import Run
from hailstorm.ledger.runs import Hashes, hashes_of, run_name
from hailstorm.ledger.store import LocalStore

_KEEP_OPEN = 512
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class OpenRun:
    """A run in memory: its rows, and its hashes as a numpy view on the same pages."""

    table: pa.Table
    hashes: Hashes
    first: int
    last: int


class RunCache:
    def __init__(self, store: LocalStore, folder: Path) -> None:
        self.store, self.folder = store, folder

    def path(self, step: str, run_id: str) -> Path:
        return self.folder / "runs" / step / f"{run_id}.arrow"

    def open(self, step: str, run: Run) -> OpenRun:
        path = self.path(step, run.id)
        with _opening:
            if path in _open_runs:
                _open_runs.move_to_end(path)
                return _open_runs[path]
        table = self._mapped(path)
        if table is None:
            # Deleted, torn, or another machine's: the ledger's Parquet file is the truth.
            truth = pq.read_table(self.store.path(run_name(step, run.id))).combine_chunks()
            self.put(step, run.id, truth)
            table = self._mapped(path) or truth  # it may have been deleted again
        found = OpenRun(table, hashes_of(table), run.first, run.last)
        with _opening:
            _open_runs[path] = found
            if len(_open_runs) > _KEEP_OPEN:
                _open_runs.popitem(last=False)
        return found

    def put(self, step: str, run_id: str, table: pa.Table) -> None:
        """Copy a run's rows into the cache. Not synced: a copy that a crash tears is made again."""
        # Deleted while it is written: whoever needs the copy makes it.
        with contextlib.suppress(FileNotFoundError):
            write_arrow(table, self.path(step, run_id))

    def remove_all_but(self, live: dict[str, set[str]]) -> None:
        """Delete copies of runs that are not live. A task that has one mapped keeps its pages."""
        for path in (self.folder / "runs").glob("*/*.arrow"):
            if path.stem not in live.get(path.parent.name, set()):
                path.unlink(missing_ok=True)

    def clear_after_reboot(self) -> None:
        """Start empty when the machine was restarted: copies are not synced, so a power cut may have torn them."""
        boot = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
        mark = self.folder / "boot"
        if not mark.exists() or mark.read_text() != boot:
            shutil.rmtree(self.folder / "runs", ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            mark.write_text(boot)
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)

    def _mapped(self, path: Path) -> pa.Table | None:
        try:
            return read_arrow(path)
        except (OSError, pa.ArrowInvalid):
            return None


def write_arrow(table: pa.Table, path: Path) -> None:
    """One Arrow file with one batch, so that a reader gets each column as one piece of mapped memory."""
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        sink = pa.OSFile(str(temporary), "wb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = pa.OSFile(str(temporary), "wb")
    with sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    temporary.rename(path)


def read_arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


# Maps that this process holds open. Workers live for many ticks; without this each tick would map all runs again.
_opening = threading.Lock()  # branches of one pass open runs side by side
_open_runs: OrderedDict[Path, OpenRun] = OrderedDict()
