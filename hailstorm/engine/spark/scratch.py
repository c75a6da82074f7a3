"""The folder for what Spark, Java and the test driver write on the side: one per process, removed when it ends.

A process that is killed cannot remove its folder. The next one that starts does: a folder whose lock nobody holds
belongs to nobody. Folders of other users, and everything that is not called as ours are, stay.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

_PREFIX = "hailstorm-scratch-"
_LOCK = "lock"


def scratch_folder() -> Path:
    """This process's folder. Made when it is first asked for."""
    return _made_by(os.getpid())  # a fork gets one of its own


@cache
def _made_by(process: int) -> Path:
    place = Path(tempfile.gettempdir())
    _remove_dead(place)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    lock = os.open(folder / _LOCK, os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)  # held until the process ends, however it ends
    atexit.register(_remove_own, folder, process)
    return folder


def _remove_own(folder: Path, process: int) -> None:
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_dead(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        # Without a lock file it may have been made a moment ago.
        with contextlib.suppress(OSError), (folder / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
