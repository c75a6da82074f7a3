"""Rows as Kafka records: key, value, headers and partition.

The value is the row as JSON; of a table's delete it is null, a tombstone. The key of a table is the JSON object of its
key columns, so that null, "" and "null" are three keys; a stream has none unless the user names columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from hailstorm.errors import SinkError, suggestion
from hailstorm.sinks.sink import KIND, Delivery, Rejected
from hailstorm.sinks.values import plain_rows, plain_values

# The frame of a record in its batch, at most; headers add a little each.
_FRAME, _HEADER_FRAME = 128, 16

_encode = msgspec.json.Encoder(decimal_format="string").encode

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Shape:
    """How the user wants records: columns for the key, for headers (name -> column) and for the partition's number."""

    key: tuple[str, ...]
    headers: Mapping[str, str]
    partition: str | None

    def check(self, delivery: Delivery) -> None:
        """Refuse columns that are not there, and keys of a table that would mix its rows."""
        named = [*self.key, *self.headers.values(), *([self.partition] if self.partition else [])]
        known = delivery.schema.names
        for name in named:
            if name not in known:
                raise SinkError(
                    14,
                    f"sink '{delivery.sink}' takes the column '{name}', which its rows do not have",
                    hint=f"They have: {', '.join(known)}. {suggestion(name, known)}".rstrip(),
                )
        if delivery.key and self.key and set(self.key) != set(delivery.key):
            raise SinkError(
                14,
                f"sink '{delivery.sink}' gets a table with the key {', '.join(delivery.key)}, and key= names others",
                hint="The key of a record is the key of the table: leave key= out, or name these columns.",
            )


@dataclass(frozen=True)
class Records:
    """Column by column, all of one length. `rows` are the places in the commit, for what is rejected later."""

    values: list[bytes | None]
    keys: Sequence[bytes | None]
    headers: list[Headers] | None
    partitions: list[int] | None
    rows: Sequence[int]

    def within(self, limit: int) -> tuple[Records, list[Rejected]]:
        """Without the records that are larger than the topic takes."""
        sizes = [
            _FRAME + len(value or b"") + len(key or b"") + _size(headers)
            for value, key, headers in zip(self.values, self.keys, self.headers or [[]] * len(self.values), strict=True)
        ]
        if max(sizes, default=0) <= limit:
            return self, []
        keep = [place for place, size in enumerate(sizes) if size <= limit]
        reason = "the record has {} bytes, and the topic takes at most " + str(limit)
        rejected = [Rejected(self.rows[place], reason.format(size)) for place, size in enumerate(sizes) if size > limit]
        return self._only(keep), rejected

    def _only(self, places: list[int]) -> Records:
        def picked(column: Sequence[Any]) -> list[Any]:
            return [column[place] for place in places]

        return Records(
            picked(self.values),
            picked(self.keys),
            None if self.headers is None else picked(self.headers),
            None if self.partitions is None else picked(self.partitions),
            picked(self.rows),
        )


def records(rows: pa.Table, delivery: Delivery, shape: Shape) -> tuple[Records, list[Rejected]]:
    """What to write for the rows of a commit, and the rows that cannot be written."""
    is_table = KIND in rows.column_names
    public = rows.select(delivery.schema.names)
    values: list[bytes | None] = [_encode(row) for row in plain_rows(public)]
    if is_table:
        kinds = rows[KIND].to_pylist()
        values = [None if kind == "delete" else value for kind, value in zip(kinds, values, strict=True)]
    keys = _keys(public, delivery.key, shape.key, is_table)
    headers = _headers(public, shape.headers) if shape.headers else None
    found = Records(values, keys, headers, None, range(rows.num_rows))
    rejected: list[Rejected] = []
    if is_table:
        missing = [place for place, key in enumerate(keys) if key is None]
        rejected = [Rejected(place, "the key is null, which no record of a table can have") for place in missing]
    if shape.partition is not None:
        numbers = public[shape.partition].to_pylist()
        wrong = [place for place, number in enumerate(numbers) if not isinstance(number, int) or number < 0]
        rejected += [Rejected(place, f"'{shape.partition}' is no partition: {numbers[place]}") for place in wrong]
        found = Records(values, keys, headers, numbers, found.rows)
    if rejected:
        bad = {row.row for row in rejected}
        found = found._only([place for place in range(rows.num_rows) if place not in bad])
    return found, rejected


def _keys(rows: pa.Table, table_key: tuple[str, ...], wanted: tuple[str, ...], is_table: bool) -> list[bytes | None]:
    if len(wanted) == 1:
        return [_bare(value) for value in plain_values(rows[wanted[0]])]
    if not wanted and not is_table:
        return [None] * rows.num_rows
    columns = wanted or table_key
    if not columns:
        return [b"{}"] * rows.num_rows  # a table of one row
    return [_encode(key) for key in plain_rows(rows.select(list(columns)))]


def _headers(rows: pa.Table, wanted: Mapping[str, str]) -> list[Headers]:
    columns = [[(name, _bare(value)) for value in plain_values(rows[column])] for name, column in wanted.items()]
    return [list(headers) for headers in zip(*columns, strict=True)]


def _bare(value: Any) -> bytes | None:
    """Text and bytes as they are, anything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else _encode(value)


def _size(headers: Headers) -> int:
    return sum(_HEADER_FRAME + len(name) + len(value or b"") for name, value in headers)
