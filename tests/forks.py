"""Python processes that are forked from one that has loaded everything, in the place of fresh ones.

To start Python and to load Spark, Arrow and pandas takes a second or two of the processor, which is more than most
commands take for what they do. A fork is a process of its own for all else: it has its folder, its environment, its
files and its end, and is killed as any other is. `forks_process.py` is what they are forked from.

    subprocess.run([forks.python, "-m", "hailstorm", "state", ...])    in the place of sys.executable
    forks.commands                                                     a folder for the PATH, with `hailstorm` in it
    forks.start("app.py", ...)                                         the fork itself, for those who kill it

The commands run this file as a script, so it imports nothing but Python's own modules. They end as their fork does.
Spark starts the Python workers of a fork with the same `python`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_NUMBER = struct.Struct("!i")


class Forked:
    """What `subprocess.Popen` is for a process that was started: as much of it as the tests need."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.returncode: int | None = None
        self.pid = self._heard()

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = self._heard()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0) from None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _heard(self) -> int:
        data = self._connection.recv(_NUMBER.size)
        assert data, "the process that others are forked from has ended"
        number: int = _NUMBER.unpack(data)[0]
        return number


def ask(
    place: str, arguments: Sequence[str], folder: str, environment: Mapping[str, str], files: Sequence[int], alone: bool
) -> Forked:
    """A process as of `python ARGUMENTS`, with these files as its stdin, stdout and stderr. One that is `alone` has a
    session of its own."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place)
    order = json.dumps([list(arguments), folder, dict(environment), alone]).encode()
    socket.send_fds(connection, [_NUMBER.pack(len(order))], files)
    connection.sendall(order)
    return Forked(connection)


class Forks:
    def __init__(self, folder: Path) -> None:
        self._place, self.commands = str(folder / "forks"), folder / "commands"
        self.python = str(self.commands / "python")
        with socket.socket(socket.AF_UNIX) as listener, (folder / "forks.txt").open("wb") as output:
            listener.bind(self._place)
            listener.listen()  # from here on forks can be asked for: they come once all is loaded
            self._process = subprocess.Popen(
                [sys.executable, Path(__file__).with_name("forks_process.py"), str(listener.fileno())],
                pass_fds=[listener.fileno()],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "HAILSTORM_FORKS": self.python},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        self.commands.mkdir()
        for name, words in (("python", ""), ("hailstorm", f'"{Path(sys.executable).with_name("hailstorm")}"')):
            script = f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" "{self._place}" {words} "$@"\n'
            (self.commands / name).write_text(script)
            (self.commands / name).chmod(0o755)

    def start(self, *arguments: str, folder: Path, environment: Mapping[str, str], output: int) -> Forked:
        """In a session of its own, with nothing to read. Both of its outputs go to one file."""
        with open(os.devnull, "rb") as nothing:
            files = (nothing.fileno(), output, output)
            return ask(self._place, arguments, str(folder), environment, files, alone=True)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)


def main(place: str, *arguments: str) -> None:
    """Be that process, for whoever has started this one."""
    code = ask(place, arguments, os.getcwd(), os.environ, (0, 1, 2), alone=False).wait()
    if code < 0:
        with contextlib.suppress(OSError):  # there is one that nobody can do anything about
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
