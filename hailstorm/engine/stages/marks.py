"""Marks: rows that a stateful step gives say which row they are, on their way to the next stateful step.

Where a row came from (`_spout`, `_partition`, `_offset`) is a record, or null: a pair of a join came from two, a change
of a table from many. Who asks for the records behind a row (history/makers.py) must know which row of the step above it
was made of. So a plan that is compiled for that writes the row behind the name of its spout when it leaves a step with
state, bolts and queries carry it on, and it is taken away again before the next step with state: there the spout breaks
ties, and must be what it was.

A row is written as text, column by column. Two values are the same when their texts are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, HIDDEN, OFFSET, OLD, PARTITION, SPOUT
from hailstorm.engine.stages.task import Batches, Task

Texts = dict[str, str]  # by column: a value as text

_SIGN = "\0"  # no name of a spout has one


class Mark(msgspec.Struct, frozen=True):
    """Which step gave a row, what the row was (of a process, the key that gave it), and when it happened (µs)."""

    step: str
    row: Texts
    time: int | None


def texts(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """The values of a column as text. Times are numbers: Python has no value for some of them."""
    if pa.types.is_timestamp(column.type) or pa.types.is_time(column.type) or pa.types.is_duration(column.type):
        column = column.cast(pa.int64())
    elif pa.types.is_date(column.type):
        column = column.cast(pa.int32())
    try:
        values = column.to_pylist()
    except (ValueError, OverflowError):  # such a time inside of a struct or a list
        return [str(value) for value in column]
    if pa.types.is_floating(column.type):
        values = [None if value is None else value + 0.0 for value in values]  # zero has two signs, and is one key
    return list(map(repr, values))


def row_texts(rows: pa.Table | pa.RecordBatch, names: Sequence[str]) -> list[Texts]:
    """The columns of these names, row by row."""
    columns = [texts(rows.column(name)) for name in names]
    if not columns:
        return [{} for _ in range(rows.num_rows)]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def old_texts(rows: pa.RecordBatch) -> list[Texts | None]:
    """Of the changes of a table, the values before each; None where there was no row."""
    old = rows.column(OLD)
    fields = [texts(pc.struct_field(old, [place])) for place in range(old.type.num_fields)]
    names = [field.name for field in old.type]
    there = old.is_valid().to_pylist()
    return [
        dict(zip(names, (field[place] for field in fields), strict=True)) if known else None
        for place, known in enumerate(there)
    ]


def marked(step: str, rows: pa.Table, of: pa.Table | None = None) -> pa.Table:
    """The rows with their marks: what is in them, or what is in `of`, row by row."""
    said = rows if of is None else of
    names = [name for name in said.column_names if name not in (*HIDDEN.names, HASH)]
    spouts, times = rows.column(SPOUT).to_pylist(), rows.column(EVENT_TIME).cast(pa.int64()).to_pylist()
    marks = [
        f"{spout or ''}{_SIGN}{msgspec.json.encode(Mark(step, row, time)).decode()}"
        for spout, row, time in zip(spouts, row_texts(said, names), times, strict=True)
    ]
    return rows.set_column(rows.schema.get_field_index(SPOUT), HIDDEN.field(SPOUT), pa.array(marks, pa.string()))


def without_mark(spout: str | None) -> str | None:
    """The spout that a row came from, whether or not it has a mark."""
    return None if spout is None else spout.partition(_SIGN)[0] or None


def mark_of(spout: str | None) -> Mark | None:
    text = "" if spout is None else spout.partition(_SIGN)[2]
    return msgspec.json.decode(text, type=Mark) if text else None


@dataclass(frozen=True)
class MarkRows:
    """The rows of a step get their marks."""

    step: str

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield from marked(self.step, pa.Table.from_batches([batch])).combine_chunks().to_batches()


@dataclass(frozen=True)
class Unmark:
    """Rows as they would be without marks."""

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            spouts = pa.array(map(without_mark, batch.column(SPOUT).to_pylist()), pa.string())
            yield batch.set_column(batch.schema.get_field_index(SPOUT), HIDDEN.field(SPOUT), spouts)


@dataclass(frozen=True)
class Witness:
    """A function over Arrow batches, for a bolt that reads what a step with state reads: each row as text, with what it
    was before (of a table), when it happened, and where it came from, mark and all."""

    is_table: bool

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        names = [name for name in batch.schema.names if name not in HIDDEN.names and not name.startswith("_")]
        old: Sequence[Mapping[str, str] | None] = old_texts(batch) if self.is_table else [None] * batch.num_rows
        told: dict[str, Any] = {
            "row": [msgspec.json.encode(row).decode() for row in row_texts(batch, names)],
            "old": [None if row is None else msgspec.json.encode(row).decode() for row in old],
            "at": batch.column(EVENT_TIME).cast(pa.int64()),
            "spout": batch.column(SPOUT),
            "partition": batch.column(PARTITION),
            "offset": batch.column(OFFSET),
        }
        return pa.RecordBatch.from_pydict(told | {name: batch.column(name) for name in HIDDEN.names})


WITNESSED = "row STRING, old STRING, at BIGINT, spout STRING, partition INT, offset BIGINT"
