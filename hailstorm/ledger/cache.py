"""The cache: uncompressed Arrow copies of runs, memory-mapped, one folder a machine.

It holds only what the ledger holds, so it may be deleted at any time, also while a topology runs: what is missing
is copied again from the ledger. Tasks share it through the page cache; each worker process keeps its maps open.
What a copy looks like, and how a damaged one is noticed: `copies.py`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.columns import DELETED
from hailstorm.ledger.arrays import distinct, flags, highest, integers
from hailstorm.ledger.commit import Run
from hailstorm.ledger.copies import CheckedCopy, read_copy, write_copy, wrong_with_copy
from hailstorm.ledger.runs import Hashes, hashes_of, run_name
from hailstorm.ledger.stores import cache_folder, open_store, remove_older_copies
from hailstorm.ledger.stores.store import Store, read_table

FEW_MOMENTS = 256  # in a run, for them to be worth knowing
_BEFORE_ALL = -(1 << 63)
_KEEP_OPEN = 512
_SMALL = 1 << 20  # bytes
_TIDY_SECONDS = 60.0
_UNUSED_SECONDS = 300.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Moments:
    """The times of rows as numbers of the few different ones."""

    known: Hashes
    which: npt.NDArray[np.int32]

    @staticmethod
    def of(rows: pa.Table, column: str) -> Moments | None:
        """None when there are many, as those of sessions are; or when it is no column of times or integers."""
        type_ = rows.schema.field(column).type
        if not rows.num_rows or not (pa.types.is_timestamp(type_) or pa.types.is_int64(type_)):
            return None
        values = rows.column(column).cast(pa.int64())
        if len(values.slice(0, 4 * FEW_MOMENTS).unique()) > FEW_MOMENTS:
            return None
        return Moments._of(values.combine_chunks())

    @staticmethod
    def _of(values: pa.Array) -> Moments | None:
        if not values.null_count:
            times = integers(values)
            if times.min() == times.max():
                return Moments(times[:1], np.zeros(len(times), dtype=np.int32))
            borders = np.flatnonzero(times[1:] != times[:-1]) + 1
            if len(borders) <= FEW_MOMENTS:  # in the order of time, as rows often come
                begun = times[np.concatenate(([0], borders))]
                known = distinct(begun)
                lengths = np.diff(borders, prepend=0, append=len(times))
                return Moments(known, np.repeat(np.searchsorted(known, begun).astype(np.int32), lengths))
        encoded = values.dictionary_encode()
        if len(encoded.dictionary) > FEW_MOMENTS:
            return None
        codes = np.frombuffer(encoded.indices.buffers()[1], dtype=np.int32)[: len(values)]
        return Moments(integers(encoded.dictionary), codes)


@dataclass(frozen=True)
class OpenRun:
    """A run in memory: its rows, and its hashes as a numpy view on the same pages."""

    table: pa.Table
    hashes: Hashes
    first: int
    last: int
    _known: dict[object, Any] = field(default_factory=dict)  # what was asked of it, and does not change

    def moments(self, column: str) -> Moments | None:
        """The times in a column of times or of 64-bit integers; None when there are many different ones."""
        if ("moments", column) not in self._known:
            self._known["moments", column] = Moments.of(self.table, column)
        found: Moments | None = self._known["moments", column]
        return found

    def times(self, column: str) -> Hashes:
        """A column of times without nulls, in microseconds."""
        return integers(self.table.column(column).cast(pa.int64()).combine_chunks())

    def latest(self, column: str) -> int:
        """The latest time in a column of times. Nulls, which a user's own column may have, are no times."""
        if ("latest", column) not in self._known:
            found = highest(self.table.column(column)).cast(pa.int64()).as_py()
            self._known["latest", column] = _BEFORE_ALL if found is None else found
        return int(self._known["latest", column])

    @cached_property
    def deleted(self) -> npt.NDArray[np.bool_] | None:
        """Which rows are tombstones; None when none is."""
        found = flags(self.table.column(DELETED).combine_chunks())
        return found if found.any() else None

    @staticmethod
    def of(rows: pa.Table) -> OpenRun:
        """Rows that are sorted by hash, to be searched like a run. The bounds are those of the rows: an erasure may
        have taken the first or the last."""
        hashes = hashes_of(rows)
        if DELETED not in rows.column_names:
            rows = rows.append_column(DELETED, pa.repeat(False, rows.num_rows))
        first, last = (int(hashes[0]), int(hashes[-1])) if len(hashes) else (1, 0)
        return OpenRun(rows, hashes, first, last)


