"""Rows as Kafka records: key, value, headers and partition.

The value is the row as JSON; of a table's delete it is null, a tombstone. The key of a table is the JSON object of its
key columns, so that null, "" and "null" are three keys; a stream has none unless the user names columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import KIND
from hailstorm.errors import SinkError, suggestion
from hailstorm.sinks.json_rows import bare_values, json_rows
from hailstorm.sinks.sink import Delivery, Rejected

# The frame of a record in its batch, at most; each header has one of its own.
_FRAME, _HEADER_FRAME = 128, 16
_BYTES = pa.large_binary()


@dataclass(frozen=True)
class Shape:
    """How the user wants records: columns for the key, for headers (name -> column) and for the partition's number."""

    key: tuple[str, ...]
    headers: Mapping[str, str]
    partition: str | None

    def check(self, delivery: Delivery) -> None:
        """Refuse columns that are not there, and keys of a table that would mix its rows."""
        known = delivery.schema.names
        for name in (*self.key, *self.headers.values(), *([self.partition] if self.partition else [])):
            if name not in known:
                raise SinkError(
                    14,
                    f"sink '{delivery.sink}' takes the column '{name}', which its rows do not have",
                    hint=f"They have: {', '.join(known)}. {suggestion(name, known)}".rstrip(),
                )
        if self.partition and not pa.types.is_integer(delivery.schema.field(self.partition).type):
            raise SinkError(
                14,
                f"sink '{delivery.sink}' takes the partition from the column '{self.partition}', which has no integers",
                hint="The number of a partition is a TINYINT, SMALLINT, INT or BIGINT.",
            )
        if delivery.is_table and self.key and set(self.key) != set(delivery.key):
            raise SinkError(
                14,
                f"sink '{delivery.sink}' gets a table with the key {', '.join(delivery.key)}, and key= names others",
                hint="The key of a record is the key of the table: leave key= out, or name these columns.",
            )


@dataclass(frozen=True)
class Records:
    """The records of a commit, column by column, and the rows of which there is none."""

    values: pa.Array
    keys: pa.Array
    headers: list[pa.Array]
    header_names: tuple[str, ...]
    partitions: pa.Array | None
    rejected: tuple[Rejected, ...]

    def arguments(self) -> Iterator[tuple[Any, ...]]:
        """(value, key, partition, headers) of each record. -1 leaves the partition to the key."""
        count = len(self.values)
        partitions = [-1] * count if self.partitions is None else self.partitions.to_pylist()
        pairs = [
            [(name, value) for value in _listed(column)]
            for name, column in zip(self.header_names, self.headers, strict=True)
        ]
        headers: Any = map(list, zip(*pairs, strict=True)) if pairs else [None] * count
        return zip(_listed(self.values), _listed(self.keys), partitions, headers, strict=True)


def records(rows: pa.Table, delivery: Delivery, shape: Shape, largest: int, count: int) -> Records:
    """What to write for the rows of a piece. Rows that no record can hold are rejected, with a reason each.

    `largest` is how many bytes a record may have, and `count` how many partitions the topic has.
    """
    is_table = delivery.is_table
    public = rows.select(delivery.schema.names)
    values = json_rows(public).cast(_BYTES)
    if is_table:
        deleted = pa.array(pc.equal(rows[KIND], "delete").to_numpy())
        values = pc.if_else(deleted, pa.scalar(None, _BYTES), values)
    keys = _keys(public, delivery.key, shape.key, is_table)
    headers = [bare_values(public[column]) for column in shape.headers.values()]
    partitions = None if shape.partition is None else public[shape.partition].cast(pa.int64()).combine_chunks()
    rejected: dict[int, str] = {}
    if is_table:
        rejected |= dict.fromkeys(_places(pc.is_null(keys)), "the key is null, which no record of a table can have")
    if partitions is not None:
        wrong = pc.fill_null(pc.or_(pc.less(partitions, 0), pc.greater_equal(partitions, count)), True)
        reason = f"'{shape.partition}' is {{}}, which is no partition of the topic: it has {count}"
        rejected |= {place: reason.format(partitions[place]) for place in _places(wrong)}
    sizes = _sizes([values, keys, *headers]) + _FRAME + sum(_HEADER_FRAME + len(name) for name in shape.headers)
    reason = f"the record has {{}} bytes, and topic and client take at most {largest}"
    rejected |= {int(place): reason.format(sizes[place]) for place in np.flatnonzero(sizes > largest)}
    if rejected:
        keep = np.ones(len(values), bool)
        keep[list(rejected)] = False
        mask = pa.array(keep)
        values, keys, headers = values.filter(mask), keys.filter(mask), [column.filter(mask) for column in headers]
        partitions = None if partitions is None else partitions.filter(mask)
    refused = tuple(Rejected(place, rejected[place]) for place in sorted(rejected))
    return Records(values, keys, headers, tuple(shape.headers), partitions, refused)


def _keys(rows: pa.Table, table_key: tuple[str, ...], wanted: tuple[str, ...], is_table: bool) -> pa.Array:
    if len(wanted) == 1:
        return bare_values(rows[wanted[0]])
    if not wanted and not is_table:
        return pa.nulls(rows.num_rows, _BYTES)
    return json_rows(rows.select(list(wanted or table_key))).cast(_BYTES)


def _sizes(columns: list[pa.Array]) -> npt.NDArray[np.int64]:
    lengths = [pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False) for column in columns]
    total: npt.NDArray[np.int64] = np.sum(lengths, axis=0, dtype=np.int64)
    return total


def _places(mask: pa.Array) -> list[int]:
    return [int(place) for place in np.flatnonzero(mask.to_numpy(zero_copy_only=False))]


def _listed(column: pa.Array) -> list[bytes | None]:
    """Through numpy: `to_pylist` makes a scalar of each value first."""
    found: list[bytes | None] = column.to_numpy(zero_copy_only=False).tolist()
    return found
