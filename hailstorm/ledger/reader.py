"""The read side: what anybody may ask of a ledger, at any time, without Spark and without the app.

    ledger = hs.open_ledger(".hailstorm/trending")
    ledger.state("counts").arrow()          # now
    ledger.state("counts", at=42).pandas()  # as it was at commit 42

Reads never see half a commit: a commit names its files, and files never change.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from hailstorm.columns import DELETED, HASH, WINDOW_END
from hailstorm.errors import LedgerError, suggestion
from hailstorm.ledger import parts
from hailstorm.ledger.arrays import among, distinct, taken, there, where
from hailstorm.ledger.commit import Commit, Run, StepShape
from hailstorm.ledger.cursors import SinkRecord
from hailstorm.ledger.hashing import can_hash, hash_columns
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.letters import LETTER
from hailstorm.ledger.live import Live
from hailstorm.ledger.renaming import called_at
from hailstorm.ledger.runs import Hashes, merge_runs, run_name
from hailstorm.ledger.stores.store import read_table

SHOWN = 20  # rows of a state in a notebook

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation
    from pandas import DataFrame as PandasFrame
    from polars import DataFrame as PolarsFrame
    from pyspark.sql import DataFrame, SparkSession

_PIECE = 500_000  # rows


def open_ledger(path: str | Path) -> LedgerReader:
    """Open a ledger for reading. It may be in use by a run."""
    return LedgerReader(Ledger(path))


class LedgerReader:
    """A ledger, for reading: what `open_ledger` gives."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def address(self) -> str:
        """Where it is: a folder, or `s3://bucket/path`."""
        return self._ledger.address

    @property
    def cache_folder(self) -> Path:
        """What this machine keeps of the ledger; may be deleted at any time."""
        return self._ledger.cache.folder

    def live(self, at: int | None = None) -> Live:
        """What is live now, or was at a commit."""
        return self._ledger.newest() if at is None else self._ledger.at(at)

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """The commits that are kept, in order, oldest first."""
        return self._ledger.commits(after)

    def state(self, step: str, at: int | None = None, *, open: bool = False) -> State:
        """A step's state at the newest commit, or at an earlier one. `open`: of windows, those that can still grow."""
        return state_of(self._ledger, self.live(at), step, open)

    def errors(self) -> pa.Table:
        """Dead letters that were not retried, oldest first, and then the rows that sinks rejected."""
        live = self.live()
        tables = [read_table(self._ledger.store, file.path, LETTER.names, file.sums) for file in live.dead_letters]
        rejected = self._ledger.rejected(live)
        return pa.concat_tables([LETTER.empty_table(), *(table.cast(LETTER) for table in tables), *rejected])

    def rejected(self) -> int:
        """How many rows sinks have rejected; they are among `errors`, and no commit counts them."""
        return sum(table.num_rows for table in self._ledger.rejected())

    def _repr_html_(self) -> str:
        from hailstorm.topology.picture import html_table

        live, head = self.live(), self._ledger.head
        rows = [(name, shape.kind, ", ".join(shape.key), ", ".join(shape.values)) for name, shape in live.steps.items()]
        caption = f"ledger {self._ledger.address}: commit {head.commit} of {head.at}"
        return html_table(("step", "kind", "key", "values"), rows, caption)

    def cursor(self, sink: str) -> SinkRecord:
        """How far a sink has got, and the error that it waits for to pass, as the ledger was told last."""
        return self._ledger.cursors.load(sink)


class Rows(Protocol):
    """Rows in whatever form somebody wants them."""

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""

    def pandas(self) -> PandasFrame:
        """The rows as a pandas DataFrame."""
        return self.arrow().to_pandas()

    def polars(self) -> PolarsFrame:
        """The rows as a polars DataFrame; needs polars."""
        return _library("polars").from_arrow(self.arrow())

    def duckdb(self) -> DuckDBPyRelation:
        """The rows as a relation of DuckDB; needs duckdb."""
        relation: DuckDBPyRelation = _library("duckdb").from_arrow(self.arrow())
        return relation

    def spark(self, session: SparkSession) -> DataFrame:
        """The rows as a DataFrame of Spark."""
        return session.createDataFrame(self.arrow())


