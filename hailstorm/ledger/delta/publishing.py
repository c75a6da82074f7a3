"""Publishing: the state of a step as a Delta table, `delta/<step>`, that any Delta reader understands.

Nothing is copied: the table's data files are the runs themselves, under a second name. A row that a newer run has
replaced is in the deletion vector of its file, and a version of the table is one commit of the ledger. So publishing
costs about as much as looking up the keys that changed, and a reader sees a whole commit. All of it can be made from
the ledger again: a table that is missing, or not as we left it, is made again from the start.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from hailstorm.columns import DELETED
from hailstorm.faults import fault
from hailstorm.ledger.cache import OpenRun
from hailstorm.ledger.commit import STAMPED_LENGTH, Run, StepShape
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
    write_version,
)
from hailstorm.ledger.delta.types import delta_features, delta_schema
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.live import Live
from hailstorm.ledger.lookup import replaced_rows
from hailstorm.ledger.runs import run_name, write_parquet

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
        self._cache, self._store, self._step = ledger.cache, ledger.store, step
        self._folder = f"delta/{step}"
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
            columns = self._columns(shape, runs[-1])
            schema = None if columns is None else delta_schema(columns)
            if columns is None or schema is None:
                return
            protocol = protocol_of(["deletionVectors", *delta_features(columns)])
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

    def _columns(self, shape: StepShape, newest: Run) -> pa.Schema | None:
        """None while a value was added to the fold and no run has it yet: nobody knows its type here."""
        schema = self._opened(newest).table.schema
        names = [*shape.key, *shape.values]
        return pa.schema([schema.field(name) for name in names]) if set(names) <= set(schema.names) else None

    def _files(
        self, shape: StepShape, runs: Sequence[Run], columns: pa.Schema, old: Version | None, now: int, rewound: bool
    ) -> dict[str, Add]:
        """A file for each run, by path. `old` is the version before, when it has the same columns. After a rewind, rows
        are right again that were out of date: those that runs had replaced which are gone now."""
        known = {} if old is None else {_run_of(path): add for path, add in old.files.items()}
        before = {} if rewound else self._outdated
        outdated = {run.id: self._outdated_rows(run, shape, runs, before.get(run.id)) for run in runs}
        changed = [run for run in runs if run.id not in known or outdated[run.id] != self._outdated[run.id]]
        vectors = write_vectors(self._store, self._folder, {run.id: outdated[run.id] for run in changed})
        for run in changed:
            there = known.get(run.id)
            path, size = self._placed(run, columns) if there is None else (there.path, there.size)
            known[run.id] = add_of(path, size, self._count(run), vectors.get(run.id), now)
        self._outdated = outdated
        return {known[run.id].path: known[run.id] for run in runs}

    def _outdated_rows(self, run: Run, shape: StepShape, runs: Sequence[Run], known: BitMap64 | None) -> BitMap64:
        """Rows that were out of date before, and those that newer runs have replaced since.

        The rows of a merged run whose `seq` was published did their work when they were in smaller runs.
        """
        since = run.seq if known is None or self._version is None else max(run.seq, self._version.commit)
        newer = [one for one in runs if one.seq > since and one.first <= run.last and run.first <= one.last]
        if known is not None and not newer:
            return known
        here = self._opened(run)
        found = BitMap64(_hidden_rows(here.table, shape)) if known is None else known.copy()
        for one in newer:
            found |= BitMap64(replaced_rows(here, self._opened(one), shape.key))
        return found

    def _opened(self, run: Run) -> OpenRun:
        """Published tables last, so they are not made of a copy that is damaged."""
        return self._cache.open(self._step, run, checked=True)

    def _count(self, run: Run) -> int:
        """The rows of a run: fewer than it had, when some were erased since."""
        return int(self._opened(run).table.num_rows)

    def _placed(self, run: Run, columns: pa.Schema) -> tuple[str, int]:
        """Put the run into the folder of the table. Its name there, and its size."""
        table = self._opened(run).table
        name, source = f"{run.id}.parquet", run_name(self._step, run.id)
        there = pa.schema([field for field in columns if field.name in table.schema.names])
        if there.types == [table.schema.field(name).type for name in there.names]:
            self._store.link(source, f"{self._folder}/{name}")
            return name, self._store.size(source) or run.bytes
        # The fold has a wider type since: the same rows once more, as that. Every such copy has a name of its own.
        name = f"{run.id}-{uuid.uuid4().hex[:8]}.parquet"
        rows = table.select(there.names).cast(there)
        return name, self._store.write(f"{self._folder}/{name}", lambda sink: write_parquet(rows, sink))

    # The folder

    def _open(self) -> None:
        """Go on from what is there; what cannot be understood is made again from the start."""
        self._shown = None
        try:
            self._version = read_version(self._store, self._folder)
            files = {} if self._version is None else self._version.files
            self._outdated = {_run_of(path): self._read_vector(add) for path, add in files.items()}
        except (OSError, ValueError, KeyError, msgspec.MsgspecError):
            self._begin_anew()
        needed = set() if self._version is None else _needed(self._version)
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
            write_checkpoint(self._store, self._folder, new, now)
            self._retire(before_checkpoint(self._store, self._folder, new.number))
        if old is not None:
            self._retire(f"{self._folder}/{name}" for name in _needed(old) - _needed(new))
        for name in _needed(new):  # a publication that was killed may have left what this one needs
            self._retired.pop(f"{self._folder}/{name}", None)
        late = time.monotonic() - KEEP_SECONDS
        for name in [name for name, since in self._retired.items() if since <= late]:
            self._store.delete(name)
            del self._retired[name]

    def _retire(self, names: Iterable[str]) -> None:
        for name in names:
            self._retired.setdefault(name, time.monotonic())


def _needed(version: Version) -> set[str]:
    """The files beside the log that a version is made of."""
    vectors = [add.deletion_vector.file for add in version.files.values() if add.deletion_vector is not None]
    return {*version.files, *vectors}


def _run_of(path: str) -> str:
    return path[:STAMPED_LENGTH]


def _hidden_rows(table: pa.Table, shape: StepShape) -> npt.NDArray[np.int64]:
    """Rows that are no part of what is shown: tombstones, and those that wait."""
    hidden = table.column(DELETED)
    if shape.waits:
        hidden = pc.or_(hidden, pc.is_null(table.column(shape.waits)))
    return np.flatnonzero(hidden.to_numpy())
