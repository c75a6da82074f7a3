"""One partition of an embedded log in an object store: segments, and the listings that say which of them count.

    p0/listings/00000000000000000042.json   all segments that there are, with their offsets: the log at one moment
    p0/data/<random>.parquet                time, key, value; the listing says which offsets they have
    p0/newest.json                          the number of a listing that was the newest one a while ago

A store has no locks and no renaming, but it can create a file only if there is none. So whoever appends, merges or
removes writes what it has to say, then tries to create the listing after the newest one. Of several writers one
succeeds; the others look at what it did, and try the next number. An append is there when its listing is.

Listings are removed when they are old, so that nobody has to read a long list of them. That makes one thing dangerous:
to believe that a listing is the newest one because the next one is missing, when it was there and is gone. So whatever
is known of the newest listing is trusted for a third of that time, and a writer that took longer does not say that all
is well. Nothing else depends on clocks, and each clock is compared with itself only.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.errors import LogError
from hailstorm.ledger.stores.store import Store
from hailstorm.spouts.segments import MERGED_BYTES, ROLL, Holds, Segment, to_merge, with_offsets, without, write_segment
from hailstorm.spouts.source import RECORD

KEEP_SECONDS = 3600.0  # a listing that is not the newest one stays so long
TIDY_EVERY = 256  # listings between two removals of old ones
_HINT_EVERY = 16
_MOST_STEPS = 64  # from a listing that was the newest a while ago to the newest; then a look at all of them is quicker
_WHOLE_BYTES = 8 << 20  # a segment up to this size is read in one request
_TRIES = 1000  # of an append against other writers: each lost try is an append of somebody else


class Listed(msgspec.Struct, frozen=True, array_like=True):
    """A segment in a listing. `skip`: records of the file before `start`, which retention has removed."""

    start: int
    count: int
    file: str
    bytes: int
    unpacked: int
    skip: int = 0

    @property
    def segment(self) -> Segment:
        return Segment(self.start, self.count)


class Listing(msgspec.Struct, frozen=True):
    """The partition at one moment. `nonce` tells two listings apart that two writers tried to give one number."""

    log: str  # the log's id
    number: int
    nonce: str
    latest: int  # the offset after the last record, also when all records are gone
    segments: tuple[Listed, ...] = ()


class _Known(msgspec.Struct, frozen=True):
    listing: Listing
    at: float  # a moment at which it was the newest one


class _OthersWereFirstError(Exception):
    """Somebody else was faster."""


class ObjectPartition:
    """`log` is the id of the log that it is a part of: another log's listings in the same place are not ours."""

    def __init__(self, store: Store, folder: str, log: str) -> None:
        self._store, self._folder, self._log = store, folder, log
        self._key = store.address, folder, log

    # --- reading

    def segments(self) -> list[Segment]:
        """The live segments, in order, without gaps: one moment of a log that others may be writing."""
        listing = self.newest()
        found = [listed.segment for listed in listing.segments]
        return found or [Segment(listing.latest, 0)]

    def durable(self) -> list[Segment]:
        """What a store says is there is there."""
        return self.segments()

    def rows(self, segment: Segment, start: int, end: int) -> Iterator[pa.Table]:
        if not segment.count:
            return
        listed = self._listed(segment)
        with self._opened(listed) as file:
            place = listed.start - listed.skip
            for group in range(file.metadata.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                first, last = max(start, listed.start, place), min(end, place + count)
                if first < last:
                    table = file.read_row_group(group, columns=RECORD.names[1:], use_threads=False)
                    yield with_offsets(first, table.slice(first - place, last - first))
                place += count

    def times(self, segment: Segment) -> pa.ChunkedArray:
        listed = self._listed(segment)
        with self._opened(listed) as file:
            return file.read(columns=["time"], use_threads=False)["time"].slice(listed.skip)

    def bytes(self, segment: Segment) -> int:
        listed = self._known_here(segment)
        return 0 if listed is None else listed.bytes

    def unpacked(self, segment: Segment) -> int:
        listed = self._known_here(segment)
        return 0 if listed is None else listed.unpacked

    # --- writing

    def append(self, records: pa.Table) -> int:
        """Write the records (`time`, `key`, `value`) after the last one; the offset of the first."""
        listing = self._appended(self._written(records), None)
        return listing.latest - len(records)

    def append_at(self, offset: int, records: pa.Table) -> bool:
        """The same, if this is the offset of the first; else it is False, and nothing was appended."""
        written = self._written(records)
        try:
            self._appended(written, offset)
        except _OthersWereFirstError:
            self._store.delete(self._data(written.file))
            return False
        return True

    def _appended(self, written: Listed, only_at: int | None) -> Listing:
        def appended(before: Listing) -> Listing:
            if only_at is not None and before.latest != only_at:
                raise _OthersWereFirstError
            added = msgspec.structs.replace(written, start=before.latest)
            end = before.latest + written.count
            return msgspec.structs.replace(before, latest=end, segments=(*before.segments, added))

        listing = self._changed(appended)
        self._roll_up(listing)
        if listing.number % TIDY_EVERY == 0:
            self.tidy()
        return listing

    def keep_from(self, offset: int) -> None:
        """Remove the records before an offset. The end of the log stays known."""

        def kept(before: Listing) -> Listing:
            segments = tuple(_from(one, offset) for one in before.segments if one.start + one.count > offset)
            return msgspec.structs.replace(before, segments=segments)

        gone = {one.file for one in self.newest().segments}
        left = {one.file for one in self._changed(kept).segments}
        for file in gone - left:
            self._store.delete(self._data(file))
        self.tidy()

    def erase(self, holds: Holds, dry_run: bool = False) -> list[int]:
        """Write every segment that has such records once more, as another file. Their offsets."""
        gone: list[int] = []
        for listed in self.newest().segments:
            rows = pa.concat_tables(self.rows(listed.segment, listed.start, listed.start + listed.count))
            offsets, left = without(rows, holds)
            if offsets and not dry_run and not self._replaced(listed, left.select(RECORD.names[1:])):
                return sorted({*gone, *self.erase(holds)})  # somebody else has merged it meanwhile: once more, in all
            gone += offsets
        return gone

    def _replaced(self, old: Listed, records: pa.Table) -> bool:
        """Let other records take the place of a segment's. False when there is no such segment any more."""
        new = msgspec.structs.replace(self._written(records), start=old.start)

        def replaced(before: Listing) -> Listing:
            if old not in before.segments:
                raise _OthersWereFirstError
            segments = tuple(new if one == old else one for one in before.segments)
            return msgspec.structs.replace(before, segments=segments)

        try:
            self._changed(replaced)
        except _OthersWereFirstError:
            self._store.delete(self._data(new.file))
            return False
        self._store.delete(self._data(old.file))
        return True

    def tidy(self) -> None:
        """Remove old listings, and files that no listing names: those of writers that were killed."""
        newest = self.newest()
        listings = list(self._store.files(f"{self._folder}/listings"))
        now = max((one.modified for one in listings), default=0.0)  # by the store's clock, as all others here
        kept = newest.number - 1
        old = [one.name for one in listings if one.modified < now - KEEP_SECONDS and _number(one.name) < kept]
        named = {self._data(one.file) for one in newest.segments}
        data = [one for one in self._store.files(f"{self._folder}/data") if one.name not in named]
        old += [one.name for one in data if one.modified < now - KEEP_SECONDS]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(self._store.delete, old))

    def _changed(self, change: Callable[[Listing], Listing]) -> Listing:
        """The listing after a change of the newest one. Others may be first: then the change is made of theirs."""
        for tried in range(_TRIES):
            if tried:
                time.sleep(random.uniform(0.0, min(0.01 * tried, 0.5)))  # let the others through
            before = self._look()
            listing = msgspec.structs.replace(
                change(before.listing), number=before.listing.number + 1, nonce=uuid.uuid4().hex
            )
            if not self._store.put_if_absent(self._name(listing.number), msgspec.json.encode(listing)):
                continue
            if not 0 <= time.time() - before.at < KEEP_SECONDS / 3:
                raise LogError(
                    66,
                    f"a change of {self._where} took so long that nobody knows whether it counts",
                    hint="This process, or its machine, was stopped meanwhile. Look at the log before you repeat it.",
                )
            _newest[self._key] = _Known(listing, before.at)
            if listing.number % _HINT_EVERY == 0:
                self._store.put(f"{self._folder}/newest.json", str(listing.number).encode())
            return listing
        raise LogError(65, f"{self._where} has too many writers: none of {_TRIES} tries was first")

    def _written(self, records: pa.Table) -> Listed:
        file = f"{uuid.uuid4().hex}.parquet"
        size = self._store.write(self._data(file), lambda sink: write_segment(records, sink))
        return Listed(0, len(records), file, size, records.nbytes)

    def _roll_up(self, listing: Listing) -> None:
        """Merge the newest small segments when there are many of them, so that a log of small appends stays quick.

        Several may be at it. One of them is first, and the others find that out when they have done the work: so most
        of those who see that there is something to merge leave it to others.
        """
        run = to_merge([listed.segment for listed in listing.segments])
        if len(run) % ROLL:
            return
        while run:
            files = {listed.segment: listed for listed in listing.segments}
            while sum(files[segment].bytes for segment in run) > MERGED_BYTES:
                run = run[len(run) // 2 :]
            if len(run) < 2:
                return
            old = [files[segment] for segment in run]
            try:
                rows = [table for one in run for table in self.rows(one, one.start, one.end)]
            except FileNotFoundError:
                return  # somebody else has merged them, or retention has come
            records = pa.concat_tables(rows).select(RECORD.names[1:])
            merged = msgspec.structs.replace(self._written(records), start=run[0].start)

            def replaced(before: Listing, old: list[Listed] = old, merged: Listed = merged) -> Listing:
                at = before.segments.index(old[0]) if old[0] in before.segments else -1
                if at < 0 or list(before.segments[at : at + len(old)]) != old:
                    raise _OthersWereFirstError
                rest = before.segments[at + len(old) :]
                return msgspec.structs.replace(before, segments=(*before.segments[:at], merged, *rest))

            try:
                listing = self._changed(replaced)
            except _OthersWereFirstError:
                self._store.delete(self._data(merged.file))
                return
            for one in old:
                self._store.delete(self._data(one.file))
            run = to_merge([listed.segment for listed in listing.segments])

    # --- the newest listing

    def newest(self) -> Listing:
        return self._look().listing

    def _look(self) -> _Known:
        known = _newest.get(self._key)
        if known is None or not 0 <= time.time() - known.at < KEEP_SECONDS / 3:
            known = self._recent()
        listing = known.listing
        while True:
            at = time.time()  # before we ask: it was the newest one then
            after = self._read(listing.number + 1)
            if after is None:
                known = _newest[self._key] = _Known(listing, at)
                return known
            listing = after

    def _recent(self) -> _Known:
        """A listing from which the newest one is not far, found without what this process knew before."""
        at = time.time()
        said = self._store.get(f"{self._folder}/newest.json")
        number = int(said) if said else 0
        found = self._read(number) if number else None
        for _ in range(_MOST_STEPS if found or not number else 0):
            after = self._read(found.number + 1 if found else 1)
            if after is None:
                break
            found = after
        else:
            found = None
        if found is None:
            found = self._last_of_all()
        return _Known(found, at)

    def _last_of_all(self) -> Listing:
        for _ in range(_MOST_STEPS):
            names = self._store.list(f"{self._folder}/listings")
            if not names:
                return Listing(self._log, 0, "", 0)
            found = self._read(_number(names[-1]))
            if found is not None:
                return found
        raise LogError(65, f"{self._where} has too many writers: its newest listing is never there")

    def _read(self, number: int) -> Listing | None:
        data = self._store.get(self._name(number))
        if data is None:
            return None
        listing = msgspec.json.decode(data, type=Listing)
        if listing.log != self._log:
            raise LogError(
                67,
                f"{self._where} has the listings of another log",
                hint="The log was made again while parts of the old one were there. Remove all of it first.",
            )
        return listing

    def _listed(self, segment: Segment) -> Listed:
        listed = self._known_here(segment)
        if listed is None:
            raise FileNotFoundError(2, "merged away", segment.name)
        return listed

    def _known_here(self, segment: Segment) -> Listed | None:
        """As the newest listing that this process knows has it: whoever asks has just looked."""
        known = _newest.get(self._key)
        listing = self.newest() if known is None else known.listing
        return next((listed for listed in listing.segments if listed.segment == segment), None)

    def _opened(self, listed: Listed) -> pq.ParquetFile:
        try:
            return pq.ParquetFile(self._store.open(self._data(listed.file), whole=listed.bytes <= _WHOLE_BYTES))
        except FileNotFoundError:
            if any(one.file == listed.file for one in self.newest().segments):
                end = listed.start + listed.count - 1
                raise LogError(
                    6,
                    f"{self._where} lacks the offsets {listed.start} to {end}",
                    hint="A segment file was removed by hand. Put it back: its records may be read again.",
                ) from None
            raise  # merged away: they are elsewhere

    @property
    def _where(self) -> str:
        return f"{self._store.address}/{self._folder}"

    def _name(self, number: int) -> str:
        return f"{self._folder}/listings/{number:020d}.json"

    def _data(self, file: str) -> str:
        return f"{self._folder}/data/{file}"


# What this process knows, by store, partition and log. A log that was made again has another id.
_newest: dict[tuple[str, str, str], _Known] = {}


def _number(name: str) -> int:
    return int(name.rpartition("/")[2].removesuffix(".json"))


def _from(listed: Listed, offset: int) -> Listed:
    """What is left of a segment from an offset on."""
    gone = max(0, offset - listed.start)
    return msgspec.structs.replace(
        listed, start=listed.start + gone, count=listed.count - gone, skip=listed.skip + gone
    )
