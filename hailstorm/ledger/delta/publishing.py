"""Publishing: the state of a step as a Delta table, `delta/<step>`, that any Delta reader understands.

Nothing is copied: the table's data files are the runs themselves, under a second name. A row that a newer run has
replaced is in the deletion vector of its file, and a version of the table is one commit of the ledger. So publishing
costs about as much as looking up the keys that changed, and a reader sees a whole commit. All of it can be made from
the ledger again: a table that is missing, or not as we left it, is made again from the start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import msgspec
import pyarrow as pa
from pyroaring import BitMap64

from hailstorm.faults import fault
from hailstorm.ledger.commit import Run, StepShape
from hailstorm.ledger.delta.deletion_vectors import read_vector, write_vectors
from hailstorm.ledger.delta.log import (
    LOG,
    Add,
    Version,
    add_of,
    before_checkpoint,
    changes,
    is_there,
    metadata_of,
    protocol_of,
    read_version,
    write_checkpoint,
    write_last_checkpoint,
    write_version,
)
from hailstorm.ledger.delta.runs_as_files import RunsAsFiles, overlap, run_of
from hailstorm.ledger.delta.types import delta_schema
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live

CHECKPOINT_EVERY = 20  # versions
KEEP_SECONDS = 600.0  # how long files stay that only older versions need: somebody may be reading one


class Publisher:
    """The published tables of one ledger. One thread at a time."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tables: dict[str, _Table] = {}

    def publish(self, live: Live) -> None:
        """Let every table show this commit."""
        for step, shape in live.steps.items():
            if step not in self._tables:
                self._tables[step] = _Table(self._ledger, step, live.commit)
            self._tables[step].show(live.commit, shape, live.runs.get(step, ()), live.rewound)


class _Table:
    """One step's table: its newest version, and for each run the rows that are out of date there."""

    def __init__(self, ledger: Ledger, step: str, commit: int) -> None:
        self._store, self._folder = ledger.store, f"delta/{step}"
        self._runs = RunsAsFiles(ledger.cache, ledger.store, step, self._folder)
        self._shown: object = None
        self._version: Version | None = None
        self._outdated: dict[str, BitMap64] = {}  # by run
        self._retired: dict[str, float] = {}  # files that the newest version does not need, and since when
        self._open()
        if self._version is not None and self._version.commit > commit:
            self._begin_anew()  # the ledger was brought back from a backup

    def show(self, commit: int, shape: StepShape, runs: tuple[Run, ...], rewound: int = 0) -> None:
        """Write the version that shows these runs, unless the newest one does. `rewound` is the last rewind."""
        if self._version is not None and not is_there(self._store, self._folder, self._version.number):
            self._open()  # somebody has deleted the folder, or has begun again
        old, now = self._version, time.time_ns() // 1_000_000
        if (shape, runs) == self._shown or (not runs and old is None) or (old is not None and commit <= old.commit):
            return
        self._shown = shape, runs
        if runs:
            columns = self._runs.columns(shape, runs[-1])
            schema = None if columns is None else delta_schema(columns)
            if columns is None or schema is None:
                return
            protocol = protocol_of(columns)
            metadata = metadata_of(schema, None if old is None else old.metadata, now)
            same = None if old is None or old.metadata != metadata else old
            files = self._files(shape, runs, columns, same, now, old is not None and old.commit < rewound)
        else:
            assert old is not None
            protocol, metadata, files = old.protocol, old.metadata, {}
            self._outdated = {}
        version = Version(0 if old is None else old.number + 1, commit, protocol, metadata, files)
        fault("during-publishing")
        if not write_version(self._store, self._folder, version.number, changes(old, version, now)):
            self._open()  # somebody else writes here: the next publication goes on from that
            return
        self._version = version
        self._keep_house(old, version, now)

    # The files of a version

    def _files(
        self, shape: StepShape, runs: Sequence[Run], columns: pa.Schema, old: Version | None, now: int, rewound: bool
    ) -> dict[str, Add]:
        """A file for each run, by path. `old` is the version before, when it has the same columns. After a rewind, rows
        are right again that were out of date: those that runs had replaced which are gone now."""
        known = {} if old is None else {run_of(path): add for path, add in old.files.items()}
        before = {} if rewound else self._outdated
        outdated = {run.id: self._outdated_rows(run, shape, runs, before.get(run.id)) for run in runs}
        changed = [run for run in runs if run.id not in known or outdated[run.id] != self._outdated[run.id]]
        vectors = write_vectors(self._store, self._folder, {run.id: outdated[run.id] for run in changed})
        for run in changed:
            there = known.get(run.id)
            path, size = self._runs.placed(run, columns) if there is None else (there.path, there.size)
            known[run.id] = add_of(path, size, self._runs.count(run), vectors.get(run.id), now)
        self._outdated = outdated
        return {known[run.id].path: known[run.id] for run in runs}

    def _outdated_rows(self, run: Run, shape: StepShape, runs: Sequence[Run], known: BitMap64 | None) -> BitMap64:
        """Rows that were out of date before, and those that newer runs have replaced since.

        The rows of a merged run whose `seq` was published did their work when they were in smaller runs.
        """
        since = run.seq if known is None or self._version is None else max(run.seq, self._version.commit)
        newer = [one for one in runs if one.seq > since and overlap(one, run)]
        if known is not None and not newer:
            return known
        return self._runs.outdated_rows(run, shape, newer, known)

    # The folder

    def _open(self) -> None:
        """Go on from what is there; what cannot be understood is made again from the start."""
        self._shown = None
        try:
            self._version = read_version(self._store, self._folder)
            files = {} if self._version is None else self._version.files
            self._outdated = {run_of(path): self._read_vector(add) for path, add in files.items()}
        except (OSError, ValueError, KeyError, msgspec.MsgspecError):
            self._begin_anew()
        needed = set() if self._version is None else self._version.needed
        self._retire(f"{self._folder}/{name}" for name in self._store.list(self._folder) if name not in needed | {LOG})

    def _begin_anew(self) -> None:
        self._store.delete_folder(self._folder)
        self._version, self._shown, self._outdated, self._retired = None, None, {}, {}

    def _read_vector(self, add: Add) -> BitMap64:
        vector = add.deletion_vector
        return BitMap64() if vector is None else read_vector(self._store, self._folder, vector)

    def _keep_house(self, old: Version | None, new: Version, now: int) -> None:
        """A checkpoint now and then; and files that only old versions need go after a while."""
        if new.number and new.number % CHECKPOINT_EVERY == 0:
            size = write_checkpoint(self._store, self._folder, new, now)
            write_last_checkpoint(self._store, self._folder, new.number, size)
            self._retire(before_checkpoint(self._store, self._folder, new.number))
        if old is not None:
            self._retire(f"{self._folder}/{name}" for name in old.needed - new.needed)
        for name in new.needed:  # a publication that was killed may have left what this one needs
            self._retired.pop(f"{self._folder}/{name}", None)
        late = time.monotonic() - KEEP_SECONDS
        for name in [name for name, since in self._retired.items() if since <= late]:
            self._store.delete(name)
            del self._retired[name]

    def _retire(self, names: Iterable[str]) -> None:
        for name in names:
            self._retired.setdefault(name, time.monotonic())
