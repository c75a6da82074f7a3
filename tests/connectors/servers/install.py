"""Installs a server for the tests from the Debian packages when it is missing. Nothing of it is started by that.

`make test` runs two processes, and on a fresh machine both find the same things missing at the same time. Neither apt
nor Ivy can be run twice at once, so whoever fetches something does it `alone`.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_STARTS = Path("/usr/sbin/policy-rc.d")  # Debian asks this program whether a package may start its service


def cache_folder() -> Path:
    """Where what was fetched is kept for the next test run."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hailstorm"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def alone() -> Iterator[None]:
    """While nobody else fetches anything: others wait here, in this test run and in any other."""
    with (cache_folder() / "fetching.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def find_program(name: str, package: str, *folders: str) -> str:
    """The path of a program; its package is installed when it is nowhere."""
    path = os.pathsep.join([*(str(found) for pattern in folders for found in Path("/").glob(pattern)), os.defpath])
    found = shutil.which(name, path=path + os.pathsep + os.environ.get("PATH", ""))
    if found is not None:
        return found
    with alone():
        if shutil.which(name, path=path) is None:  # it may be there by now
            _install(package)
    path = os.pathsep.join([*(str(made) for pattern in folders for made in Path("/").glob(pattern)), os.defpath])
    found = shutil.which(name, path=path)
    assert found is not None, f"{package} is installed, and there is no {name}"
    return found


def _install(package: str) -> None:
    is_root = os.geteuid() == 0
    apt = ["apt-get"] if is_root else ["sudo", "-n", "apt-get"]
    if shutil.which(apt[0]) is None:
        raise RuntimeError(f"The tests need {package}. Install it, or run them on Debian as root, where they do it.")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with _no_services_start() if is_root else _as_it_is():
        for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", package]):
            subprocess.run([*apt, *command], check=True, env=environment, stdout=subprocess.DEVNULL)


@contextmanager
def _no_services_start() -> Iterator[None]:
    if _NO_STARTS.exists():
        yield
        return
    _NO_STARTS.write_text("#!/bin/sh\nexit 101\n")
    _NO_STARTS.chmod(0o755)
    try:
        yield
    finally:
        _NO_STARTS.unlink()


@contextmanager
def _as_it_is() -> Iterator[None]:
    yield
