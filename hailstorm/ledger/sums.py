"""Checksums: how a damaged file is noticed before anything of it is believed.

Every Parquet file that a commit names has two CRC-32 there: of the whole file, which `hailstorm verify` compares, and
of its footer, which every reader compares, because the footer says where everything is. The rest is covered by the
checksums that Parquet keeps of each page: they are verified as pages are read, so a part of a file is safe by itself.
A commit, a manifest and the like end in a checksum of what comes before it (`sealed`).

A file that `hailstorm erase` has taken rows out of is not what its commit says. Its footer says so itself: of which
footer it is the successor, and the checksums of what it is now (`mark_successor`). So it is checked like any other,
wherever it is copied or linked to, and no commit has to be written again.

Files that an older Hailstorm wrote have no checksums; they are read as they were.
"""

from __future__ import annotations

import re
import zlib
from typing import TYPE_CHECKING

import pyarrow as pa

from hailstorm.errors import LedgerError

if TYPE_CHECKING:  # who finds all that it needs in the cache reads no Parquet
    import pyarrow.parquet as pq

Sums = tuple[int, int]  # of the whole file, and of its footer

_END = 8  # bytes after the footer: its length, and PAR1
_SEAL = b',\n "checksum": "%08x"\n}'
_SEAL_BEGINS = b',\n "checksum": "'


def sums_of(data: pa.Buffer | bytes) -> Sums:
    """Of a Parquet file."""
    view = memoryview(data)
    footer = min(int.from_bytes(view[-_END:-4], "little") + _END, len(view))
    return zlib.crc32(view), zlib.crc32(view[-footer:])


def opened(source: pa.NativeFile, name: str, sums: Sums | None, known: pq.FileMetaData | None = None) -> pq.ParquetFile:
    """A Parquet file of a ledger, to read from. What turns out to be damaged raises pyarrow's errors (`Reading`).
    `known` is its footer, if that was compared before."""
    import pyarrow.parquet as pq

    if sums is not None and known is None:
        size = source.size()
        source.seek(max(0, size - _END))
        length = int.from_bytes(source.read(_END)[:4], "little") + _END
        source.seek(max(0, size - length))
        footer = b"" if length > size else bytes(source.read(length))
        if zlib.crc32(footer) != sums[1] and not _is_successor(footer, sums):
            raise damaged_file(name, "its footer is not what was written")
        source.seek(0)
    return pq.ParquetFile(source, metadata=known, page_checksum_verification=True)


def is_whole(data: pa.Buffer | bytes, sums: Sums) -> bool:
    """Whether a file is what was written, or what is left of it after an erasure."""
    view = memoryview(data)
    if zlib.crc32(view) == sums[0]:
        return True
    length = min(int.from_bytes(view[-_END:-4], "little") + _END, len(view))
    mark = _mark_in(bytes(view[-length:]))
    return mark is not None and _is_successor(bytes(view[-length:]), sums) and zlib.crc32(view[:-length]) == mark[1]


MARK = "hailstorm-erased"  # in the footer's metadata
UNMARKED = "0" * 8 + ":" + "0" * 8 + ":" + "0" * 8  # of which footer it is the successor, its body, its own footer
_MARKED = re.compile(rb"([0-9a-f]{8}):([0-9a-f]{8}):([0-9a-f]{8})")


def mark_successor(data: bytes, sums: Sums) -> bytes:
    """A Parquet file with UNMARKED in its footer, as the successor of a file with these checksums."""
    length = int.from_bytes(data[-_END:-4], "little") + _END
    body, footer = data[:-length], data[-length:]
    assert footer.count(UNMARKED.encode()) == 1
    own = b"%08x:%08x:" % (sums[1], zlib.crc32(body)) + b"0" * 8
    footer = footer.replace(UNMARKED.encode(), own)
    return body + footer.replace(own, own[:-8] + b"%08x" % zlib.crc32(footer))


def _mark_in(footer: bytes) -> tuple[int, int, int] | None:
    at = footer.find(MARK.encode())
    found = _MARKED.search(footer, at) if at >= 0 else None
    return None if found is None else (int(found[1], 16), int(found[2], 16), int(found[3], 16))


def _is_successor(footer: bytes, sums: Sums) -> bool:
    mark = _mark_in(footer)
    if mark is None or mark[0] != sums[1]:
        return False
    written = b"%08x:%08x:%08x" % mark
    return zlib.crc32(footer.replace(written, written[:-8] + b"0" * 8, 1)) == mark[2]


class Reading:
    """`with Reading(name): ...`: whatever Arrow finds wrong with a file of the ledger is one clear error."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        # What the machine refuses has a number; what Arrow cannot make sense of has none.
        if not isinstance(error, (OSError, pa.ArrowException)) or getattr(error, "errno", None) is not None:
            return
        raise damaged_file(self._name, str(error).splitlines()[0] if str(error) else type(error).__name__) from error


def seal(body: bytes) -> bytes:
    """Formatted JSON of an object, with its checksum as the last field."""
    return body[: -len(b"\n}")] + _SEAL % zlib.crc32(body)


def is_sealed(data: bytes) -> bool:
    return _SEAL_BEGINS in data


def broken_seal(data: bytes) -> bool:
    """Whether there is a checksum, and the content does not have it."""
    at = data.rfind(_SEAL_BEGINS)
    return at >= 0 and seal(data[:at] + b"\n}") != data


def damaged_file(name: str, why: str) -> LedgerError:
    return LedgerError(
        33,
        f"{name} of the ledger is damaged: {why}",
        hint="Nothing of it is shown. Bring it back from a backup, or read another moment; what is affected says:\n"
        "hailstorm verify LEDGER",
    )
