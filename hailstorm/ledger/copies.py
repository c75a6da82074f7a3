"""Copies: the file of a run in the cache, an Arrow file with one batch and, behind it, a checksum of each of its pages.

A copy has no checksum in any commit, and Arrow keeps none. So whoever writes it adds one of every `PAGE` bytes, and a
reader compares those of the pages that it touches: one key of a million costs some dozens of them. What is not what was
written is no copy: the ledger's own file is read instead. Ticks touch far more rows and do not compare (docs/decisions
0091); whoever makes files of a copy, as a compaction does, compares all of it, once.

    the Arrow file | a CRC-32 of each page | where the Arrow file's parts end, and a CRC-32 of the sums and this
"""

from __future__ import annotations

import mmap
import os
import struct
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hailstorm.ledger.arrays import distinct

PAGE = 4_096
_TAIL = struct.Struct("<QQQI8s")  # ends of the file, of what is before the rows, and of the rows; CRC-32; MAGIC
_MAGIC = b"HAILCOPY"
_ARROW = b"ARROW1"  # the end of an Arrow file, and so of the copies that older Hailstorms made

Places = npt.NDArray[np.int64]


class DamagedCopy(ValueError):
    """A copy that is not what was written. Only its readers see it: they read the ledger's own file instead."""


def write_arrow(table: pa.Table, path: Path) -> None:
    """One Arrow file with one batch, so that a reader gets each column as one piece of mapped memory."""
    temporary = _written(table, path)
    temporary.rename(path)


def read_arrow(path: Path) -> pa.Table:
    with pa.memory_map(str(path)) as source:
        return pa.ipc.open_file(source).read_all()


def write_copy(table: pa.Table, path: Path) -> None:
    """An Arrow file with the checksums of its pages. Not synced."""
    temporary = _written(table, path)
    with temporary.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as data:
            head, rows = _extent(data)
            sums = b"".join(zlib.crc32(data[at : at + PAGE]).to_bytes(4, "little") for at in range(0, len(data), PAGE))
            size = len(data)
        file.seek(0, os.SEEK_END)
        file.write(sums + _tail(sums, size, head, rows))
    temporary.rename(path)


def read_copy(path: Path) -> pa.Table:
    """The rows of a copy, for ticks: nothing is compared but that the file is whole. Raises OSError or ValueError."""
    with pa.memory_map(str(path)) as source:
        size = source.size()
        source.seek(max(0, size - _TAIL.size))
        length, _, _ = _ends(source.read(_TAIL.size), size)
        source.seek(0)
        return pa.ipc.open_file(pa.BufferReader(source.read_buffer(length))).read_all()


def wrong_with_copy(path: Path) -> str:
    """What is wrong with a copy; nothing when it is what was written, is gone, or an older Hailstorm wrote it."""
    try:
        CheckedCopy.at(path).check_all()
    except FileNotFoundError:
        return ""
    except ValueError as error:
        return "" if _is_older(path) else str(error)
    return ""


