"""Reading from inside: what other steps left in this advance, or the whole state of a table."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, GONE, HASH, KIND, TASK, UPDATED
from hailstorm.engine.stages.read import share_of
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import shaped


@dataclass(frozen=True)
class ReadRows:
    """What earlier lines or waves left under these names: this task's share of it."""

    names: tuple[str, ...]
    columns: tuple[str, ...]
    tasks: int

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        share = share_of(batches)
        for name in self.names:
            for batch in task.rows_left(name, share, self.tasks):
                yield batch.select(list(self.columns))


@dataclass(frozen=True)
class ReadWhole:
    """Every row of a table as an insert, with what this tick has written: for those who must see all of it.

    A piece at a time: a table may be larger than the memory of a worker.
    """

    layout: Layout
    schema: pa.Schema  # of its changes
    waits: str  # rows in which this column is null are not shown

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        if share_of(batches) != 0:
            return
        for rows in task.state(self.layout, with_this_tick=True).pieces():
            if self.waits:
                rows = rows.filter(pc.is_valid(rows.column(self.waits)))
            inserts = {
                **{name: rows.column(name) for name in rows.column_names if name in self.schema.names},
                KIND: pa.repeat("insert", rows.num_rows),
                EVENT_TIME: rows.column(UPDATED),
                HASH: rows.column(HASH),
            }
            yield from shaped(pa.table(inserts), self.schema).to_batches(max_chunksize=100_000)


@dataclass(frozen=True)
class ReadNothing:
    """No rows: of a step that is not run."""

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        yield from ()


@dataclass(frozen=True)
class AsVersions:
    """The rows of a whole table as the records that a look-up by event time reads: the newest version of each key."""

    schema: pa.Schema

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            rows = pa.Table.from_batches([batch]).append_column(GONE, pa.repeat(False, batch.num_rows))
            yield from shaped(rows, self.schema).to_batches()


@dataclass(frozen=True)
class Prune:
    """Only the columns that the JVM will read: the others would be copied for nothing."""

    columns: tuple[str, ...]

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield batch.select(list(self.columns))


@dataclass(frozen=True)
class FromSpark:
    """What Spark sends, with the names and the types of the plan.

    Spark decides only while it optimizes whether the items of a list or the fields of a struct may be null, and two
    jobs may decide differently. To Arrow such types differ, and a null struct breaks the promise of its fields. The
    plan says the same for all: everything may be null (`arrow_schema` in plan/flow.py).
    """

    schema: pa.Schema
    places: tuple[int, ...]  # of its columns, among those that are sent

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            sent = zip((batch.column(place) for place in self.places), self.schema.types, strict=True)
            columns = [column if column.type == type_ else column.cast(type_) for column, type_ in sent]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class CopyToAll:
    """A copy of every row for each task of a grouping, where one Spark task is all of them."""

    tasks: int

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            for number in range(self.tasks):
                yield batch.append_column(TASK, pa.repeat(pa.scalar(number, pa.int32()), batch.num_rows))
