"""The process that others are forked from: loads what commands, drivers and Spark's Python workers need, and forks.

Run by `forks.py`, with the number of a file that is a socket to listen on. It ends when its stdin does. It has no
threads, so that a fork has everything that it had.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

# What takes long to load. Not the commands themselves: they look at where their output goes when they are loaded. Not
# DuckDB either, which complains at the end of a fork that it was never unloaded.
LOADED = (
    "deltalake",
    "hailstorm.engine.run",
    "hailstorm.engine.stages.compute",
    "hailstorm.engine.stages.deposit",
    "hailstorm.engine.stages.fold",
    "hailstorm.engine.stages.group",
    "hailstorm.engine.stages.members",
    "hailstorm.engine.stages.top",
    "hailstorm.history.backfill",
    "hailstorm.history.looking_back",
    "hailstorm.history.planning",
    "hailstorm.history.rewind_steps",
    "hailstorm.sinks",
    "hailstorm.spouts",
    "pandas",
    "pyarrow.compute",
    "pyarrow.dataset",
    "pyarrow.parquet",
    "pyspark.daemon",
    "pyspark.sql",
    "pyspark.worker",
    "rich.console",
    "rich.live",
    "rich.table",
    "sqlglot",
    "typer",
)
_NUMBER = struct.Struct("!i")


@dataclass(frozen=True)
class Order:
    arguments: list[str]
    folder: str
    environment: dict[str, str]
    alone: bool
    files: list[int]


def next_fork(listener: socket.socket) -> Order:
    """Fork for whoever asks, and tell them when it ends. Returns in the forks only, with what each is to become."""
    selector = selectors.PollSelector()
    selector.register(0, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in selector.select():
            if key.fd == 0:
                sys.exit()
            elif key.fileobj is not listener:
                selector.unregister(key.fd)
                _tell_the_end(key.fd, *key.data)
                continue
            connection, _ = listener.accept()
            order = _heard(connection)
            process = os.fork()
            if not process:
                _close(connection, *(other for other in selector.get_map().values() if other.fd))
                return order
            for file in order.files:
                os.close(file)
            connection.sendall(_NUMBER.pack(process))
            selector.register(os.pidfd_open(process), selectors.EVENT_READ, (process, connection))


def _tell_the_end(end: int, process: int, connection: socket.socket) -> None:
    _, status = os.waitpid(process, 0)
    with suppress(OSError), connection:  # whoever has asked for it may have gone
        connection.sendall(_NUMBER.pack(os.waitstatus_to_exitcode(status)))
    os.close(end)


def _close(connection: socket.socket, *others: selectors.SelectorKey) -> None:
    """What is the parent's, and no matter of a fork."""
    connection.close()
    for other in others:
        os.close(other.fd) if isinstance(other.fileobj, int) else other.fileobj.close()
        if other.data is not None:
            other.data[1].close()


def _heard(connection: socket.socket) -> Order:
    head, files, _, _ = socket.recv_fds(connection, _NUMBER.size, 3)
    with connection.makefile("rb") as stream:
        return Order(*json.loads(stream.read(_NUMBER.unpack(head)[0])), files)


def become(order: Order) -> None:
    """Be the process of `python ARGUMENTS`, from here to its end."""
    if order.alone:
        os.setsid()
    for number, file in enumerate(order.files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115 they stay open
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.executable = os.environ["HAILSTORM_FORKS"]  # for Spark's Python workers
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    first, *others = order.arguments
    known = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    if first == "-m":
        sys.path[:1], sys.argv = [os.getcwd(), *known], others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.path[:1], sys.argv = ["", *known], ["-c", *others[1:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(others[0], "<string>", "exec"), vars(main))
    else:
        sys.path[:1], sys.argv = [os.path.dirname(os.path.abspath(first)), *known], order.arguments
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    listener = socket.socket(fileno=int(sys.argv[1]))
    for name in LOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    become(next_fork(listener))
