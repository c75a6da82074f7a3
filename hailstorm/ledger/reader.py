"""The read side: what anybody may ask of a ledger, at any time, without Spark and without the app.

    ledger = hs.open_ledger(".hailstorm/trending")
    ledger.state("counts").arrow()          # now
    ledger.state("counts", at=42).pandas()  # as it was at commit 42

Reads never see half a commit: a commit names its files, and files never change.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hailstorm.errors import LedgerError, suggestion
from hailstorm.ledger.commit import Commit, Run
from hailstorm.ledger.ledger import Ledger
from hailstorm.ledger.letters import LETTER
from hailstorm.ledger.live import Live
from hailstorm.ledger.runs import merge_runs, run_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def open_ledger(path: str | Path) -> LedgerReader:
    """Open a ledger for reading. It may be in use by a run."""
    return LedgerReader(Ledger(Path(path)))


class LedgerReader:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def live(self, at: int | None = None) -> Live:
        """What is live now, or was at a commit."""
        return self._ledger.newest() if at is None else self._ledger.at(at)

    def commits(self, after: int = 0) -> Iterator[Commit]:
        """The commits in order, oldest first."""
        number = after
        while (commit := self._ledger.read_commit(number := number + 1)) is not None:
            yield commit

    def state(self, step: str, at: int | None = None) -> State:
        """A step's state at the newest commit, or at an earlier one."""
        live = self.live(at)
        if step not in live.steps:
            known = ", ".join(sorted(live.steps)) or "none yet"
            raise LedgerError(
                10,
                f"no step '{step}' keeps state here",
                hint=f"Steps with state: {known}. {suggestion(step, live.steps)}",
            )
        return State(self._ledger, live, step)

    def errors(self) -> pa.Table:
        """Dead letters that were not retried, oldest first, and then the rows that sinks rejected."""
        live = self.live()
        tables = [pq.read_table(self._ledger.store.path(file.path)).select(LETTER.names) for file in live.dead_letters]
        rejected = self._ledger.rejected(live)
        return pa.concat_tables([LETTER.empty_table(), *(table.cast(LETTER) for table in tables), *rejected])

    def rejected(self) -> int:
        """How many rows sinks have rejected; they are among `errors`, and no commit counts them."""
        return sum(table.num_rows for table in self._ledger.rejected())

    def cursor(self, sink: str) -> int:
        """The last commit that a sink got, for sinks whose cursor the ledger keeps."""
        return self._ledger.load_cursor(sink)


@dataclass(frozen=True)
class State:
    """A step's state at one commit: key columns and presented values, one row a key."""

    ledger: Ledger
    live: Live
    step: str

    def arrow(self) -> pa.Table:
        shape = self.live.steps[self.step]
        columns = [*shape.key, *shape.values]
        rows = self.rows()
        if rows is None:
            return pa.table({name: pa.nulls(0) for name in columns})
        if shape.kind == "top":
            rows = rows.filter(pc.is_valid(rows.column("rank"))).sort_by("rank")
        for name in columns:
            if name not in rows.column_names:  # a monoid that was added to the fold, before any row
                rows = rows.append_column(name, pa.nulls(rows.num_rows))
        return rows.select(columns)

    def rows(self) -> pa.Table | None:
        """Every column of the newest row per key, hidden ones included; None when nothing was ever written."""
        runs = self.live.runs.get(self.step, ())
        tables = [self._read(run) for run in reversed(runs)]
        return merge_runs(tables, self.live.steps[self.step].key, drop_deleted=True) if tables else None

    def pandas(self) -> Any:
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        return _library("polars").from_arrow(self.arrow())

    def duckdb(self) -> Any:
        return _library("duckdb").from_arrow(self.arrow())

    def spark(self, session: SparkSession) -> DataFrame:
        return session.createDataFrame(self.arrow())

    def _read(self, run: Run) -> pa.Table:
        # Not through the cache: a reader may have no right to write there.
        return pq.read_table(self.ledger.store.path(run_name(self.step, run.id)))


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise LedgerError(13, f"{name} is not installed", hint=f"To install it: pip install {name}") from error
