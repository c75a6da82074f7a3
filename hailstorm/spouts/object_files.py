"""Files in an object store as one log: which of them are known, and which lines have which offsets.

Objects come as a whole and do not grow, so a file is known once and for ever, and its last line counts without a
newline, too. The order in which files were found is kept as a partition of an embedded log (object_segments.py): record
n is file number n. It is appended to only by one who knows all of it, so two who look at one time agree.

    <folder>/.hailstorm-files/<pattern>/id         tells this index from one that was made again after it was lost
    <folder>/.hailstorm-files/<pattern>/files/…    one record for each file: name, size, checksum, chunks of lines

`Files` is the only caller.
"""

from __future__ import annotations

import bisect
import gzip
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import cast

import msgspec
import pyarrow as pa

from hailstorm.errors import LogError
from hailstorm.ledger.stores import below, open_store
from hailstorm.spouts.lines import Bytes, complete_lines
from hailstorm.spouts.object_segments import ObjectPartition
from hailstorm.spouts.source import RECORD

_LOOK_BYTES = 256 << 20  # what one look indexes: the driver must not be away for minutes
_HEAD = 1024


class ObjectLines(msgspec.Struct, frozen=True):
    """A file in the index. Chunks are lines, first byte and end byte, after unpacking."""

    name: str
    size: int
    checksum: int  # CRC-32 of its first bytes: a replaced file is noticed
    first: int  # the offset of its first line
    chunks: tuple[tuple[int, int, int], ...]

    @property
    def end(self) -> int:
        return self.first + sum(lines for lines, _, _ in self.chunks)


class Piece(msgspec.Struct, frozen=True):
    """Some lines of a file, as bytes. `is_first`: they are its first ones."""

    first: int
    lines: int
    name: str
    is_first: bool
    text: bytes


