"""Paths of sinks, and what the operating system says about them, as errors with a code.

For the sinks that write to the local file system: Parquet, SQLite and DuckDB.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hailstorm.errors import Location, SinkError, TransientSinkError

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_WRONG_PLACE = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.ENAMETOOLONG,
    errno.EINVAL,
}


def check_local(path: str | Path) -> None:
    if "://" in str(path):
        raise SinkError(
            12, f"'{path}' is not a path of the local file system", at=Location.of_caller(), hint="Name a local path."
        )


def full_disk(place: str, reason: object) -> TransientSinkError:
    """Somebody may make room, so delivery tries again."""
    return TransientSinkError(
        5, f"no space to write to {place}: {reason}", hint="The rows wait in the outbox. Make room on the disk."
    )


def wrong_place(place: str, reason: object, hint: str = "") -> SinkError:
    return SinkError(1, f"cannot write to {place}: {reason}", hint=hint or "Name a path that can be written to.")


@contextmanager
def clear_file_errors(place: str) -> Iterator[None]:
    """What waiting cannot repair stops the sink; a full disk and other input and output errors are tried again."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        if error.errno in _FULL:
            raise full_disk(place, reason) from error
        if error.errno in _WRONG_PLACE:
            raise wrong_place(place, reason) from error
        raise TransientSinkError(6, f"cannot write to {place} now: {reason}") from error


def prepare_file(path: Path) -> None:
    """Make the folder of a database file, and refuse what cannot be one."""
    if path.is_dir():
        raise wrong_place(str(path), "it is a folder", "Name a file in it.")
    with clear_file_errors(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)


def prepare_folder(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise wrong_place(str(path), "it is a file", "Name a folder.")
    with clear_file_errors(str(path)):
        path.mkdir(parents=True, exist_ok=True)
