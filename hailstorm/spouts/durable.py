"""What is on disk when a call returns, so that a power cut cannot take it back. For logs and sinks that are files."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """What anybody has written to the file, or changed in the folder, is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path: Path, data: bytes) -> None:
    """The file appears as a whole, or not at all."""
    hidden = path.with_name(f".{path.name}")
    with open(hidden, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    hidden.rename(path)
    sync(path.parent)