@dataclass(frozen=True)
class State(Rows):
    """A step's state at one commit: key columns and presented values, one row a key."""

    ledger: Ledger
    live: Live
    step: str
    open: bool = False  # only windows that the watermark has not ended
    shape: StepShape | None = None  # None: as the step was at the commit

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        shown, order = self._with_panes(self._shown(self.rows())), self._shape.order
        return shown.sort_by([(name, "ascending") for name in order]) if order and shown.num_rows else shown

    def rows(self) -> pa.Table | None:
        """Every column of the newest row per key, hidden ones included; None when nothing was ever written."""
        return self._merged(lambda run: read_table(self.ledger.store, run_name(self.step, run.id), sums=run.sums))

    def key_types(self) -> dict[str, pa.DataType]:
        """The key columns and their types; empty when nothing was ever written."""
        runs = self.live.runs.get(self.step, ())
        columns = parts.columns_of(self.ledger.cache, self.step, runs[-1]) if runs else pa.schema([])
        return {name: columns.field(name).type for name in self._key if name in columns.names}

    def of_keys(self, wanted: Mapping[str, pa.Array]) -> pa.Table:
        """The rows of which each of these key columns has one of its values.

        When all key columns are named, only the parts of runs are read that may hold such a key.
        """
        hashes = self.hashes_of_keys(wanted)
        if hashes is None:
            pieces = [with_values(piece, wanted) for piece in self.pieces()]
            return pa.concat_tables(pieces) if pieces else self._shown(None)
        return with_values(self._shown(self._of_hashes(hashes)), wanted)

    def hashes_of_keys(self, wanted: Mapping[str, pa.Array]) -> Hashes | None:
        """The hashes of the keys that are made of these values, sorted; None unless all columns are named."""
        hashed = self._key if self._shape.hashed is None else self._shape.hashed
        if not set(hashed) <= set(wanted) or not all(can_hash(wanted[name].type) for name in hashed):
            return None
        counts = [len(wanted[name]) for name in hashed]
        places = np.indices(counts)
        columns = [taken(wanted[name], at.ravel()) for name, at in zip(hashed, places, strict=True)]
        return distinct(hash_columns(columns, math.prod(counts)))

    def of_hashes(self, hashes: Hashes, known: dict[str, pa.Table] | None = None) -> pa.Table | None:
        """The rows that people see whose key has one of these (sorted, distinct) hashes, with that column.

        `known` is what runs, by their ids, hold of these hashes: two moments share most of theirs.
        """
        rows = self._of_hashes(hashes, known)
        return None if rows is None else self._visible(rows)

    def pieces(self) -> Iterator[pa.Table]:
        """All of `arrow`, in no order, some hundred thousand rows at a time: for states that memory does not hold."""
        total = sum(run.rows for run in self.live.runs.get(self.step, ()))
        count = max(1, -(-total // _PIECE))
        cuts = [-(2**63) + (2**64 * place) // count for place in range(count + 1)]
        for first, after in itertools.pairwise(cuts):
            rows = self._of_range(first, after - 1)
            if rows is not None:
                yield self._shown(rows)

    def hashed(self, first: int, last: int) -> pa.Table | None:
        """The rows of `arrow` whose `_hash` is in [first, last], with that column and sorted by it."""
        rows = self._of_range(first, last)
        return None if rows is None else self._shown(rows, HASH)

    def _repr_html_(self) -> str:
        rows = self.arrow()
        return html_of(rows, f"{self.step} at commit {self.live.commit}: {rows.num_rows:,} rows")

    @property
    def _key(self) -> tuple[str, ...]:
        return self._shape.key

    @property
    def _shape(self) -> StepShape:
        return self.shape or self.live.steps[self.step]

    def _merged(self, read: Callable[[Run], pa.Table], first: int = -(2**63), last: int = 2**63 - 1) -> pa.Table | None:
        """The newest rows of what `read` gives of each run that has hashes in this range."""
        # Not through the cache: a reader may have no right to write there.
        runs = [run for run in reversed(self.live.runs.get(self.step, ())) if run.first <= last and first <= run.last]
        with self.ledger.pinned(self.live.commit):
            tables = [read(run) for run in runs]
        return merge_runs(tables, self._key, drop_deleted=True) if tables else None

    def _of_range(self, first: int, last: int) -> pa.Table | None:
        def read(run: Run) -> pa.Table:
            return parts.rows_of_range(self.ledger.cache, self.step, run, first, last, self._read)

        return self._merged(read, first, last)

    def _of_hashes(self, hashes: Hashes, known: dict[str, pa.Table] | None = None) -> pa.Table | None:
        found = {} if known is None else known

        def read(run: Run) -> pa.Table:
            if run.id not in found:
                found[run.id] = parts.rows_of_hashes(self.ledger.cache, self.step, run, hashes, self._read)
            return found[run.id]

        return self._merged(read, int(hashes[0]), int(hashes[-1])) if len(hashes) else None

    @property
    def _read(self) -> tuple[str, ...]:
        """The columns that are read when parts of runs are: not how a monoid keeps itself, which may be large."""
        shape = self._shape
        return tuple(dict.fromkeys((HASH, *shape.key, *shape.values, *filter(None, (shape.waits,)), DELETED)))

    def _shown(self, rows: pa.Table | None, *also: str) -> pa.Table:
        """The columns that people see, and these, of the rows that they see."""
        columns = [*self._key, *self._shape.values, *also]
        if rows is None:
            return pa.table({name: pa.nulls(0) for name in columns})
        return self._visible(rows).select(columns)

    def _visible(self, rows: pa.Table) -> pa.Table:
        """The rows that people see, with all columns."""
        if self.open:
            rows = self._open(rows)
        elif self._shape.waits:
            rows = where(rows, there(rows.column(self._shape.waits)))
        for name in (*self._key, *self._shape.values):
            if name not in rows.column_names:  # a monoid that was added to the fold, before any row
                rows = rows.append_column(name, pa.nulls(rows.num_rows))
        return rows

    def _with_panes(self, shown: pa.Table) -> pa.Table:
        """Of open windows that share panes: merged now, because they are no rows yet."""
        panes, table = self._shape.panes, f"{self.step}.panes"
        runs = list(reversed(self.live.runs.get(table, ())))
        if not self.open or panes is None or not runs:
            return shown
        from hailstorm.ledger.open_windows import open_windows  # with all monoids, which nothing else here needs

        with self.ledger.pinned(self.live.commit):
            tables = [read_table(self.ledger.store, run_name(table, run.id), sums=run.sums) for run in runs]
        rows = merge_runs(tables, self._shape.tables[table], drop_deleted=True)
        made = open_windows(rows, self._key[:-2], panes, self.live.watermarks.get(self.step, (None, None))[0])
        return pa.concat_tables([made, shown.cast(made.schema)]) if shown.num_rows else made

    def _open(self, rows: pa.Table) -> pa.Table:
        if WINDOW_END not in self._key:
            raise LedgerError(14, f"step '{self.step}' has no windows", hint="Leave out --open to see its state.")
        watermark = self.live.watermarks.get(self.step, (None, None))[0]
        if watermark is None:
            return rows
        import pyarrow.compute as pc

        return rows.filter(pc.greater(rows.column(WINDOW_END).cast(pa.int64()), watermark))


def state_of(ledger: Ledger, live: Live, step: str, open_: bool = False) -> State:
    """A step's state at a moment, also by the name that it has got since. Raises when it had none there."""
    then = called_at(step, live, ledger.newest())
    if then not in live.steps:
        raise no_such_step(step, live)
    return State(ledger, live, then, open_)


def no_such_step(step: str, live: Live) -> LedgerError:
    """`live` is the moment that was asked for. A step may have got another name before it."""
    formers = {former.name: (name, former.until) for name, at in live.steps.items() for former in at.formerly}
    if step in formers:
        hint = f"It is called '{formers[step][0]}' since commit {formers[step][1] + 1}."
    else:
        known = ", ".join(sorted(live.steps)) or "none yet"
        hint = f"Steps with state: {known}. {suggestion(step, live.steps)}"
    return LedgerError(10, f"no step '{step}' keeps state here", hint=hint)


def html_of(rows: pa.Table, caption: str) -> str:
    """The first rows, for a notebook, and how many more there are."""
    from hailstorm.topology.picture import html_table

    few = zip(*(_cells(column) for column in rows.slice(0, SHOWN).columns), strict=True)
    more = f"<p>… and {rows.num_rows - SHOWN:,} more</p>" if rows.num_rows > SHOWN else ""
    return html_table(rows.column_names, few, caption) + more


def _cells(column: pa.ChunkedArray) -> list[Any]:
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):  # a time that Python has no value for
        if pa.types.is_timestamp(column.type):
            return list(column.cast(pa.string()).to_pylist())
        return [" ".join(str(column.slice(place, 1).combine_chunks()).split()) for place in range(len(column))]


def with_values(rows: pa.Table, wanted: Mapping[str, pa.Array]) -> pa.Table:
    """The rows of which each of these columns has one of its values."""
    for name, values in wanted.items() if rows.num_rows else ():
        rows = where(rows, among(rows.column(name), values))
    return rows


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise LedgerError(13, f"{name} is not installed", hint=f"To install it: pip install {name}") from error
