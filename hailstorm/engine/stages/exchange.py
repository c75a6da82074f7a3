"""What tasks hand to each other by ranges of hashes, as Arrow has it.

Spark's own shuffle makes rows of columns and columns of rows, and costs more than all the rest of a large tick. So
tasks of one machine leave files, which the next wave maps. The machines of a cluster share no disk: there a part goes
through the shuffle, but packed, as one value that Spark does not look into.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hailstorm.clock.watermark import BEGINNING
from hailstorm.columns import HASH
from hailstorm.engine.stages.due import ReadDue
from hailstorm.engine.stages.read import share_of
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.lookup import Between
from hailstorm.ledger.runs import Hashes, hashes_of, shaped

FINE = 16  # bits of a hash that decide who owns it: ranges differ in size by a few of 65,536 parts
_PACKED_BYTES = 4 << 20  # Spark holds several values at a time, of every task that sends to one


def borders(tasks: int) -> tuple[int, ...]:
    """The first hash of each task's range but the first task's: what is cut there has one owner."""
    return tuple((-(-(task << FINE) // tasks) - (1 << (FINE - 1))) << (64 - FINE) for task in range(1, tasks))


def range_from(firsts: Hashes, tasks: int) -> Between:
    """The hashes of the task whose range begins there; of several such tasks, of all of them, which are neighbours."""
    starts = [BEGINNING, *borders(tasks), -BEGINNING]
    last = int(firsts.max())
    return int(firsts.min()), next(start for start in starts if start > last) - 1


def part_names(step: str, tasks: int) -> tuple[str, ...]:
    """Under which each task finds what is its own."""
    return tuple(f"{step}!{task}" for task in range(tasks))


def _parts(batch: pa.RecordBatch, tasks: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each task that owns some, and who that is. They are sorted by hash."""
    hashes = hashes_of(pa.Table.from_batches([batch]))
    cuts = np.searchsorted(hashes, np.array(borders(tasks), dtype=np.int64)).tolist()
    for owner, (start, end) in enumerate(zip([0, *cuts], [*cuts, batch.num_rows], strict=True)):
        if start < end:
            yield owner, batch.slice(start, end - start)


@dataclass(frozen=True)
class LeaveParts:
    """The end of a line: leave each task the rows of its range. Batches are sorted by hash."""

    step: str
    tasks: int

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        names = part_names(self.step, self.tasks)
        for batch in batches:
            for owner, rows in _parts(batch, self.tasks):
                task.leave(names[owner], pa.Table.from_batches([rows]))
        yield from ()


@dataclass(frozen=True)
class ReadParts:
    """What was left for this task, and what is due of its range, as rows without a time."""

    step: str
    schema: pa.Schema
    tasks: int
    agendas: tuple[Layout, ...]

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        share = share_of(batches)
        yield from task.rows_left(part_names(self.step, self.tasks)[share], 0, 1)
        for entries in ReadDue(self.agendas, self.schema).entries(task):
            rows = pa.Table.from_batches([entries])
            owners = np.searchsorted(np.array(borders(self.tasks), np.int64), hashes_of(rows), side="right")
            yield from rows.filter(pa.array(owners == share)).to_batches()


@dataclass(frozen=True)
class ReadDueOfRanges:
    """What is due, from one task. And from each task a row that tells the owner of a range where that begins: it has no
    time and no key, and the first hash of the range, by which Spark sends it there (plan/ranges.py)."""

    due: ReadDue
    tasks: int

    phase = "look up"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        share = share_of(batches)
        first = [BEGINNING, *borders(self.tasks)][share]
        yield from shaped(pa.table({HASH: pa.array([first])}), self.due.schema).to_batches()
        if share == 0:
            yield from self.due.entries(task)


@dataclass(frozen=True)
class PackParts:
    """The end of a pass on a cluster: the rows of each task's range as values, each with the number by which Spark
    finds the task. Batches are sorted by hash."""

    numbers: tuple[int, ...]
    schema: pa.Schema  # the bytes, and the number

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            for owner, rows in _parts(batch, len(self.numbers)):
                most = max(1, _PACKED_BYTES * rows.num_rows // max(1, rows.nbytes))
                for start in range(0, rows.num_rows, most):
                    values = [[_packed(rows.slice(start, most))], [self.numbers[owner]]]
                    columns = [pa.array(value, type_) for value, type_ in zip(values, self.schema.types, strict=True)]
                    yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class UnpackParts:
    """The rows that tasks have packed for this one."""

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            for value in batch.column(0):
                yield from pa.ipc.open_stream(value.as_buffer())


def _packed(rows: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
