"""The folder of one partition of an embedded log: segments, and what keeps them whole.

A segment is a Parquet file whose name says which records it holds: `<first offset>-<records>.parquet`. It is written
under a hidden name, fsynced and renamed, so a kill -9 at any moment leaves all of an append or nothing of it.
Changes of the listing happen under an exclusive flock, and listing takes a shared one: a listing is one moment.

    .lock    guards the listing: held for a rename, not for the writing of data
    .merge   guards roll-up and retention, which are the only ones that remove segments

A segment that lies within a longer one is left over from a roll-up that was killed, and is passed over. A record that
was erased is a row with nothing but its offset: places stay, and readers leave it out.
Who calls it: log_places.py. What it has in common with a partition in a store is `Partition`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hailstorm.errors import LogError
from hailstorm.faults import fault
from hailstorm.spouts.durable import sync
from hailstorm.spouts.source import RECORD

ROW_GROUP = 65_536  # a range of a large segment reads only the groups that it touches
ROLL = 16  # so many segments of one size class become one of the next
_CLASSES = 5  # from 16**5 = 1,048,576 records on, a segment is left as it is
MERGED_BYTES = 256 << 20
_STALE_SECONDS = 3600.0  # no append takes so long: what is hidden and older was left by a dead writer
_NAME = re.compile(r"(\d{20})-(\d{10})\.parquet")


@dataclass(frozen=True, order=True)
class Segment:
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    @property
    def name(self) -> str:
        return f"{self.start:020d}-{self.count:010d}.parquet"

    @property
    def size_class(self) -> int:
        return next(c for c in range(_CLASSES + 1) if c == _CLASSES or self.count < ROLL ** (c + 1))


Holds = Callable[[pa.Table], pa.Array]  # of rows of a segment (`offset`, `time`, `key`, `value`): which ones


class Partition(Protocol):
    """One partition of an embedded log, wherever it is: in a folder (here), or in a store (object_segments.py)."""

    def segments(self) -> list[Segment]:
        """The live segments, in order, without gaps: one moment of a log that others may be writing."""

    def durable(self) -> list[Segment]:
        """The same, all of which a power cut leaves in place."""

    def rows(self, segment: Segment, start: int, end: int) -> Iterator[pa.Table]:
        """The records of a segment with start <= offset < end. FileNotFoundError: it was merged away since."""

    def times(self, segment: Segment) -> pa.ChunkedArray: ...

    def bytes(self, segment: Segment) -> int: ...

    def unpacked(self, segment: Segment) -> int:
        """The bytes of its records in memory, roughly; a segment that was merged away meanwhile has none."""

    def append(self, records: pa.Table) -> int:
        """Write the records (`time`, `key`, `value`) after the last one, as a whole; the offset of the first."""

    def keep_from(self, offset: int) -> None:
        """Remove the records before an offset. The end of the log stays known."""

    def erase(self, holds: Holds, dry_run: bool = False) -> list[int]:
        """Take the content of the records away for which `holds` is true. Their offsets; `dry_run` only says them."""


def without(rows: pa.Table, holds: Holds) -> tuple[list[int], pa.Table]:
    """Rows of a segment, of which those for which `holds` is true have nothing but their offsets; and these offsets."""
    found = pc.and_(pc.is_valid(rows["time"].combine_chunks()), holds(rows))
    if not pc.any(found).as_py():
        return [], rows
    blank = [pc.if_else(found, pa.scalar(None, column.type), column) for column in rows.columns[1:]]
    return rows["offset"].filter(found).to_pylist(), pa.table([rows["offset"], *blank], schema=rows.schema)


class PartitionFolder:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def segments(self) -> list[Segment]:
        """The live segments, in order, without gaps: one moment of a log that others may be writing."""
        with self._locked(fcntl.LOCK_SH):
            return self._listed()

    def durable(self) -> list[Segment]:
        """The live segments, all of which a power cut leaves in place.

        A segment's content is on disk before it has its name, but the name may not be: its writer has yet to say so,
        or was killed before. One sync makes good for all appends since the last look.
        """
        inode, segments = self.folder.stat().st_ino, self.segments()
        if _synced.get(str(self.folder)) != (inode, _end(segments)):
            self._sync()
            _synced[str(self.folder)] = (inode, _end(segments))
        return segments

    def append(self, records: pa.Table) -> int:
        """Write the records (`time`, `key`, `value`) after the last one; the offset of the first."""
        start = _end(self.segments())
        hidden = self._written(records, start)
        try:
            with self._locked(fcntl.LOCK_EX):
                end = _end(self._listed())
                if end != start:
                    # Another process was faster. Offsets are in the file, so it is written again, now undisturbed.
                    hidden.unlink()
                    start, hidden = end, self._written(records, end)
                hidden.rename(self.folder / Segment(start, len(records)).name)
        finally:
            hidden.unlink(missing_ok=True)
        self._sync()
        self._roll_up()
        return start

    def keep_from(self, offset: int) -> None:
        """Remove the records before an offset, oldest first. The end of the log stays known."""
        with self._merging(wait=True):
            segments = self.segments()
            keep = [segment for segment in segments if segment.end > offset]
            if not keep:
                # An empty segment remembers where the log goes on.
                self._publish(with_offsets(offset, _NO_RECORDS), Segment(offset, 0), [])
            elif keep[0].start < offset:
                rest = self.read_segment(keep[0]).slice(offset - keep[0].start)
                self._publish(rest, Segment(offset, len(rest)), [])
            with self._locked(fcntl.LOCK_EX):
                for segment in segments:
                    if segment.start < offset:
                        (self.folder / segment.name).unlink()
            self._sync()

    def erase(self, holds: Holds, dry_run: bool = False) -> list[int]:
        """Write every segment once more without the content of the records for which `holds` is true. Their offsets.

        A segment is replaced as a whole, under its own name: killed half way, the rest is done by the next try.
        """
        gone: list[int] = []
        with self._merging(wait=True):
            if not dry_run:
                self._remove_left_overs()  # they have the records, too
            for segment in self.segments():
                offsets, rows = without(self.read_segment(segment), holds)
                gone += offsets
                if offsets and not dry_run:
                    self._publish(rows, segment, [])
                    fault("during-erase")
        return gone

    def read_segment(self, segment: Segment) -> pa.Table:
        return pq.read_table(self.folder / segment.name, use_threads=False, memory_map=True)

    def rows(self, segment: Segment, start: int, end: int) -> Iterator[pa.Table]:
        with pq.ParquetFile(self.folder / segment.name, memory_map=True) as file:
            place = segment.start
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                first, last = max(start, place), min(end, place + count)
                if first < last:
                    table = file.read_row_group(group, columns=RECORD.names, use_threads=False)
                    yield table.slice(first - place, last - first).cast(RECORD)
                place += count

    def times(self, segment: Segment) -> pa.ChunkedArray:
        return pq.read_table(self.folder / segment.name, columns=["time"], use_threads=False)["time"]

    def bytes(self, segment: Segment) -> int:
        return (self.folder / segment.name).stat().st_size

    def unpacked(self, segment: Segment) -> int:
        """The bytes of its records in memory, roughly; a segment that was merged away meanwhile has none."""
        return _unpacked(self.folder / segment.name)

    def _listed(self) -> list[Segment]:
        found: list[Segment] = []
        for name in os.listdir(self.folder):
            if match := _NAME.fullmatch(name):
                found.append(Segment(int(match[1]), int(match[2])))
        live: list[Segment] = []
        for segment in sorted(found, key=lambda s: (s.start, -s.count)):
            if not live or segment.end > live[-1].end:
                if live and segment.start != live[-1].end:
                    raise LogError(
                        6,
                        f"{self.folder} lacks the offsets {live[-1].end} to {segment.start - 1}",
                        hint="A segment file was removed by hand. Put it back: its records may be read again.",
                    )
                live.append(segment)
        return live

    def _roll_up(self) -> None:
        """Merge the newest small segments when there are many of them, so that a log of small appends stays quick."""
        if not to_merge(self.segments()):
            return
        with self._merging(wait=False) as mine:
            if not mine:
                return
            self._remove_left_overs()
            run = to_merge(self.segments())
            while run and sum(self.bytes(segment) for segment in run) > MERGED_BYTES:
                run = run[len(run) // 2 :]
            if len(run) > 1:
                merged = pa.concat_tables([self.read_segment(segment) for segment in run])
                self._publish(merged, Segment(run[0].start, run[-1].end - run[0].start), run)

    def _publish(self, rows: pa.Table, segment: Segment, replaced: list[Segment]) -> None:
        hidden = self._hidden()
        try:
            _write(rows, hidden)
            with self._locked(fcntl.LOCK_EX):
                hidden.rename(self.folder / segment.name)
                self._sync()  # a power cut must not find the old ones gone and the new one without its name
                for old in replaced:
                    (self.folder / old.name).unlink()
        finally:
            hidden.unlink(missing_ok=True)
        self._sync()

    def _remove_left_overs(self) -> None:
        with self._locked(fcntl.LOCK_EX):
            live = {segment.name for segment in self._listed()}
            for name in os.listdir(self.folder):
                path = self.folder / name
                stale = name.startswith(".writing-") and path.stat().st_mtime < time.time() - _STALE_SECONDS
                if stale or (_NAME.fullmatch(name) and name not in live):
                    path.unlink()

    def _written(self, records: pa.Table, start: int) -> Path:
        hidden = self._hidden()
        try:
            _write(with_offsets(start, records), hidden)
        except BaseException:
            hidden.unlink(missing_ok=True)
            raise
        return hidden

    def _hidden(self) -> Path:
        return self.folder / f".writing-{uuid.uuid4().hex}"

    @contextlib.contextmanager
    def _locked(self, how: int) -> Iterator[None]:
        try:
            handle = os.open(self.folder / ".lock", os.O_RDONLY)
        except FileNotFoundError:
            if how == fcntl.LOCK_SH and self.folder.is_dir():
                # A copy of a log, without its hidden files: nobody writes to it.
                yield
                return
            handle = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, how)
            yield
        finally:
            os.close(handle)

    @contextlib.contextmanager
    def _merging(self, *, wait: bool) -> Iterator[bool]:
        """Whether this process is the one that may remove segments now."""
        handle = os.open(self.folder / ".merge", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                mine = True
            except BlockingIOError:
                mine = False
            yield mine
        finally:
            os.close(handle)

    def _sync(self) -> None:
        sync(self.folder)


@lru_cache(4096)
def _unpacked(path: Path) -> int:
    try:
        found = pq.read_metadata(path)
    except FileNotFoundError:
        return 0
    return sum(found.row_group(group).total_byte_size for group in range(found.num_row_groups))


# The folders that this process has seen on disk: which one, and how far.
_synced: dict[str, tuple[int, int]] = {}

_NO_RECORDS = pa.schema([field for field in RECORD if field.name != "offset"]).empty_table()


def _end(segments: list[Segment]) -> int:
    return segments[-1].end if segments else 0


def with_offsets(start: int, records: pa.Table) -> pa.Table:
    """Records (`time`, `key`, `value`) with their offsets, from `start` on."""
    offsets = pa.array(np.arange(start, start + len(records), dtype=np.int64))
    return pa.table([offsets, *(records[name] for name in RECORD.names[1:])], schema=RECORD)


def to_merge(segments: list[Segment]) -> list[Segment]:
    """The newest segments up to the smallest size class that has enough of them."""
    for size_class in range(_CLASSES):
        first = len(segments)
        while first and segments[first - 1].size_class <= size_class:
            first -= 1
        run = segments[first:]
        if sum(segment.size_class == size_class for segment in run) >= ROLL:
            return run
    return []


def write_segment(rows: pa.Table, file: BinaryIO | pa.NativeFile) -> None:
    pq.write_table(rows, file, row_group_size=ROW_GROUP, compression="lz4", use_dictionary=["time", "key"])


def _write(rows: pa.Table, path: Path) -> None:
    with open(path, "xb") as file:
        write_segment(rows, file)
        file.flush()
        os.fsync(file.fileno())
