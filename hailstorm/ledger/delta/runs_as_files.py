"""Runs as the data files of a Delta table: where they are put, and which of their rows are no part of it.

`publishing.py` makes the table of the newest commit out of these, and `moments.py` those of earlier ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from hailstorm.columns import DELETED
from hailstorm.ledger.cache import OpenRun, RunCache
from hailstorm.ledger.commit import STAMPED_LENGTH, Run, StepShape
from hailstorm.ledger.lookup import replaced_rows
from hailstorm.ledger.runs import run_name, write_parquet
from hailstorm.ledger.stores.store import Store


@dataclass(frozen=True)
class RunsAsFiles:
    """The runs of a step, which is called so at their commit, as files of the table in a folder."""

    cache: RunCache
    store: Store
    step: str
    folder: str

    def columns(self, shape: StepShape, newest: Run) -> pa.Schema | None:
        """None while a value was added to the fold and no run has it yet: nobody knows its type here."""
        schema = self._opened(newest).table.schema
        names = [*shape.key, *shape.values]
        return pa.schema([schema.field(name) for name in names]) if set(names) <= set(schema.names) else None

    def outdated_rows(
        self, run: Run, shape: StepShape, newer: Iterable[Run], known: BitMap64 | None = None
    ) -> BitMap64:
        """The rows of a run that are not shown, and those whose keys these newer runs hold. `known` were so before."""
        here = self._opened(run)
        found = BitMap64(_hidden_rows(here.table, shape)) if known is None else known.copy()
        for one in newer:
            found |= BitMap64(replaced_rows(here, self._opened(one), shape.key))
        return found

    def count(self, run: Run) -> int:
        """The rows of a run: fewer than it had, when some were erased since."""
        return int(self._opened(run).table.num_rows)

    def placed(self, run: Run, columns: pa.Schema, already: Collection[str] = ()) -> tuple[str, int]:
        """Put the run into the folder of the table, unless it is `already` there. Its name there, and its size."""
        table = self._opened(run).table
        name, source = f"{run.id}.parquet", run_name(self.step, run.id)
        there = pa.schema([field for field in columns if field.name in table.schema.names])
        if there.types == [table.schema.field(name).type for name in there.names]:
            if name not in already:
                self.store.link(source, f"{self.folder}/{name}")
            return name, self.store.size(source) or run.bytes
        # The fold has a wider type since: the same rows once more, as that. Every such copy has a name of its own.
        name = f"{run.id}-{uuid.uuid4().hex[:8]}.parquet"
        rows = table.select(there.names).cast(there)
        return name, self.store.write(f"{self.folder}/{name}", lambda sink: write_parquet(rows, sink))

    def _opened(self, run: Run) -> OpenRun:
        """Published tables last, so they are not made of a copy that is damaged."""
        return self.cache.open(self.step, run, checked=True)


def run_of(path: str) -> str:
    """The run that a data file is."""
    return path[:STAMPED_LENGTH]


def overlap(one: Run, other: Run) -> bool:
    """Whether both may hold a key."""
    return one.first <= other.last and other.first <= one.last


def _hidden_rows(table: pa.Table, shape: StepShape) -> npt.NDArray[np.int64]:
    """Rows that are no part of what is shown: tombstones, and those that wait."""
    hidden = table.column(DELETED)
    if shape.waits:
        hidden = pc.or_(hidden, pc.is_null(table.column(shape.waits)))
    return np.flatnonzero(hidden.to_numpy())
