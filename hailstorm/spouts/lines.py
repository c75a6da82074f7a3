"""Chunks of complete lines: how files become records, wherever the files are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

CHUNK_BYTES = 4 << 20  # what a reader reads at least to find one line


class Bytes(Protocol):
    """What is read of a file, packed or not, in a folder or in a store."""

    def seek(self, offset: int, /) -> int: ...

    def read(self, size: int, /) -> bytes: ...


def complete_lines(file: Bytes, start: int, whole: bool) -> Iterator[tuple[int, int, int]]:
    """Chunks of complete lines after `start`: lines, first byte, end byte. A whole file's last line is complete."""
    file.seek(start)
    rest = 0  # bytes of a line that has not ended yet; they are not looked at again, however long it becomes
    while block := file.read(CHUNK_BYTES):
        end = block.rfind(b"\n") + 1
        if end:
            yield block.count(b"\n", 0, end), start, start + rest + end
            start, rest = start + rest + end, len(block) - end
        else:
            rest += len(block)
    if whole and rest:
        yield 1, start, start + rest
