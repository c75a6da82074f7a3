"""What a decoder is: bytes of records in, typed rows out, and never an exception for what a record holds.

The engine calls it inside Spark tasks, once per batch that a log yields. A decoder has no state and may be called
in any order, in several processes and again for the same records: it must give the same answer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.topology.arrow_types import Columns, arrow_schema, spark_name

_NOT_FITTING = (pa.ArrowException, TypeError, ValueError, OverflowError)

Indexes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Decoded:
    """The rows of a batch of records, and the records that gave none.

    Every record is in `origin` (once per row it became), or in `bad`, or was passed over by a decode function.
    """

    rows: pa.RecordBatch
    origin: Indexes  # for each row, the index of its record in the batch; ascending
    bad: list[tuple[int, str]]  # record index and reason, ascending


class Decoder(ABC):
    """Turns the `value` column of records into the columns of a schema."""

    required: tuple[str, ...] = ()  # columns that are declared NOT NULL
    around: tuple[str, ...] = ()  # columns of a record, beside offset and value, that the rows are made of

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self.schema: pa.Schema = arrow_schema(columns)

    def __call__(self, records: pa.RecordBatch) -> Decoded:
        values = records.column("value")
        return self._complete(self.decode(values if values.type == pa.binary() else values.cast(pa.binary())))

    @abstractmethod
    def decode(self, values: pa.BinaryArray) -> Decoded: ...

    def _complete(self, decoded: Decoded) -> Decoded:
        """A record with a null where there may be none is bad."""
        bad = dict(decoded.bad)
        for name in self.required:
            column = decoded.rows.column(name)
            if column.null_count:
                missing = column.is_null().to_numpy(zero_copy_only=False)
                bad |= {
                    int(index): f"field '{name}' is NOT NULL, and is null or missing"
                    for index in decoded.origin[missing]
                }
        return without(decoded.rows, decoded.origin, bad) if len(bad) > len(decoded.bad) else decoded

    def rows(self, columns: list[pa.Array], count: int) -> pa.RecordBatch:
        if not columns:
            return pa.RecordBatch.from_pylist([{}] * count, schema=self.schema)
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def fitting(field: pa.Field, values: list[Any], origin: list[int], bad: dict[int, str]) -> pa.Array:
    """The values as a column. One that does not fit makes its record bad, and is null here."""
    try:
        return pa.array(values, field.type)
    except _NOT_FITTING:
        for place, value in enumerate(values):
            try:
                pa.array([value], field.type)
            except _NOT_FITTING:
                reason = f"field '{field.name}' is not {spark_name(field.type)}: {value!r:.80}"
                bad.setdefault(origin[place], reason)
                values[place] = None
        return pa.array(values, field.type)


def joined(values: pa.BinaryArray) -> pa.Buffer:
    """The values with a newline between them: what Arrow's readers take."""
    everything = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
    return pc.binary_join(everything, b"\n")[0].as_buffer()


def whole(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array; `combine_chunks` would give none for an empty one."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([pa.array([], column.type), *column.chunks])


def without(rows: pa.RecordBatch, origin: Indexes, bad: dict[int, str]) -> Decoded:
    """The rows whose record is not in `bad`."""
    if bad:
        keep = ~np.isin(origin, np.fromiter(bad, np.int64, len(bad)))
        rows, origin = rows.filter(pa.array(keep)), origin[keep]
    return Decoded(rows, origin, sorted(bad.items()))
