"""Files in a folder as one log: JSON Lines, text and CSV, plain or gz; files that appear later, and files that grow.

A record is a line. The offsets of lines are in an index beside the files (`file_index`), given once and for ever, so
a replay reads the same lines whatever has been added since. Looking for new lines happens in `latest()`, on the
driver; tasks only look up. docs/decisions/0010-files-index.md says why it is so.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from hailstorm.errors import LogError
from hailstorm.ledger.stores import is_folder
from hailstorm.spouts.durable import sync
from hailstorm.spouts.file_index import Chunks, FileIndex, KnownFile
from hailstorm.spouts.lines import CHUNK_BYTES, complete_lines
from hailstorm.spouts.object_files import ObjectFiles, Piece
from hailstorm.spouts.source import BATCH_ROWS, RECORD, check_place, check_range

Format = Literal["json", "text", "csv"]

_BY_NAME: dict[str, Format] = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".txt": "text",
    ".log": "text",
    ".csv": "csv",
}
_LOOK_BYTES = 256 << 20  # what one look indexes: the driver must not be away for minutes
_HEAD = 1024
_MAGIC = re.compile(r"[*?\[]")
_GZ = b"\x1f\x8b"
_MARK = b"\xef\xbb\xbf"  # a byte order mark is not part of the first line


@dataclass(frozen=True)
class Files:
    """The lines of the files in a folder, or of those that a pattern names (`data/*.csv`), as one partition.

    A line counts once its newline is there. The last line of a gz file, and of any file with `grows=False`, also
    counts without one: such a file must be complete when it appears (write it elsewhere and rename it). Files may be
    added, and with `grows=True` appended to; one that is changed in any other way is a LogError. Files may be
    removed once their lines will not be read again.

    `format` says what a line is: empty lines of JSON and CSV are passed over, and `header=True` passes over the
    first line of each CSV file. Without `format` it goes by the file's name, and files with other names are ignored;
    so are hidden ones. `index` is a folder for the index, for when the files' own cannot be written to.

    A path may be an address (`s3://bucket/in/*.jsonl`), and so may `index`. Files in a store are complete when they
    appear: the last line counts, and none may grow, whatever `grows` says.
    """

    path: str
    _: KW_ONLY
    format: Format | None = None
    header: bool = False
    grows: bool = True
    index: str | None = None

    def __post_init__(self) -> None:
        check_place(self.path)
        if self.index is not None:
            check_place(self.index)

    @property
    def columns(self) -> None:
        return None

    @property
    def has_time(self) -> bool:
        return False

    def earliest(self) -> dict[int, int]:
        return {0: 0}

    def latest(self) -> dict[int, int]:
        with self._writing_index():
            if not is_folder(self.path):
                return {0: self._objects().latest()}
            self._look()
        return {0: self._index().latest()}

    def latest_of_all(self) -> dict[int, int]:
        """Where it ends with all files that are there now. One look at the folder stops at some bytes of new ones."""
        with self._writing_index():
            if not is_folder(self.path):
                return {0: self._objects().latest_of_all()}
            there = {name for name, _ in self._found()}
            while there:
                there = self._look(there)
        return {0: self._index().latest()}

    def identity(self) -> str:
        """That of the index: it says which line has which offset."""
        with self._writing_index():
            if not is_folder(self.path):
                return self._objects().identity()
            self._found()  # says so when there is no such folder
            return self._index().identity()

    def read(self, partition: int, start: int, end: int) -> Iterator[pa.RecordBatch]:
        if start >= end:
            return
        latest = self._index().latest() if is_folder(self.path) else self._objects().end()
        check_range(f"the files {self.path}", partition, start, end, 0, latest if partition == 0 else 0)
        for piece in self._pieces(start, end) if is_folder(self.path) else self._objects().pieces(start, end):
            records, count = self._records(piece.text, piece.first, piece.is_first, piece.name)
            if count != piece.lines:
                raise self._changed(piece.name)
            low, high = np.searchsorted(records.column("offset").to_numpy(), [start, end])
            for at in range(low, high, BATCH_ROWS):
                yield records.slice(at, min(BATCH_ROWS, high - at))

    def _pieces(self, start: int, end: int) -> Iterator[Piece]:
        index = self._index()
        known = index.files()
        with _Opened() as opened:
            for first, lines, number, begin, stop in _joined(index.chunks_between(start, end)):
                text = self._bytes(opened, known[number], begin, stop)
                yield Piece(first, lines, known[number].name, begin == 0, text)

    def size(self, partition: int, start: int, end: int) -> int:
        if start >= end:
            return 0
        if not is_folder(self.path):
            found = self._objects().chunks(start, end)
            shares = (
                (min(first + n, end) - max(first, start)) / n * (stop - begin) for _, first, n, begin, stop in found
            )
            return round(sum(shares))
        chunks = self._index().chunks_between(start, end)
        inside = np.minimum(chunks["first"] + chunks["lines"], end) - np.maximum(chunks["first"], start)
        return int(((chunks["end"] - chunks["start"]) * inside / chunks["lines"]).sum())

    def resolve(self, folder: Path) -> Files:
        def placed(path: str) -> str:
            return str(folder / path) if is_folder(path) else path

        return replace(self, path=placed(self.path), index=None if self.index is None else placed(self.index))

    def describe(self) -> Mapping[str, Any]:
        return {"files": self.path, "format": self.format, "header": self.header, "grows": self.grows}

    # --- looking for new lines

    @contextlib.contextmanager
    def _writing_index(self) -> Iterator[None]:
        try:
            yield
        except PermissionError as error:
            raise LogError(
                20,
                f"cannot write the index of {self.path}: {error}",
                hint="Name a folder for it that all can reach: hs.Files(…, index=FOLDER)",
            ) from error

    def _look(self, names: Collection[str] | None = None) -> set[str]:
        """Give offsets to the complete lines that have none yet, files in order of name. Those of `names`, or all.

        The names of files at which this look did not look any more.
        """
        index = self._index()
        known = {file.name: file for file in index.files()}
        until = index.read_until()
        if not any(self._is_new(path, name, known, until) for name, path in self._found(names)):
            return set()
        with index.locked():
            # Again, now that nobody else adds.
            known = {file.name: file for file in index.files()}
            until = index.read_until()
            budget = _LOOK_BYTES
            passed_over: set[str] = set()
            for name, path in self._found(names):
                if budget <= 0:
                    passed_over.add(name)
                elif self._is_new(path, name, known, until):
                    budget -= self._add_lines(index, path, name, known.get(name), until)
            return passed_over

    def _is_new(self, path: Path, name: str, known: dict[str, KnownFile], until: dict[int, int]) -> bool:
        """Whether there may be lines without offsets. Raises LogError for a file that shrank or was replaced."""
        file = known.get(name)
        status = path.stat()
        if file is None:
            return status.st_size > 0
        done = until.get(file.number, 0)
        if status.st_size != file.size if file.size is not None else status.st_size < done:
            raise self._changed(name)
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if _verified.get(str(path)) != seen:
            if _head_checksum(path, file.head) != file.checksum:
                raise self._changed(name)
            _verified[str(path)] = seen
        # The end of a complete file is remembered: a writer may have been killed halfway through its chunks.
        return (status.st_size if file.end is None else file.end) > done

    def _add_lines(self, index: FileIndex, path: Path, name: str, file: KnownFile | None, until: dict[int, int]) -> int:
        """Index what is complete in one file; the number of bytes looked at."""
        done = until.get(file.number, 0) if file else 0
        whole = _is_gz(path) or not self.grows
        size = path.stat().st_size
        if _is_gz(path) and size < len(_GZ):
            return size
        try:
            with _open(path) as opened:
                found = list(complete_lines(opened, done, whole))
        except EOFError:
            return size  # a gz file that is still being written
        except (gzip.BadGzipFile, zlib.error) as error:
            raise LogError(21, f"{path} is not a gz file that can be read: {error}") from error
        if not found:
            return size - done
        end = found[-1][2]
        # A power cut must not take back a line that has its offset, whether or not its writer cares.
        sync(path)
        if file is None:
            sync(path.parent)
            head = min(_HEAD, size if whole else end)
            checksum = _head_checksum(path, head)
            file = index.add_file(name, head, checksum, size if whole else None, end if whole else None)
        index.add_chunks([(lines, file.number, start, stop) for lines, start, stop in found])
        return end - done

    def _found(self, names: Collection[str] | None = None) -> list[tuple[str, Path]]:
        """The files there are now, by name relative to the folder. Those of `names`, or all."""
        folder, pattern = self._folder()
        if not folder.is_dir():
            raise LogError(22, f"there is no folder {folder}", hint="Make it: its files may come later.")
        found = [(path.relative_to(folder).as_posix(), path) for path in folder.glob(pattern) if path.is_file()]
        visible = [(name, path) for name, path in found if not any(part.startswith(".") for part in name.split("/"))]
        wanted = [(name, path) for name, path in visible if names is None or name in names]
        return sorted((name, path) for name, path in wanted if self._format(name) is not None)

    def _folder(self) -> tuple[Path, str]:
        """The folder, and the pattern below it."""
        path = Path(self.path)
        if not _MAGIC.search(self.path):
            return (path.parent, path.name) if path.is_file() else (path, "*")
        parts = path.parts
        magic = next(place for place, part in enumerate(parts) if _MAGIC.search(part))
        return Path(*parts[:magic]), "/".join(parts[magic:])

    def _index(self) -> FileIndex:
        folder, pattern = self._folder()
        return FileIndex((Path(self.index) if self.index else folder / ".hailstorm-files") / self._named(pattern))

    def _objects(self) -> ObjectFiles:
        scheme, _, rest = self.path.rstrip("/").partition("://")
        parts = rest.split("/")
        is_file = len(parts) > 1 and _BY_NAME.get(Path(parts[-1].removesuffix(".gz")).suffix) is not None
        last = len(parts) - 1 if is_file else len(parts)
        magic = next((place for place, part in enumerate(parts) if place and _MAGIC.search(part)), last)
        pattern = "/".join(parts[magic:]) or "*"
        root = f"{scheme}://{'/'.join(parts[:magic])}"
        return ObjectFiles(root, pattern, self.index, self._named(pattern), lambda name: self._format(name) is not None)

    def _named(self, pattern: str) -> str:
        """The index of a pattern. Whatever decides which lines there are is in it: other lines need other offsets."""
        decides = f"{pattern} {self.format or 'by name'} {'grows' if self.grows else 'complete'}"
        return f"{re.sub(r'[^a-zA-Z0-9.]+', '-', decides).strip('-')}-{zlib.crc32(decides.encode()):08x}"

    def _format(self, name: str) -> Format | None:
        return self.format or _BY_NAME.get(Path(name.removesuffix(".gz")).suffix)

    # --- reading

    def _bytes(self, opened: _Opened, file: KnownFile, start: int, end: int) -> bytes:
        path = self._folder()[0] / file.name
        try:
            text = opened.read(path, start, end)
            if start == 0 or not opened.checked:
                opened.checked = _head_checksum(path, file.head) == file.checksum
        except FileNotFoundError:
            raise LogError(
                23, f"{path} is gone, and its lines are asked for", hint="Put it back, or begin with a new ledger."
            ) from None
        if len(text) != end - start or not opened.checked:
            raise self._changed(file.name)
        return text

    def _records(self, text: bytes, first: int, is_first: bool, name: str) -> tuple[pa.RecordBatch, int]:
        """The lines as records, without line ends, and how many lines there were; some lines are no records."""
        characters = np.frombuffer(text if text.endswith(b"\n") else text + b"\n", np.uint8)
        newlines = np.flatnonzero(characters == ord("\n"))
        keep = characters != ord("\n")
        before = newlines[newlines > 0] - 1
        keep[before[characters[before] == ord("\r")]] = False
        if is_first and text.startswith(_MARK):
            keep[: len(_MARK)] = False
        ends = np.cumsum(keep, dtype=np.int64)[newlines]
        bounds = np.concatenate(([0], ends)).astype(np.int32)
        values = pa.Array.from_buffers(
            pa.binary(), len(newlines), [None, pa.py_buffer(bounds), pa.py_buffer(characters[keep].tobytes())]
        )
        count = len(newlines)
        offsets = pa.array(np.arange(first, first + count, dtype=np.int64))
        nothing = pa.nulls(count, RECORD.field("key").type)
        batch = pa.RecordBatch.from_arrays(
            [offsets, pa.nulls(count, RECORD.field("time").type), nothing, values], schema=RECORD
        )
        wanted = np.ones(count, bool)
        format_ = self._format(name)
        if format_ != "text":
            wanted &= np.diff(bounds) > 0
        if format_ == "csv" and self.header and is_first:
            wanted[:1] = False
        return (batch if wanted.all() else batch.filter(pa.array(wanted))), count

    def _changed(self, name: str) -> LogError:
        return LogError(
            24,
            f"the file {name} in {self._folder()[0]} has changed: lines of it were already read",
            hint="A file may grow at its end (not gz, not with grows=False); a new version needs a new name.",
        )


# Files whose beginning was compared since they last changed; a look then costs one stat for each.
_verified: dict[str, tuple[int, int, int]] = {}


class _Opened:
    """The file that is being read, kept open: to go on in a gz file is cheap, to begin again is not."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._file: gzip.GzipFile | BufferedReader | None = None
        self.checked = False

    def __enter__(self) -> _Opened:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, path: Path, start: int, end: int) -> bytes:
        if self._file is None or path != self._path:
            self.__exit__()
            self._path, self._file, self.checked = path, _open(path), False
        self._file.seek(start)
        return self._file.read(end - start)


def _is_gz(path: Path) -> bool:
    return path.name.endswith(".gz")


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    return gzip.open(path, "rb") if _is_gz(path) else open(path, "rb")


def _head_checksum(path: Path, size: int) -> int:
    with open(path, "rb") as file:
        return zlib.crc32(file.read(size))


def _joined(chunks: Chunks) -> Iterator[tuple[int, int, int, int, int]]:
    """Chunks that follow each other in one file as one, up to a size: a file that grew line by line reads quickly."""
    waiting: tuple[int, int, int, int, int] | None = None
    for chunk in chunks:
        first, lines, number, start, end = chunk.item()
        if waiting and waiting[2:3] + waiting[4:] == (number, start) and end - waiting[3] <= CHUNK_BYTES:
            waiting = (waiting[0], waiting[1] + lines, number, waiting[3], end)
            continue
        if waiting:
            yield waiting
        waiting = (first, lines, number, start, end)
    if waiting:
        yield waiting
