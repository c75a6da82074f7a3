"""The embedded log: Parquet files, in a folder or in a store, that several processes may append to and read at once.

    <path>/
      log.json                                     format version, number of partitions, the log's id
      p0/00000000000000000000-0000000100.parquet   offset, time, key, value; the name says which offsets

`hs.Log` is this, `hailstorm log` shows it, and spouts read it. Segments never change once they are named, so a range
of offsets reads the same for ever, until retention removes it. What it looks like in a store is in object_segments.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.errors import LogError, RowError
from hailstorm.ledger.stores import is_folder
from hailstorm.spouts.encode import encoded
from hailstorm.spouts.log_places import FORMAT, LogPlace, Said, place_of
from hailstorm.spouts.segments import Holds, Partition, Segment
from hailstorm.spouts.source import BATCH_ROWS, RECORD, check_place, check_range

Row = object  # text and bytes as they are; anything else as JSON

_MOST_PARTITIONS = 4096  # more is a typing mistake: each is a folder
_TIME = RECORD.field("time").type


class AboutPartition(TypedDict):
    partition: int
    earliest: int
    latest: int
    records: int
    bytes: int
    segments: int
    first_time: datetime | None
    last_time: datetime | None


class About(TypedDict):
    """What `Log.info` gives."""

    log: str
    partitions: list[AboutPartition]


@dataclass(frozen=True)
class Log:
    """An embedded log, in a folder or at `s3://bucket/path`. Opens nothing; the first append creates it, with
    `partitions` partitions."""

    path: str
    partitions: int = 1

    def __init__(self, path: str | Path, partitions: int = 1) -> None:
        check_place(os.fspath(path))
        object.__setattr__(self, "path", os.fspath(path))
        object.__setattr__(self, "partitions", partitions)

    # --- the source's protocol

    @property
    def columns(self) -> None:
        return None

    @property
    def has_time(self) -> bool:
        return True

    def earliest(self) -> dict[int, int]:
        return {p: segments[0].start if segments else 0 for p, segments in self._listing().items()}

    def latest(self) -> dict[int, int]:
        return {p: _bounds(folder.durable())[1] for p, folder in self._folders().items()}

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        place = start
        while place < end:
            folder = self._folder(partition)
            segments = folder.segments()
            check_range(f"the log {self.path}", partition, place, end, *_bounds(segments))
            try:
                for batch in _batches(folder, segments, place, end):
                    place = batch.column(0)[-1].as_py() + 1
                    yield batch
                place = end  # what is left was erased
            except FileNotFoundError:
                # A roll-up merged the segment away between the listing and its opening: the records are elsewhere.
                continue

    def size(self, partition: int, start: int, end: int) -> int:
        folder = self._folder(partition)
        held = 0.0
        for segment in folder.segments():
            inside = min(end, segment.end) - max(start, segment.start)
            if inside > 0:
                held += folder.unpacked(segment) * inside / segment.count
        return round(held)

    def resolve(self, folder: Path) -> Log:
        return replace(self, path=str(folder / self.path)) if is_folder(self.path) else self

    def describe(self) -> Mapping[str, Any]:
        return {"log": self.path}

    def identity(self) -> str:
        """Made with the log. Copies of its folder have the same."""
        id = self._said().get("id")
        if not id:
            hint = f"Append to it once more, if only nothing: hailstorm log append {self.path} < /dev/null"
            raise LogError(60, f"the log {self.path} was made by an older Hailstorm and has no id", hint=hint)
        return str(id)

    def folders(self) -> list[Path]:
        """Into which something is renamed whenever there is more; none in an object store."""
        return place_of(self.path).folders()

    # --- writing

    def create(self, partitions: int | None = None) -> Log:
        """Make the log, or give an existing one more partitions. It never gets fewer."""
        partitions = partitions or self.partitions
        if not 0 < partitions <= _MOST_PARTITIONS:
            raise LogError(10, f"a log has 1 to {_MOST_PARTITIONS} partitions, not {partitions}")
        with _as_log_error(f"cannot make a log at {self.path}"):
            place_of(self.path).make(partitions)
        return self

    def append(
        self,
        rows: Iterable[Row],
        partition: int | None = None,
        key: str | None = None,
        partitions: int | None = None,
        time: datetime | Sequence[datetime] | None = None,
    ) -> dict[int, range]:
        """Append rows and return the offsets that they got, by partition.

        A row is text or bytes, written as it is, or a dict or another value, written as JSON. `key` names a field of
        the rows: its value becomes the record's key, and equal keys go to one partition. Without `key` all rows go to
        `partition`, or to the shortest one. A log with fewer partitions than are named here or in `Log(…)` gets
        more. `time` is the append's, unless given.
        Each partition's part is atomic: after a crash it is there as a whole, or not at all.
        """
        self._make_for(max(partitions or self.partitions, (partition or 0) + 1))
        values = [encoded(row) for row in rows]
        keys = [None if key is None else _key(value, key, index) for index, value in enumerate(values)]
        times = _times(time, len(values))
        table = pa.table([times, pa.array(keys, pa.binary()), pa.array(values, pa.binary())], names=RECORD.names[1:])
        if key is None or partition is not None:
            return self._append(table, self._shortest() if partition is None else partition)
        width = self._partitions()
        places = np.array([zlib.crc32(k) % width for k in keys if k is not None], np.int64)
        written: dict[int, range] = {}
        for place in np.unique(places):
            written |= self._append(table.take(pa.array(np.flatnonzero(places == place))), int(place))
        return written

    def append_arrow(self, table: pa.Table, partition: int = 0) -> range:
        """Append many records at once: a table with `value`, and `key` and `time` if there are any."""
        self._make_for(max(self.partitions, partition + 1))
        given = {name: table[name] for name in table.column_names}
        if "value" not in given or given.keys() - set(RECORD.names[1:]):
            raise LogError(12, f"append_arrow takes the columns value, key and time, not {', '.join(given)}")
        given.setdefault("key", pa.nulls(len(table), pa.binary()))
        given.setdefault("time", _times(None, len(table)))
        records = pa.table([given[name].cast(RECORD.field(name).type) for name in RECORD.names[1:]], RECORD.names[1:])
        return self._append(records, partition).get(partition, range(0))

    def retain(self, age: timedelta | None = None, bytes: int | None = None, records: int | None = None) -> None:
        """Remove the oldest records of each partition until every given limit holds.

        `age` keeps everything from the first record on that is not older; `bytes` counts whole segments, so up to
        one segment more is kept; `records` is exact. What is removed cannot be read again: reading it is a LogError.
        """
        for folder, segments in ((self._folder(p), s) for p, s in self._listing().items() if s):
            limits = [segments[0].start]
            if records is not None:
                limits.append(segments[-1].end - records)
            if bytes is not None:
                limits.append(_first_within(folder, segments, bytes))
            if age is not None:
                limits.append(_first_since(folder, segments, datetime.now(UTC) - age))
            if max(limits) > segments[0].start:
                with _as_log_error(f"cannot remove records of {self.path}"):
                    folder.keep_from(max(limits))

    def erase(self, holds: Holds, dry_run: bool = False) -> dict[int, list[int]]:
        """Erase the records for which `holds` is true: it gets rows (`offset`, `time`, `key`, `value`) of a segment.

        Every other record keeps its offset. Which were erased, by partition; `dry_run` only says so.
        """
        with _as_log_error(f"cannot erase records of {self.path}"):
            found = {p: self._folder(p).erase(holds, dry_run) for p in range(self._partitions())}
        return {partition: offsets for partition, offsets in found.items() if offsets}

    def info(self) -> About:
        """What `hailstorm log info` shows: offsets, size and times by partition. Reads the first and last segment."""
        return {"log": self.path, "partitions": [self._about(p, s) for p, s in self._listing().items()]}

    # --- inside

    def _about(self, partition: int, segments: list[Segment]) -> AboutPartition:
        folder = self._folder(partition)
        filled = [segment for segment in segments if segment.count]
        earliest, latest = _bounds(segments)
        return {
            "partition": partition,
            "earliest": earliest,
            "latest": latest,
            "records": latest - earliest,
            "bytes": sum(folder.bytes(segment) for segment in segments),
            "segments": len(filled),
            "first_time": folder.times(filled[0])[0].as_py() if filled else None,
            "last_time": folder.times(filled[-1])[-1].as_py() if filled else None,
        }

    def _append(self, records: pa.Table, partition: int) -> dict[int, range]:
        if partition < 0:
            raise LogError(13, f"there is no partition {partition}", hint="Partitions are numbered from 0.")
        if not len(records):
            return {}
        with _as_log_error(f"cannot append to {self.path}"):
            start = self._folder(partition).append(records)
        return {partition: range(start, start + len(records))}

    def _folders(self) -> dict[int, Partition]:
        place = place_of(self.path)
        return {number: self._folder(number, place) for number in range(self._partitions(place))}

    def _folder(self, partition: int, place: LogPlace | None = None) -> Partition:
        place = place or place_of(self.path)
        found = place.partition(partition)
        if found is None:
            self._partitions(place)
            raise LogError(13, f"the log {self.path} has no partition {partition}")
        return found

    def _listing(self) -> dict[int, list[Segment]]:
        return {partition: folder.segments() for partition, folder in self._folders().items()}

    def _shortest(self) -> int:
        ends = {partition: _bounds(segments)[1] for partition, segments in self._listing().items()}
        return min(ends, key=lambda partition: (ends[partition], partition))

    def _make_for(self, partitions: int) -> None:
        """See to it that the log is there, with an id, and has at least so many partitions."""
        place = place_of(self.path)
        if place.said() is None or partitions > self._partitions(place) or "id" not in self._said(place):
            self.create(partitions)

    def _partitions(self, place: LogPlace | None = None) -> int:
        return int(self._said(place)["partitions"])

    def _said(self, place: LogPlace | None = None) -> Said:
        """What the log says of itself; raises LogError when this is not a log that we can read."""
        said = (place or place_of(self.path)).said()
        if said is None:
            hint = f"Make one by appending: hailstorm log append {self.path} < lines"
            raise LogError(1, f"there is no log at {self.path}", hint=hint)
        if said["format"] > FORMAT:
            raise LogError(2, f"the log {self.path} has format {said['format']}; this Hailstorm reads up to {FORMAT}")
        return said


def _bounds(segments: list[Segment]) -> tuple[int, int]:
    return (segments[0].start, segments[-1].end) if segments else (0, 0)


def _batches(folder: Partition, segments: list[Segment], start: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records of the range, small segments put together."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in _tables(folder, segments, start, end):
        if rows + len(table) > BATCH_ROWS:
            yield from _together(waiting)
            waiting, rows = [], 0
        waiting.append(table)
        rows += len(table)
    yield from _together(waiting)


def _tables(folder: Partition, segments: list[Segment], start: int, end: int) -> Iterator[pa.Table]:
    for segment in segments:
        if segment.end > start and segment.start < end:
            for table in folder.rows(segment, start, end):
                left = (
                    table.filter(pc.is_valid(table["time"])) if table["time"].null_count else table
                )  # others are erased
                if left.num_rows:
                    yield left


def _together(tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    if tables:
        yield from pa.concat_tables(tables).combine_chunks().to_batches(max_chunksize=BATCH_ROWS)


def _first_within(folder: Partition, segments: list[Segment], limit: int) -> int:
    """The offset from which on the newest segments hold at least so many bytes."""
    held = 0
    for segment in reversed(segments):
        held += folder.bytes(segment)
        if held >= limit:
            return segment.start
    return segments[0].start


def _first_since(folder: Partition, segments: list[Segment], oldest: datetime) -> int:
    for segment in segments:
        recent = pc.index(pc.greater_equal(folder.times(segment), pa.scalar(oldest, _TIME)), True).as_py()
        if recent >= 0:
            return segment.start + int(recent)
    return segments[-1].end


def _key(value: bytes, field: str, index: int) -> bytes:
    """The value of a field as the record's key: text as it is, anything else as JSON."""
    try:
        found = json.loads(value)[field]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise RowError(14, index, f"has no field '{field}' to be its key") from None
    return encoded(found)


def _times(time: datetime | Sequence[datetime] | None, count: int) -> pa.Array:
    if isinstance(time, Sequence):
        if len(time) != count:
            raise LogError(15, f"{len(time)} times were given for {count} rows")
        return pa.array([_aware(one) for one in time], _TIME)
    return pa.repeat(pa.scalar(_aware(time or datetime.now(UTC)), _TIME), count)


def _aware(time: datetime) -> datetime:
    return time if time.tzinfo else time.replace(tzinfo=UTC)


@contextlib.contextmanager
def _as_log_error(what: str) -> Iterator[None]:
    """A full disk or a missing right, as an error that names the log."""
    try:
        yield
    except OSError as error:
        raise LogError(3, f"{what}: {error.strerror or error}") from error