@dataclass(frozen=True)
class CheckedCopy:
    """A copy whose pages are compared before they are believed. It is mapped for as long as somebody has its table."""

    table: pa.Table
    _data: pa.Buffer
    _sums: npt.NDArray[np.uint32]
    _known: npt.NDArray[np.bool_]  # the pages that were compared

    @staticmethod
    def at(path: Path) -> CheckedCopy:
        """Raises OSError when there is none, and ValueError when it is torn or damaged."""
        with path.open("rb") as file:
            # Not Arrow's own map, which asks the system for all of the file.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        whole = pa.py_buffer(mapped)
        size = whole.size
        length, head, rows = _ends(mapped[max(0, size - _TAIL.size) :], size)
        sums = mapped[length : size - _TAIL.size]
        if _tail(sums, length, head, rows) != mapped[size - _TAIL.size :]:
            raise DamagedCopy("its checksums are not what was written")
        data = whole.slice(0, length)
        found = np.frombuffer(sums, dtype="<u4")
        copy = CheckedCopy(pa.table({}), data, found, np.zeros(len(found), dtype=np.bool_))
        # Where everything is must be right before Arrow believes it.
        copy._compare(np.array([0, rows]), np.array([head, length]))
        table = pa.ipc.open_file(pa.BufferReader(data)).read_all()
        return CheckedCopy(table, data, found, copy._known)

    def check_all(self) -> None:
        """Compare every page. Raises DamagedCopy."""
        self._compare(np.array([0]), np.array([self._data.size]))

    def check_rows(self, column: str, first: Places, end: Places) -> None:
        """Compare all that holds the values of a column in these rows, from `first` to before `end`."""
        there = np.flatnonzero(first < end)
        if len(there):
            self._check(self.table.column(column).chunk(0), first[there], end[there])

    def _check(self, column: Any, first: Places, end: Places) -> None:
        assert not column.offset, "it is all of a column of the file"
        valid, *others = column.buffers()
        self._check_cells(valid, 1, first, end)
        type_ = column.type
        if pa.types.is_null(type_):
            return
        if pa.types.is_struct(type_):
            for place in range(type_.num_fields):
                self._check(column.field(place), first, end)
        elif pa.types.is_fixed_size_list(type_):
            self._check(column.values, first * type_.list_size, end * type_.list_size)
        elif (width := _offset_width(type_)) is not None:
            self._check_cells(others[0], 8 * width, first, end + 1)
            offsets = np.frombuffer(others[0], dtype=f"<i{width}")
            first, end = offsets[first].astype(np.int64), offsets[end].astype(np.int64)
            there = np.flatnonzero(first < end)
            if not len(there):
                return
            if _is_text(type_):
                self._check_cells(others[1], 8, first[there], end[there])
            else:
                self._check(column.values, first[there], end[there])
        elif (bits := _bits(type_)) is not None:
            self._check_cells(others[0], bits, first, end)
        else:  # a type that we do not know well enough to say where its values are
            for buffer in others:
                if buffer is not None:
                    self._check_cells(buffer, 8, np.array([0]), np.array([buffer.size]))

    def _check_cells(self, buffer: pa.Buffer | None, bits: int, first: Places, end: Places) -> None:
        """Compare the pages of these cells of a buffer, of so many bits each."""
        if buffer is not None and buffer.size:
            begin = buffer.address - self._data.address
            self._compare(begin + first * bits // 8, begin + -(-end * bits // 8))

    def _compare(self, begin: Places, end: Places) -> None:
        """Compare the pages of these stretches of bytes. Raises DamagedCopy."""
        if (begin < 0).any() or (end > self._data.size).any():
            raise DamagedCopy("it has rows outside of it")
        first, last = begin // PAGE, -(-end // PAGE)
        pages = distinct(np.concatenate([np.arange(a, b) for a, b in _merged(first, last)]))
        view = memoryview(self._data)
        for page in pages[~self._known[pages]]:
            at = int(page) * PAGE
            if zlib.crc32(view[at : at + PAGE]) != int(self._sums[page]):
                raise DamagedCopy("its content does not have its checksum")
        self._known[pages] = True


def _written(table: pa.Table, path: Path) -> Path:
    """An Arrow file beside where it will be."""
    temporary = path.parent / f".{path.name}.{uuid.uuid4().hex[:8]}"
    try:
        sink = pa.OSFile(str(temporary), "wb")
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        sink = pa.OSFile(str(temporary), "wb")
    with sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return temporary


def _extent(data: memoryview) -> tuple[int, int]:
    """Where the first buffer of an Arrow file begins, and the last one ends. All else says where they are."""
    whole = pa.py_buffer(data)
    table = pa.ipc.open_file(pa.BufferReader(whole)).read_all()
    buffers = [
        one for column in table.columns for chunk in column.chunks for one in chunk.buffers() if one and one.size
    ]
    if not buffers:
        return whole.size, whole.size
    return (
        min(one.address for one in buffers) - whole.address,
        max(one.address + one.size for one in buffers) - whole.address,
    )


def _tail(sums: bytes, length: int, head: int, rows: int) -> bytes:
    crc = zlib.crc32(struct.pack("<QQQ", length, head, rows), zlib.crc32(sums))
    return _TAIL.pack(length, head, rows, crc, _MAGIC)


def _ends(tail: bytes, size: int) -> tuple[int, int, int]:
    """Where the Arrow file ends in a copy of this size, and what is before its rows, and its rows."""
    if len(tail) == _TAIL.size:
        length, head, rows, _, magic = _TAIL.unpack(tail)
        if magic == _MAGIC and length + 4 * -(-length // PAGE) + _TAIL.size == size:
            return length, head, rows
    raise DamagedCopy("it is not whole")


def _is_older(path: Path) -> bool:
    try:
        return path.read_bytes().endswith(_ARROW)
    except FileNotFoundError:
        return True


def _merged(first: Places, last: Places) -> Iterator[tuple[int, int]]:
    """These stretches, without those that are the same as another."""
    return iter(set(zip(first.tolist(), last.tolist(), strict=True)))


def _offset_width(type_: pa.DataType) -> int | None:
    """Bytes of an offset, where values are of different lengths."""
    if pa.types.is_string(type_) or pa.types.is_binary(type_) or pa.types.is_list(type_) or pa.types.is_map(type_):
        return 4
    if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_) or pa.types.is_large_list(type_):
        return 8
    return None


def _is_text(type_: pa.DataType) -> bool:
    return not (pa.types.is_list(type_) or pa.types.is_map(type_) or pa.types.is_large_list(type_))


def _bits(type_: pa.DataType) -> int | None:
    """Of a value, where all have the same size."""
    if pa.types.is_dictionary(type_):
        return None
    try:
        return int(type_.bit_width)
    except ValueError:
        return None
