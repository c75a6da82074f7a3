"""Stages with several inputs: every row says which side it is of, so that one shuffle brings all rows to their tasks.

A row is `_side`, the `_hash` by which it goes to a task, and a struct for each side, of which one is filled. What has
become due is a side, too: it must be decided in the task that gets the other rows of its key. `plan/sides.py` puts the
inputs together; a stage takes them apart with `split`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import HASH, NUMBER, OWN_HASH, SIDE, TICK
from hailstorm.engine.stages.chain import Stage, run_stages
from hailstorm.engine.stages.read import share_of
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.arrays import order_of
from hailstorm.ledger.hashing import can_hash, hash_columns
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import shaped


@dataclass(frozen=True)
class Side:
    """Which columns of an input a stage gets, under which names and types, and by what rows go to tasks.

    `key` are columns to hash; where there are none, the rows know the hash: it is their `_own_hash`.
    """

    columns: tuple[tuple[str, pa.Field], ...]  # name in the input, and what it is here
    key: tuple[str, ...] = ()

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([field for _, field in self.columns])

    @property
    def is_hashed_here(self) -> bool:
        return all(can_hash(self.schema.field(name).type) for name in self.key)

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [batch.column(name).cast(field.type) for name, field in self.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def hashes(self, rows: pa.RecordBatch) -> pa.Array:
        if not self.key:
            return rows.column(OWN_HASH)
        if not self.is_hashed_here:
            return pa.nulls(rows.num_rows, pa.int64())  # the JVM computes it
        return pa.array(hash_columns([rows.column(name) for name in self.key], rows.num_rows))


def schema_of_sides(sides: Sequence[Side]) -> pa.Schema:
    structs = [(f"_{number}", pa.struct(list(side.schema))) for number, side in enumerate(sides)]
    return pa.schema([(SIDE, pa.int8()), (HASH, pa.int64()), *structs])


@dataclass(frozen=True)
class AsSide:
    """The rows of one input as rows of its side."""

    number: int
    sides: tuple[Side, ...]

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield self.of(batch)

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        side, schema = self.sides[self.number], schema_of_sides(self.sides)
        rows = side.rows(batch)
        structs = [
            pa.StructArray.from_arrays(rows.columns, fields=list(side.schema))
            if number == self.number
            else pa.nulls(rows.num_rows, schema.field(f"_{number}").type)
            for number in range(len(self.sides))
        ]
        here = pa.repeat(pa.scalar(self.number, pa.int8()), rows.num_rows)
        return pa.RecordBatch.from_arrays([here, side.hashes(rows), *structs], schema=schema)


@dataclass(frozen=True)
class Beside:
    """What flows here, and after it the rows of another side: where one task reads them all."""

    stages: tuple[Stage, ...]
    side: AsSide

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        yield from batches
        first = pa.record_batch({"id": pa.array([0], pa.int64())})
        yield from self.side(run_stages(self.stages, iter([first]), task), task)


@dataclass(frozen=True)
class ReadDue:
    """What has become due in an agenda, read by one task."""

    layout: Layout
    schema: pa.Schema

    phase = "look up"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        if share_of(batches) == 0:
            rows = task.due(self.layout)
            if rows is not None and rows.num_rows:
                yield from shaped(rows, self.schema).to_batches()


def split(batches: Batches, sides: Sequence[Side]) -> list[pa.Table]:
    """The rows of each side, with the `_hash` that brought them here, sorted by it."""
    found = [batch for batch in batches if batch.num_rows]
    if not found:
        return [pa.schema([*side.schema, (HASH, pa.int64())]).empty_table() for side in sides]
    everything = pa.Table.from_batches(found).combine_chunks()
    numbers = everything.column(SIDE).to_numpy()
    hashes = everything.column(HASH).to_numpy()
    tables = []
    for number, side in enumerate(sides):
        mine = np.flatnonzero(numbers == number)
        order = pa.array(mine[order_of(hashes[mine])])
        struct = everything.column(f"_{number}").take(order).combine_chunks()
        columns = {field.name: pc.struct_field(struct, [place]) for place, field in enumerate(side.schema)}
        tables.append(pa.table({**columns, HASH: everything.column(HASH).take(order).combine_chunks()}))
    return tables


def has_all(rows: pa.Table, names: Sequence[str]) -> pa.Array:
    """Whether none of these columns is null: rows with a null key match nothing."""
    valid: Any = reduce(pc.and_, (pc.is_valid(rows.column(name)) for name in names))
    return valid.combine_chunks()


def numbered(rows: pa.Table, task: Task) -> pa.Table:
    """Rows of a stream with a name of their own, by which they are remembered: they have no key."""
    numbers = (task.partition << 40) + np.arange(rows.num_rows, dtype=np.int64)
    ticks = pa.repeat(pa.scalar(task.order.seq, pa.int64()), rows.num_rows)
    return rows.append_column(TICK, ticks).append_column(NUMBER, pa.array(numbers))
