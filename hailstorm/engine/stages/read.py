"""Reading: the first stage of a pass. Records of a log, rows of an earlier wave, or a whole state as changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import HIDDEN, LETTER_ID, OFFSET, PARTITION, SPOUT, TIME, TIMER
from hailstorm.engine.stages.event_times import EventTimes
from hailstorm.engine.stages.order import Seen, TaskRange, letter_id
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.letters import LETTER, ROW
from hailstorm.ledger.stores.store import read_table
from hailstorm.spouts.archive import Archived
from hailstorm.spouts.decode import Decoded, Decoder
from hailstorm.spouts.decode.decoder import whole, without
from hailstorm.topology.exact_values import Misfit, exact_cast


def share_of(batches: Batches) -> int:
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
    times: EventTimes
    on_error: str

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        source = self.source_with(task.order.rosters)
        for range_ in task.order.ranges[share_of(batches)]:
            if range_.spout == self.spout:
                # A task may have several ranges of a partition, where some of it is left out.
                seen = task.report.seen.setdefault(self.spout, {}).setdefault(range_.partition, Seen())
                for records, decoder in self._records(source, range_):
                    yield self._rows(records, decoder, range_, seen, task)

    def _records(self, source: Any, range_: TaskRange) -> Iterator[tuple[pa.RecordBatch, Decoder | None]]:
        """The records, and what decodes them."""
        if isinstance(source, Archived):
            decoder = source.decoder
            for records in source.rows(range_.partition, range_.start, range_.end):
                yield records, decoder
        for records in source.read(range_.partition, range_.start, range_.end):
            yield records, self.decoder

    def source_with(self, rosters: Mapping[str, Mapping[str, str]]) -> Any:
        """The source, with its partitions numbered as they are by now."""
        roster = rosters.get(self.spout)
        return self.source if roster is None else self.source.remembering(roster)

    def _rows(
        self, records: pa.RecordBatch, decoder: Decoder | None, range_: TaskRange, seen: Seen, task: Task
    ) -> pa.RecordBatch:
        seen.add(Seen(records.num_rows, records.nbytes, arrived=_arrived(records, decoder)))
        excluded = task.order.excluded.get(self.spout, {}).get(range_.partition)
        if excluded:
            records = self._without(records, decoder, excluded, range_.partition, task)
        decoded, times = _decoded(decoder, self.columns, records, self.times, task.order.now)
        for index, reason in decoded.bad:
            self._refuse(records, decoder, index, range_.partition, reason, task)
        offsets = records.column("offset")
        if len(decoded.origin) != records.num_rows or decoded.bad:
            offsets = offsets.take(pa.array(decoded.origin))
        if self.times.known and len(times):
            highest = pc.max(times).value
            seen.highest = max(highest, seen.highest if seen.highest is not None else highest)
        count = len(offsets)
        hidden = [
            pa.repeat(self.spout, count),
            pa.repeat(pa.scalar(range_.partition, pa.int32()), count),
            offsets.cast(pa.int64()),
            times,
        ]
        return pa.RecordBatch.from_arrays([*decoded.rows.columns, *hidden], names=[*self.columns, *HIDDEN.names])

    def _without(
        self,
        records: pa.RecordBatch,
        decoder: Decoder | None,
        excluded: Mapping[int, str],
        partition: int,
        task: Task,
    ) -> pa.RecordBatch:
        """Without the records that are known to make a later step fail: they are dead letters of this spout."""
        offsets = records.column("offset").to_pylist()
        for index, offset in enumerate(offsets):
            if offset in excluded:
                self._refuse(records, decoder, index, partition, excluded[offset], task)
        return records.filter(pa.array([offset not in excluded for offset in offsets]))

    def _refuse(
        self, records: pa.RecordBatch, decoder: Decoder | None, index: int, partition: int, reason: str, task: Task
    ) -> None:
        """With the bytes, and with what else the row is made of: all of it, where the source gives columns."""
        record = records.take(pa.array([index]))
        origin = (self.spout, partition, record.column("offset")[0].as_py())
        raw = None if decoder is None else record.column("value")[0].as_py()
        around = self.columns if decoder is None else decoder.around
        kept = dict.fromkeys(name for name in ("time", *around) if name in record.schema.names)
        task.refuse(self.spout, reason, self.on_error, origin, raw, record.select(list(kept)))


@dataclass(frozen=True)
class ReadRecordLetters:
    """The dead letters of a spout: records that are decoded once more, and come out of it."""

    spout: str
    decoder: Decoder | None  # None: the source gives columns
    columns: tuple[str, ...]
    times: EventTimes
    on_error: str

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        if share_of(batches) == 0:
            for letters in _letters_of(self.spout, task):
                for batch in letters.to_batches():
                    yield self._rows(batch, task)

    def _rows(self, letters: pa.RecordBatch, task: Task) -> pa.RecordBatch:
        around = pa.RecordBatch.from_struct_array(letters.column(ROW))
        origins = [letters.column(name) for name in ("spout", "partition", "offset")]
        records = around
        if self.decoder is not None:
            count = letters.num_rows
            missing = {"time": pa.nulls(count, TIME), "key": pa.nulls(count, pa.binary())}
            own = {"offset": letters.column("offset"), "value": letters.column("raw")}
            known = dict(zip(around.schema.names, around.columns, strict=True))
            records = pa.record_batch({**missing, **known, **own})
        decoded, times = _decoded(self.decoder, self.columns, records, self.times, task.order.now)
        for index, reason in decoded.bad:
            origin = tuple(column[index].as_py() for column in origins)
            raw = letters.column("raw")[index].as_py()
            row = around.append_column(LETTER_ID, letters.column(LETTER_ID)).take(pa.array([index]))
            task.refuse(self.spout, reason, self.on_error, origin, raw, row)
        origins = [column.take(pa.array(decoded.origin)) for column in origins]
        arrays = [*decoded.rows.columns, *origins, times]
        return pa.RecordBatch.from_arrays(arrays, names=[*self.columns, *HIDDEN.names])


def _arrived(records: pa.RecordBatch, decoder: Decoder | None) -> float | None:
    """When the log got them, in the mean. What a generator or a file calls time is none of that."""
    if decoder is None or not records.num_rows:
        return None
    mean: float | None = pc.mean(records.column("time").cast(pa.int64())).as_py()
    return mean


def _decoded(
    decoder: Decoder | None, columns: tuple[str, ...], records: pa.RecordBatch, event_times: EventTimes, now: int
) -> tuple[Decoded, pa.Array]:
    """The rows of records whose event times are taken, and these times. A record with another one is bad as a whole."""
    if decoder is None:
        decoded = Decoded(records.select(list(columns)), np.arange(records.num_rows), [])
    else:
        decoded = decoder(records)
    if event_times.column is None:
        times = records.column("time").take(pa.array(decoded.origin)).cast(TIME)
    else:
        times = decoded.rows.column(event_times.column).cast(TIME)
    refused = event_times.refused(times, now)
    if refused:
        bad = {int(decoded.origin[index]): reason for index, reason in refused.items()}
        times = times.filter(pa.array(~np.isin(decoded.origin, list(bad))))
        decoded = without(decoded.rows, decoded.origin, {**bad, **dict(decoded.bad)})
    return decoded, times


@dataclass(frozen=True)
class ReadRowLetters:
    """The dead letters of another step: the rows themselves, as they entered it."""

    step: str
    schema: pa.Schema  # of what enters the step now
    on_error: str

    def all(self, task: Task) -> Batches:
        for letters in _letters_of(self.step, task):
            yield from self._rows(letters, task)

    def _rows(self, letters: pa.Table, task: Task) -> Batches:
        """The rows in the types of today; one by one where not all of them fit, and those that do not stay letters."""
        try:
            rows = pa.Table.from_struct_array(letters.column(ROW))
            if TIMER in rows.column_names:  # it was no row: it has fired, and does not fire again
                again = zip(letters.column(LETTER_ID).to_pylist(), letters.column("reason").to_pylist(), strict=True)
                task.report.again |= dict(again)
                return
            rows = rows.append_column(LETTER_ID, letters.column(LETTER_ID))
            yield from self._fitting(rows).to_batches()
        except Misfit as misfit:
            if letters.num_rows == 1:
                self._refuse(letters, rows, str(misfit), task)
                return
            for place in range(letters.num_rows):
                yield from self._rows(letters.slice(place, 1).combine_chunks(), task)

    def _fitting(self, rows: pa.Table) -> pa.Table:
        """A column that the step did not have then is null."""
        known = set(rows.column_names)
        columns = [
            exact_cast(whole(rows.column(one.name)), one.type, one.name)
            if one.name in known
            else pa.nulls(rows.num_rows, one.type)
            for one in self.schema
        ]
        return pa.table(columns, schema=self.schema)

    def _refuse(self, letters: pa.Table, rows: pa.Table, reason: str, task: Task) -> None:
        (letter,) = letters.select(LETTER.names).to_pylist()
        origin = (letter["spout"], letter["partition"], letter["offset"])
        task.refuse(self.step, reason, self.on_error, origin, letter["raw"], rows.combine_chunks().to_batches()[0])


def _letters_of(step: str, task: Task) -> Iterator[pa.Table]:
    """The letters of a step that get their second chance now, with their ids."""
    for range_ in task.order.letters:
        excluded = task.order.excluded.get(range_.spout, {}).get(range_.partition, {})
        letters = read_table(task.store, range_.spout).slice(range_.start, len(range_))
        ids = [letter_id(range_.partition, row) for row in range(range_.start, range_.end)]
        letters = letters.append_column(LETTER_ID, pa.array(ids, pa.int64()))
        mine = letters.filter(pc.equal(letters.column("step"), step)).combine_chunks()
        task.report.again |= {letter_id(range_.partition, row): why for row, why in excluded.items() if mine.num_rows}
        bad = pa.array([letter_id(range_.partition, row) for row in excluded], pa.int64())
        kept = mine.filter(pc.invert(pc.is_in(mine.column(LETTER_ID), bad))).combine_chunks() if len(bad) else mine
        if kept.num_rows:
            yield kept


@dataclass(frozen=True)
class KeepCovered:
    """Of retried rows, those whose record the step was given when they failed. A step that was added since gets such a
    record whole, from a backfill, or not at all. Rows that know no record pass."""

    step: str

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        spans = task.order.coverage.get(self.step, {})
        for batch in batches:
            origins = zip(*(batch.column(name).to_pylist() for name in (SPOUT, PARTITION, OFFSET)), strict=True)
            kept = [spout is None or _within(spans.get(spout, {}), partition, at) for spout, partition, at in origins]
            yield batch if all(kept) else batch.filter(pa.array(kept))


def _within(spans: Mapping[str, tuple[tuple[int, int], ...]], partition: int, offset: int) -> bool:
    return any(start <= offset < end for start, end in spans.get(str(partition), ()))


@dataclass(frozen=True)
class AlsoLetters:
    """What flows into a step, and after it the dead letters that get their second chance there."""

    letters: ReadRowLetters

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield batch.append_column(LETTER_ID, pa.nulls(batch.num_rows, pa.int64()))
        yield from self.letters.all(task)
