"""Which offset is which line of which file: the memory of a `Files` source.

New lines are found by looking, and the order in which files are seen is chance. The index makes it fact: a chunk of
lines gets its offsets once, on disk, before anyone is told of them, and keeps them for ever.

    <folder>/.hailstorm-files/<pattern>/
      id             tells this index from one that was made again after it was lost
      files.jsonl    line n is file number n: its name, a checksum of its first bytes, its size if it must not grow
      chunks         40 bytes a chunk: first offset, lines, file number, first byte, end byte; all 64-bit little-endian

Both only grow, under a lock. What a killed writer left of an unfinished line or chunk is cut off by the next one and
passed over by readers. Chunks have one size, so a reader finds an offset by bisection without reading the rest.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hailstorm.spouts.durable import sync, write_whole

CHUNK = np.dtype([(name, "<i8") for name in ("first", "lines", "file", "start", "end")])
Chunks = npt.NDArray[np.void]


@dataclass(frozen=True)
class KnownFile:
    number: int
    name: str
    head: int  # how many of its first bytes ...
    checksum: int  # ... have this CRC-32: a replaced file is noticed
    size: int | None  # of a file that must not grow: its size, ...
    end: int | None  # ... and where its last line ends, after unpacking


# The indexes that this process has seen on disk: which one, and how many chunks.
_synced: dict[str, tuple[int, int]] = {}


class FileIndex:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def identity(self) -> str:
        """Made with the index, by whoever asks first."""
        path = self._folder / "id"
        if not path.exists():
            with self.locked():
                if not path.exists():
                    write_whole(path, uuid.uuid4().hex.encode())
        return path.read_text()

    def latest(self) -> int:
        """The offset after the last line that is known, also after a power cut.

        A writer may be between writing and syncing, or was killed there: one sync makes good for all since the last.
        """
        chunks = self.chunks()
        if not len(chunks):
            return 0
        place, size = str(self._folder), ((self._folder / "chunks").stat().st_ino, len(chunks))
        if _synced.get(place) != size:
            for path in (self._folder / "files.jsonl", self._folder / "chunks", self._folder, self._folder.parent):
                sync(path)
            _synced[place] = size
        return int(chunks[-1]["first"] + chunks[-1]["lines"])

    def chunks(self) -> Chunks:
        """All chunks, mapped and not read."""
        path = self._folder / "chunks"
        count = path.stat().st_size // CHUNK.itemsize if path.exists() else 0
        if not count:
            return np.empty(0, CHUNK)
        return np.memmap(path, CHUNK, mode="r", shape=(count,))

    def chunks_between(self, start: int, end: int) -> Chunks:
        """The chunks that hold the offsets start <= offset < end, a range that is known."""
        chunks = self.chunks()
        return chunks[np.searchsorted(chunks["first"], start, side="right") - 1 : np.searchsorted(chunks["first"], end)]

    def files(self) -> list[KnownFile]:
        path = self._folder / "files.jsonl"
        if not path.exists():
            return []
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        return [KnownFile(number, **json.loads(line)) for number, line in enumerate(whole.splitlines())]

    def read_until(self) -> dict[int, int]:
        """How far each file has been read, in bytes, by file number."""
        chunks = self.chunks()
        ends = np.zeros(int(chunks["file"].max()) + 1 if len(chunks) else 0, np.int64)
        np.maximum.at(ends, chunks["file"], chunks["end"])
        return dict(enumerate(ends.tolist()))

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """The right to add. Left-overs of a killed writer are gone."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / ".lock", "a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._cut_left_overs()
            yield

    def add_file(self, name: str, head: int, checksum: int, size: int | None, end: int | None) -> KnownFile:
        file = KnownFile(len(self.files()), name, head, checksum, size, end)
        said = {key: value for key, value in asdict(file).items() if key != "number"}
        self._append("files.jsonl", json.dumps(said).encode() + b"\n")
        return file

    def add_chunks(self, chunks: list[tuple[int, int, int, int]]) -> None:
        """Give offsets to chunks (lines, file number, first byte, end byte), in this order."""
        lines = np.array([chunk[0] for chunk in chunks], np.int64)
        rows = np.empty(len(chunks), CHUNK)
        rows["first"] = self.latest() + np.cumsum(lines) - lines
        for place, name in enumerate(("lines", "file", "start", "end")):
            rows[name] = [chunk[place] for chunk in chunks]
        self._append("chunks", rows.tobytes())

    def _append(self, name: str, data: bytes) -> None:
        with open(self._folder / name, "ab") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def _cut_left_overs(self) -> None:
        chunks, files = self._folder / "chunks", self._folder / "files.jsonl"
        if chunks.exists() and (rest := chunks.stat().st_size % CHUNK.itemsize):
            os.truncate(chunks, chunks.stat().st_size - rest)
        if files.exists() and (text := files.read_bytes()) and not text.endswith(b"\n"):
            os.truncate(files, text.rfind(b"\n") + 1)
