"""A log that nobody writes: rows computed from their offset, at a steady rate. For demos, tests and load.

The row at an offset is a pure function of the offset and the partition, and never of when it is read: record number
n of all came to be at `start` + n / `per_second`. Wall time says only how far the log is by now.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.errors import LogError, TopologyError
from hailstorm.spouts.source import BATCH_ROWS, RECORD, check_range
from hailstorm.topology.arrow_types import arrow_type
from hailstorm.topology.schema import Schema

Rows = Callable[[npt.NDArray[np.int64], int], Mapping[str, Any]]

_COLUMNS = "value BIGINT, at TIMESTAMP"
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
_COLUMN_BYTES = 16
_FAR = 1 << 62  # where a log without a limit ends


@dataclass(frozen=True)
class Rate:
    """`per_second` records per second, over all partitions, from `start` on, up to `limit` records in each partition.

    Without `rows`, the columns are `value BIGINT, at TIMESTAMP`: the record's number over all partitions, and when
    it came to be. With `rows`, a pure function from an array of offsets and the partition to a dict of arrays,
    `columns` is their schema.

    `start` is the moment of offset 0 (an ISO text or a datetime; UTC when it has no zone). It is part of what the
    log is: a restart must find the same record at the same offset. So an endless log needs one, written down and not
    `datetime.now()`. With a `limit` it may be left out: then all records are there from the beginning.
    """

    per_second: float
    _: KW_ONLY
    partitions: int = 1
    rows: Rows | None = None
    columns: str = _COLUMNS
    start: datetime | str | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.per_second <= 0 or self.partitions < 1 or (self.limit or 0) < 0:
            raise TopologyError(45, "a Rate needs a positive rate and at least one partition")
        if self.rows is None and self.columns != _COLUMNS:
            raise TopologyError(46, "columns= of a Rate is the schema of what rows= gives; there is no rows=")
        if self.start is None and self.limit is None:
            now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            raise TopologyError(
                47,
                "an endless Rate needs start=, the moment of its offset 0: a restart must find the same records",
                hint=f'Write it down, as in hs.Rate({self.per_second:g}, start="{now}"), or give a limit=.',
            )
        _moment(self.start)  # a text that is not a time is found now

    @property
    def has_time(self) -> bool:
        return True

    def earliest(self) -> dict[int, int]:
        return dict.fromkeys(range(self.partitions), 0)

    def latest(self) -> dict[int, int]:
        elapsed = max(0.0, time.time() - _moment(self.start).timestamp())
        # Rounding down per partition: a record is there when its whole share of time has passed.
        count = int(elapsed * self.per_second / self.partitions)
        return dict.fromkeys(range(self.partitions), count if self.limit is None else min(count, self.limit))

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if start >= end:
            return
        if not 0 <= partition < self.partitions:
            raise LogError(13, f"this Rate has no partition {partition}: it has {self.partitions}")
        # The limit and not the clock on the wall: a task's machine may be behind the driver's.
        check_range("this Rate", partition, start, end, 0, _FAR if self.limit is None else self.limit)
        schema = self._schema()
        for first in range(start, end, BATCH_ROWS):
            offsets = np.arange(first, min(first + BATCH_ROWS, end), dtype=np.int64)
            yield self._batch(offsets, partition, schema)

    def size(self, partition: int, start: int, end: int) -> int:
        return (end - start) * _COLUMN_BYTES * (2 + len(tuple(Schema.parse(self.columns))))

    def resolve(self, folder: Path) -> Rate:
        return self

    def describe(self) -> Mapping[str, Any]:
        return {
            "rate": self.per_second,
            "partitions": self.partitions,
            "columns": self.columns,
            "start": _moment(self.start).isoformat(),
            "limit": self.limit,
        }

    def identity(self) -> str:
        """What decides which record is at an offset. A higher limit only makes the log longer."""
        return f"{self.per_second:g}/{self.partitions}/{_moment(self.start).isoformat()}"

    def _schema(self) -> pa.Schema:
        declared = [pa.field(column.name, arrow_type(column.type or "")) for column in Schema.parse(self.columns)]
        return pa.schema([RECORD.field("offset"), RECORD.field("time"), *declared])

    def _batch(self, offsets: npt.NDArray[np.int64], partition: int, schema: pa.Schema) -> pa.RecordBatch:
        numbers = offsets * self.partitions + partition
        since = np.floor(numbers * (1e6 / self.per_second)).astype(np.int64)
        times = pa.array(since + round(_moment(self.start).timestamp() * 1e6)).cast(schema.field("time").type)
        made = {"value": numbers, "at": times} if self.rows is None else self.rows(offsets, partition)
        columns = []
        for declared in list(schema)[2:]:
            if declared.name not in made:
                raise LogError(16, f"the rows of this Rate lack the column '{declared.name}'")
            column = made[declared.name]
            array = column if isinstance(column, pa.Array) else pa.array(column)
            if len(array) != len(offsets):
                what = f"column '{declared.name}' of this Rate has {len(array)} rows for {len(offsets)} offsets"
                raise LogError(17, what)
            columns.append(array.cast(declared.type))
        return pa.RecordBatch.from_arrays([pa.array(offsets), times, *columns], schema=schema)


def _moment(start: datetime | str | None) -> datetime:
    try:
        found = datetime.fromisoformat(start) if isinstance(start, str) else start or _LONG_AGO
    except ValueError:
        raise TopologyError(48, f"start='{start}' is not a time", hint="Write it as 2024-05-01T12:00:00Z.") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