class RunCache:
    def __init__(self, store: Store, folder: Path, copies: str = "") -> None:
        """`copies` is what the ledger says of copies that can be believed (`Ledger.copies`)."""
        self.store, self.folder, self.copies = store, folder, copies
        self._name = f"{folder} {copies}".rstrip()
        self._trusted = ""  # the boot of which its copies are

    @cached_property
    def address(self) -> str:
        """Where it is, for other processes of this machine."""
        return str(self.folder.resolve())

    def path(self, step: str, run_id: str) -> Path:
        return self.folder / "runs" / step / f"{run_id}.arrow"

    def open(self, step: str, run: Run, checked: bool = False) -> OpenRun:
        """The run, for as long as it takes. `checked` is for those who make files of it, or who can wait: a copy is
        compared with its checksums, once in a process. Ticks do not, because it would cost them what the state is."""
        known = self._name, step, run.id
        path = self.path(step, run.id)
        if checked:
            self._check(known, path)
        with _opening:
            _used.add(known)
            if known in _open_runs:
                _open_runs.move_to_end(known)
                return _open_runs[known]
        table = self._mapped(path)
        if table is None:
            # Deleted, torn, or another machine's: the ledger's Parquet file is the truth.
            truth = read_table(self.store, run_name(step, run.id), sums=run.sums).combine_chunks()
            self.put(step, run.id, truth)
            table = self._mapped(path) or truth  # it may have been deleted again
        return self._kept(step, run, table)

    def _check(self, known: tuple[str, str, str], path: Path) -> None:
        """Delete a copy that is not what was written, and forget what this process has seen of it."""
        with _opening:
            if known in _checked:
                return
        if wrong_with_copy(path):
            path.unlink(missing_ok=True)
            with _opening:
                _open_runs.pop(known, None)
        with _opening:
            _checked.add(known)

    def damaged(self) -> Iterator[tuple[Path, str]]:
        """The copies that are not what was written, and what is wrong with each. Reads all of them."""
        if self._is_of_this_boot():  # others are believed by nobody
            for path in sorted((self.folder / "runs").glob("*/*.arrow")):
                if what := wrong_with_copy(path):
                    yield path, what

    def keep(self, step: str, run: Run, table: pa.Table) -> None:
        """Have a run open that this process has just written, on the memory that it is in. For small ones: it is this
        process's own, until the run is merged with others."""
        if table.nbytes <= _SMALL:
            self._kept(step, run, table)

    def _kept(self, step: str, run: Run, table: pa.Table) -> OpenRun:
        found = OpenRun.of(table)
        with _opening:
            _open_runs[self._name, step, run.id] = found
            if len(_open_runs) > _KEEP_OPEN:
                _open_runs.popitem(last=False)
        return found

    def copy_of(self, step: str, run: Run) -> CheckedCopy | None:
        """A copy of the run, if there is one that may be believed as far as it is checked. For readers: nothing is
        written or kept open."""
        if not self._is_of_this_boot():
            return None
        try:
            return CheckedCopy.at(self.path(step, run.id))
        except (OSError, ValueError):  # there is none, or it is torn
            return None

    def put(self, step: str, run_id: str, table: pa.Table) -> None:
        """Copy a run's rows into the cache. Not synced: a copy that a crash tears is made again."""
        # Deleted while it is written: whoever needs the copy makes it.
        with contextlib.suppress(FileNotFoundError):
            write_copy(table, self.path(step, run_id))

    def let_go(self, live: Mapping[str, Iterable[Run]]) -> bool:
        """Close what this process has open of runs that are not live: only we keep their files from going. Whether
        there was any."""
        wanted = {(self._name, step, run.id) for step, runs in live.items() for run in runs}
        with _opening:
            gone = [known for known in _open_runs if known[0] == self._name and known not in wanted]
            for known in gone:
                del _open_runs[known]
            for names in (_used, _checked):
                names.difference_update([known for known in names if known[0] == self._name and known not in wanted])
        return bool(gone)

    def remove_all_but(self, live: dict[str, set[str]]) -> None:
        """Delete copies of runs that are not live. A task that has one mapped keeps its pages."""
        for path in (self.folder / "runs").glob("*/*.arrow"):
            if path.stem not in live.get(path.parent.name, set()):
                path.unlink(missing_ok=True)

    def clear_after_reboot(self) -> None:
        """Start empty when the machine was restarted: copies are not synced, so a power cut may have torn them.

        Every machine does so, once in each process that opens the cache."""
        if not self._is_of_this_boot():
            shutil.rmtree(self.folder / "runs", ignore_errors=True)
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / "boot").write_text(_boot())

    def _is_of_this_boot(self) -> bool:
        # Without /proc nobody knows: then no copy is trusted. What was found to be so stays so.
        boot = _boot()
        if boot and boot != self._trusted:
            with contextlib.suppress(FileNotFoundError):
                self._trusted = (self.folder / "boot").read_text()
        return bool(boot) and boot == self._trusted

    def clear_scratch(self) -> None:
        """What a run that was killed left between its waves. Only the run that holds the ledger may do that."""
        shutil.rmtree(self.folder / "scratch", ignore_errors=True)

    def tidy(self, live: Mapping[str, Iterable[Run]], now: bool = False) -> None:
        """Now, or now and then: delete copies of runs that are not live. On machines where only tasks see the cache."""
        with _opening:
            if not now and time.monotonic() < _next_tidying.get(self._name, 0.0):
                return
            _next_tidying[self._name] = time.monotonic() + _TIDY_SECONDS
        self.remove_all_but({step: {run.id for run in runs} for step, runs in live.items()})

    def drop_unused(self) -> None:
        """Now and then: delete copies that no task of this machine has needed for minutes. Another machine owns their
        hashes by now, or a task was here once because its own machine was busy.

        Only a process that has been here for a while knows what is in use: it marks that, for all others."""
        with _opening:
            due = _next_dropping.get(self._name)
            if due is not None and time.monotonic() < due:
                return
            _next_dropping[self._name] = time.monotonic() + _TIDY_SECONDS
            used = {known for known in _used if known[0] == self._name}
            _used.difference_update(used)
        for _, step, run_id in used:
            with contextlib.suppress(FileNotFoundError):
                os.utime(self.path(step, run_id))
        if due is None:
            return
        for path in (self.folder / "runs").glob("*/*.arrow"):
            with contextlib.suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > _UNUSED_SECONDS:
                    path.unlink()

    def _mapped(self, path: Path) -> pa.Table | None:
        try:
            return read_copy(path)
        except (OSError, ValueError):
            return None


def _boot() -> str:
    try:
        return _BOOT_ID.read_text()
    except FileNotFoundError:
        return ""


@functools.cache
def cache_of_this_machine(address: str, copies: str) -> Path:
    """The cache folder of a ledger where no driver has prepared it. Safe to use after a power cut, or an erasure."""
    remove_older_copies(address, copies)
    folder = cache_folder(address, copies)
    RunCache(open_store(address), folder).clear_after_reboot()
    return folder


_next_tidying: dict[str, float] = {}  # by cache
_next_dropping: dict[str, float] = {}

# Maps that this process holds open. Workers live for many ticks; without this each tick would map all runs again.
_opening = threading.Lock()  # branches of one pass open runs side by side
_open_runs: OrderedDict[tuple[str, str, str], OpenRun] = OrderedDict()  # by cache, step and run
_used: set[tuple[str, str, str]] = set()  # since the last look for copies that are not
_checked: set[tuple[str, str, str]] = set()  # whose copies were compared with their checksums