class ObjectFiles:
    """`pattern` is below the root; `wanted` says which names are lines at all. `index` is an address or a folder."""

    def __init__(self, root: str, pattern: str, index: str | None, name: str, wanted: Callable[[str], bool]) -> None:
        self._root, self._pattern, self._wanted = root, pattern, wanted
        self._store = open_store(root)
        self._index = open_store(below(index or below(root, ".hailstorm-files"), name))

    def identity(self) -> str:
        """Made with the index, by whoever asks first."""
        found = self._index.get("id")
        if found is None:
            self._index.put_if_absent("id", uuid.uuid4().hex.encode())
            found = self._index.get("id")
        assert found is not None
        return found.decode()

    def latest(self) -> int:
        """The offset after the last line. Files that have come since the last look get their offsets first."""
        self._look()
        return self._known().end

    def latest_of_all(self) -> int:
        """The same, with all files that are there now, however many."""
        there = {name for name, _ in self._found()}
        while there & self._look():
            pass
        return self._known().end

    def _look(self) -> set[str]:
        """Give offsets to the lines of files that have none yet. The names of those that have to wait."""
        while True:
            known = self._known()
            with known.reading:
                number, end = len(known.files), known.end
            found = self._found()
            for name, size in found:
                if name in known.by_name and known.by_name[name].size != size:
                    raise self.changed(name)
            new = [(name, size) for name, size in found if name not in known.by_name]
            if not new:
                return set()
            if added := self._add(number, end, new):
                return {name for name, _ in new[added:]}

    def chunks(self, start: int, end: int) -> Iterator[tuple[ObjectLines, int, int, int, int]]:
        """What holds the offsets start <= offset < end: the file, first offset, lines, first byte, end byte."""
        known = self._known()
        at = max(0, bisect.bisect_right(known.firsts, start) - 1)
        for file in known.files[at:]:
            first = file.first
            for lines, begin, stop in file.chunks:
                if first >= end:
                    return
                if first + lines > start:
                    yield file, first, lines, begin, stop
                first += lines

    def end(self) -> int:
        """The offset after the last line that has one: no look for new files."""
        return self._known().end

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        opened: Bytes | None = None
        name = ""
        for file, first, lines, begin, stop in self.chunks(start, end):
            if opened is None or file.name != name:
                name, opened = file.name, self._opened(file)
            opened.seek(begin)
            text = opened.read(stop - begin)
            if len(text) != stop - begin:
                raise self.changed(name)
            yield Piece(first, lines, name, begin == 0, text)

    def changed(self, name: str) -> LogError:
        return LogError(
            24,
            f"the file {name} in {self._root} has changed: lines of it were already read",
            hint="A file in a store is complete when it appears; a new version needs a new name.",
        )

    # --- the index

    def _known(self) -> _Known:
        """All files of the index; reads only what came since this process last did."""
        identity = self.identity()
        partition = ObjectPartition(self._index, "files", identity)
        known = _indexes.setdefault((self._index.address, identity), _Known())
        while True:
            segments = partition.segments()
            end = segments[-1].end
            if len(known.files) >= end:
                return known
            # Merged away between the two: then it is elsewhere.
            with known.reading, suppress(FileNotFoundError):
                for segment in segments:
                    for table in partition.rows(segment, len(known.files), end):
                        known.add(msgspec.json.decode(value, type=ObjectLines) for value in table["value"].to_pylist())

    def _add(self, number: int, end: int, new: list[tuple[str, int]]) -> int:
        """Give offsets to the lines of new files, where so many files end at that offset. How many of the files have
        them now: not all where that takes long, and none when somebody else has added some meanwhile."""
        budget = _LOOK_BYTES
        added: list[ObjectLines] = []
        for name, size in new:
            if budget <= 0:
                break
            budget -= size
            head, chunks = self._read(name)
            added.append(ObjectLines(name, size, zlib.crc32(head), end, chunks))
            end = added[-1].end
        values = [msgspec.json.encode(one) for one in added]
        nothing = [None] * len(values)
        shape = pa.schema([RECORD.field(name) for name in RECORD.names[1:]])
        records = pa.table([nothing, nothing, values], schema=shape)
        done = ObjectPartition(self._index, "files", self.identity()).append_at(number, records)
        return len(added) if done else 0

    def _read(self, name: str) -> tuple[bytes, tuple[tuple[int, int, int], ...]]:
        """The first bytes of a file, and its chunks of lines."""
        with self._store.open(name) as plain:
            head = bytes(plain.read(_HEAD))
            plain.seek(0)
            try:
                return head, tuple(complete_lines(_unpacked(name, plain), 0, whole=True))
            except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                raise LogError(21, f"{below(self._root, name)} is not a gz file that can be read: {error}") from error

    def _found(self) -> list[tuple[str, int]]:
        """The files there are now, with their sizes, in order of name."""
        parts = self._pattern.split("/")
        return sorted(
            (file.name, file.bytes)
            for file in self._store.files("")
            if file.bytes and matches(file.name.split("/"), parts) and self._wanted(file.name)
        )

    def _opened(self, file: ObjectLines) -> Bytes:
        try:
            plain = self._store.open(file.name)
        except FileNotFoundError:
            raise LogError(
                23,
                f"{below(self._root, file.name)} is gone, and its lines are asked for",
                hint="Put it back, or begin with a new ledger.",
            ) from None
        if zlib.crc32(bytes(plain.read(min(_HEAD, file.size)))) != file.checksum:
            raise self.changed(file.name)
        plain.seek(0)
        return _unpacked(file.name, plain)


class _Known:
    """What this process has read of an index."""

    def __init__(self) -> None:
        self.files: list[ObjectLines] = []
        self.firsts: list[int] = []
        self.by_name: dict[str, ObjectLines] = {}
        self.end = 0
        self.reading = threading.Lock()

    def add(self, files: Iterator[ObjectLines]) -> None:
        for file in files:
            self.files.append(file)
            self.firsts.append(file.first)
            self.by_name[file.name] = file
            self.end = file.end


# By address of the index and its id.
_indexes: dict[tuple[str, str], _Known] = {}


def _unpacked(name: str, plain: pa.NativeFile) -> Bytes:
    return cast(Bytes, gzip.GzipFile(fileobj=plain) if name.endswith(".gz") else plain)


def matches(parts: list[str], pattern: list[str]) -> bool:
    """As a pattern of files does: `*` is within one part, `**` is any number of them. Hidden names do not count."""
    if not parts or not pattern:
        return not parts and not pattern
    if pattern[0] == "**" and matches(parts, pattern[1:]):
        return True
    if parts[0].startswith("."):
        return False
    if pattern[0] == "**":
        return matches(parts[1:], pattern)
    return fnmatchcase(parts[0], pattern[0]) and matches(parts[1:], pattern[1:])
