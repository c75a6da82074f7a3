"""Reading: the first stage of a pass. Records of a log, rows of an earlier wave, or a whole state as changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hailstorm.engine.order import Seen, TaskRange
from hailstorm.engine.stages.chain import Batches, Task
from hailstorm.ledger.cache import read_arrow
from hailstorm.ledger.letters import LETTER, letters_table
from hailstorm.ledger.runs import merge_runs
from hailstorm.spouts.decode import Decoder
from hailstorm.spouts.decode.json_lines import JsonDecoder

TIME = pa.timestamp("us", tz="UTC")
RESERVE = "_whole"  # a column that only tops have: whether what they keep is all that their table has
HIDDEN = pa.schema([("_spout", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64()), ("_time", TIME)])


def _share(batches: Batches) -> int:
    """Which of its step's tasks this is: the number in the one row that it starts from.

    Not Spark's partition: that counts through all branches of a wave.
    """
    return int(sum(batch.column(0)[0].as_py() for batch in batches))


@dataclass(frozen=True)
class ReadLog:
    """The records of this task's ranges, decoded, with where they came from. Bad records are refused."""

    spout: str
    source: Any
    decoder: Decoder | None  # None: the source gives columns
    columns: tuple[str, ...]
    event_time: str | None
    on_error: str

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for range_ in task.order.ranges[_share(batches)]:
            if range_.spout == self.spout:
                seen = Seen()
                task.report.seen.setdefault(self.spout, {})[range_.partition] = seen
                for records in self.source.read(range_.partition, range_.start, range_.end):
                    yield self._rows(records, range_, seen, task)

    def _rows(self, records: pa.RecordBatch, range_: TaskRange, seen: Seen, task: Task) -> pa.RecordBatch:
        seen.rows += records.num_rows
        excluded = task.order.excluded.get(self.spout, {}).get(range_.partition)
        if excluded:
            records = self._without(records, excluded, range_.partition, task)
        offsets, times = records.column("offset"), records.column("time")
        if self.decoder is None:
            columns = [records.column(name) for name in self.columns]
        else:
            decoded = self.decoder(records)
            first = len(task.letters)
            for index, reason in decoded.bad:
                origin = (self.spout, range_.partition, offsets[index].as_py())
                task.refuse(self.spout, reason, self.on_error, origin, records.column("value")[index].as_py())
            _keep_around(self.decoder, records, [index for index, _ in decoded.bad], first, task)
            columns = decoded.rows.columns
            if len(decoded.origin) != records.num_rows or decoded.bad:
                origin_indices = pa.array(decoded.origin)
                offsets, times = offsets.take(origin_indices), times.take(origin_indices)
        if self.event_time is not None:
            times = columns[self.columns.index(self.event_time)].cast(TIME)
            highest = pc.max(times).value
            if highest is not None:
                seen.highest = max(highest, seen.highest if seen.highest is not None else highest)
        count = len(offsets)
        hidden = [
            pa.repeat(self.spout, count),
            pa.repeat(pa.scalar(range_.partition, pa.int32()), count),
            offsets.cast(pa.int64()),
            times.cast(TIME),
        ]
        return pa.RecordBatch.from_arrays([*columns, *hidden], names=[*self.columns, *HIDDEN.names])

    def _without(
        self, records: pa.RecordBatch, excluded: Mapping[int, str], partition: int, task: Task
    ) -> pa.RecordBatch:
        """Without the records that are known to make a later step fail: they are dead letters of this spout."""
        offsets = records.column("offset").to_pylist()
        raw = records.column("value") if "value" in records.schema.names else pa.nulls(records.num_rows, pa.binary())
        bad = [index for index, offset in enumerate(offsets) if offset in excluded]
        first = len(task.letters)
        for index in bad:
            origin = (self.spout, partition, offsets[index])
            task.refuse(self.spout, excluded[offsets[index]], self.on_error, origin, raw[index].as_py())
        _keep_around(self.decoder, records, bad, first, task)
        return records.filter(pa.array([offset not in excluded for offset in offsets]))


def _keep_around(decoder: Decoder | None, records: pa.RecordBatch, bad: list[int], first: int, task: Task) -> None:
    """Move the letters from `first` on to a file of their own, with what their decoder needs besides the value.

    Without that a retry could not make the same row of them. They are the letters of the records `bad`.
    """
    letters = task.letters[first:]
    around = [name for name in decoder.around if name in records.schema.names] if decoder is not None else []
    if letters and around:
        del task.letters[first:]
        rows = letters_table(letters)
        for name in around:
            rows = rows.append_column(name, records.column(name).take(pa.array(bad)))
        task.report.letters.append(task.write_file("errors", rows))


