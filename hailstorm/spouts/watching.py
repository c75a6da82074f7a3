"""Watching folders: hearing at once that something was renamed into one of them, instead of looking again and again.

Linux tells (inotify, through the C library: docs/decisions/0062-watched-folders.md says why). Elsewhere, and where it
has no watches left, nobody tells, and who waits must look. So must who waits for a folder that other machines can write
to: of what they do, Linux tells nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable
from pathlib import Path

_NONBLOCK, _CLOEXEC = os.O_NONBLOCK, os.O_CLOEXEC  # IN_NONBLOCK and IN_CLOEXEC are the same numbers
_MOVED_TO, _MOVE_SELF, _ONLYDIR = 0x80, 0x800, 0x0100_0000
_PIECE = 1 << 16
_OF_THIS_MACHINE = {"btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"}
_MOUNTS = Path("/proc/self/mountinfo")


class Watcher:
    """Of some folders, from `watch` on. It is readable, for `select`, when there is news. `close` it."""

    def __init__(self) -> None:
        """Raises OSError where nobody tells."""
        try:
            library = ctypes.CDLL(None, use_errno=True)
            begin, self._add = library.inotify_init1, library.inotify_add_watch
        except AttributeError:
            raise OSError("this system has no inotify") from None
        self._queue: int = begin(_NONBLOCK | _CLOEXEC)
        if self._queue < 0:
            raise OSError(ctypes.get_errno(), "no inotify queue is left")
        self._watches: set[int] = set()

    def watch(self, folders: Iterable[Path]) -> bool:
        """Watch these, too. Whether one of them was not watched before: what has happened there is not told.

        A folder that was removed and made again is another one. Raises OSError for one that cannot be watched.
        """
        before = len(self._watches)
        for folder in folders:
            watch = self._add(self._queue, os.fsencode(folder), _MOVED_TO | _MOVE_SELF | _ONLYDIR)
            if watch < 0:
                raise OSError(ctypes.get_errno(), f"{folder} cannot be watched")
            if watch not in self._watches:  # the same folder has the same number, and no number is given twice
                if file_system(folder) not in _OF_THIS_MACHINE:
                    raise OSError(f"others may write to {folder}")
                self._watches.add(watch)
        return len(self._watches) > before

    def take_news(self) -> bool:
        """Whether something has come since this was asked last. Does not wait."""
        has_come = False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._queue, _PIECE):
                has_come = True
        return has_come

    def fileno(self) -> int:
        return self._queue

    def close(self) -> None:
        os.close(self._queue)


def file_system(folder: Path, mounts: Path = _MOUNTS) -> str:
    """The kind of file system that a folder is on; empty when the system does not say."""
    place, found, longest = folder.resolve(), "", 0
    with contextlib.suppress(OSError):
        for line in mounts.read_text().splitlines():
            # Where it is, and after the dash what it is: "27 1 254:0 / /mnt/my\\040disk rw,relatime - ext4 /dev/vda rw"
            mount, _, kind = line.partition(" - ")
            point = Path(mount.split(" ")[4].replace("\\040", " "))
            if place.is_relative_to(point) and len(point.parts) >= longest:  # a later one hides an earlier one
                found, longest = kind.split(" ")[0], len(point.parts)
    return found