@dataclass(frozen=True)
class ReadLetters:
    """The dead letters of one step, as rows that go into it (or, of a spout, out of it) once more."""

    step: str
    decoder: Decoder
    columns: tuple[str, ...]
    event_time: str | None  # of a spout: what it says; of another step `_time`, which its letters carry
    on_error: str

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        if _share(batches) == 0:
            for path in task.order.letters:
                letters = pq.read_table(task.store.path(path))
                mine = letters.filter(pc.equal(letters.column("step"), self.step)).combine_chunks()
                for batch in mine.to_batches():
                    yield self._rows(batch, task)

    def _rows(self, letters: pa.RecordBatch, task: Task) -> pa.RecordBatch:
        count, decoder = letters.num_rows, self.decoder
        if self.event_time == "_time":
            # Rows are written down whole: what was around their record is among their fields.
            decoder = JsonDecoder(self.decoder.columns)
        around = {name: letters.column(name) for name in letters.schema.names if name not in LETTER.names}
        missing = {"time": pa.nulls(count, TIME), "key": pa.nulls(count, pa.binary())}
        own = {"offset": letters.column("offset"), "value": letters.column("raw")}
        records = pa.record_batch({**missing, **around, **own})
        decoded = decoder(records)
        first = len(task.letters)
        for index, reason in decoded.bad:
            origin = tuple(letters.column(name)[index].as_py() for name in ("spout", "partition", "offset"))
            task.refuse(self.step, reason, self.on_error, origin, letters.column("raw")[index].as_py())
        _keep_around(decoder, records, [index for index, _ in decoded.bad], first, task)
        kept = pa.array(decoded.origin)
        rows = decoded.rows
        times = pa.nulls(rows.num_rows, TIME) if self.event_time is None else rows.column(self.event_time).cast(TIME)
        hidden = [letters.column(name).take(kept) for name in ("spout", "partition", "offset")]
        arrays = [*(rows.column(name) for name in self.columns), *hidden, times]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.columns, *HIDDEN.names])


@dataclass(frozen=True)
class ReadScratch:
    """What an earlier wave of this advance left for this one: this task's share of its files."""

    step: str
    columns: tuple[str, ...]
    tasks: int

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        share = _share(batches)
        for index, path in enumerate(task.order.inputs.get(self.step, ())):
            if index % self.tasks == share:
                yield from read_arrow(Path(path)).select(list(self.columns)).to_batches(max_chunksize=100_000)


@dataclass(frozen=True)
class ReadChanges(ReadScratch):
    """A table's changes; or, when the order asks for a refill of it, its whole state as inserts."""

    key: tuple[str, ...]
    values: tuple[str, ...]
    schema: pa.Schema

    def __call__(self, batches: Batches, task: Task) -> Batches:
        if task.order.refill != self.step:
            yield from super().__call__(batches, task)
            return
        share, runs = _share(batches), task.open_runs(self.step)
        if share == 0 and runs:
            rows = merge_runs([run.table for run in runs], self.key, drop_deleted=True)
            if RESERVE in rows.schema.names:
                rows = rows.filter(pc.is_valid(rows.column("rank")))  # a top keeps more rows than it shows
            for batch in rows.to_batches(max_chunksize=100_000):
                yield self._as_inserts(batch)

    def _as_inserts(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for column in self.schema:
            if column.name in (*self.key, *self.values, "_hash"):
                columns.append(rows.column(column.name).cast(column.type))
            elif column.name == "_kind":
                columns.append(pa.repeat("insert", rows.num_rows))
            elif column.name == "_time":
                columns.append(rows.column("_updated").cast(column.type))
            else:
                columns.append(pa.nulls(rows.num_rows, column.type))
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class Prune:
    """Only the columns that the JVM will read: the others would be copied for nothing."""

    columns: tuple[str, ...]

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield batch.select(list(self.columns))


def tasks_of(batch: pa.RecordBatch, count: int) -> list[pa.RecordBatch]:
    """The batch cut by its `_task` column, which is dropped: what each task of a grouping gets."""
    column = batch.column("_task").to_numpy(zero_copy_only=False)
    rest = batch.drop_columns(["_task"])
    return [rest.take(pa.array(np.flatnonzero(column == task))) for task in range(count)]
