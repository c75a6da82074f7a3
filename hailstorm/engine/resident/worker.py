"""The worker's end: what runs in the Spark task that stays.

It dials the driver, and then runs passes as it is told, until the driver hangs up. It holds nothing that a tick needs:
a worker that is lost costs the tick that it was in, which is then run another way.

`resident.py` gives it to Spark; nobody else calls it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from hailstorm.engine.resident.following import Following
from hailstorm.engine.resident.messages import Beat, Done, Errand, Failed, Follow, Here, as_word, encoded
from hailstorm.engine.resident.wire import HungUp, Wire
from hailstorm.engine.stages.chain import Pass
from hailstorm.engine.stages.task import Batches

BEAT_SECONDS = 0.2
_QUIET_SECONDS = 0.5  # without an order: time to look for garbage
_MOST_TICKS_BETWEEN_LOOKS = 2_000
_STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Address:
    """Where the driver listens: a file, or a host and a port."""

    place: str
    port: int = 0  # 0: it is a file

    def dial(self) -> socket.socket:
        """Raises OSError when nobody listens there."""
        if not self.port:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self.place)
            return connection
        connection = socket.create_connection((self.place, self.port))
        keep_in_touch(connection)
        return connection


def keep_in_touch(connection: socket.socket) -> None:
    """No waiting for more to send; and the end of the other machine is noticed, too."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


@dataclass(frozen=True)
class Residence:
    """The function that Spark's `mapInArrow` gets. It gives no rows."""

    address: Address
    secret: bytes = field(repr=False)
    passes: Mapping[str, Pass]

    def __call__(self, batches: Batches) -> Batches:
        # One row says that this is task 0. What comes after it is not read: so Spark ends this worker with the task,
        # and what the worker has gathered goes with it.
        base = [next(batches)]
        # Nobody listens any more when Spark tries a task again whose worker was given up.
        with contextlib.suppress(HungUp, OSError), self.address.dial() as connection:
            self._serve(Wire(connection, patience=None), base)
        yield from ()

    def _serve(self, wire: Wire, base: list[pa.RecordBatch]) -> None:
        wire.introduce(self.secret)
        pulse, following = _Pulse(wire), Following(wire, self.passes.values())
        wire.send(encoded(Here(os.getpid())))
        # All that is loaded stays. What ticks leave is looked for between them, never in one.
        gc.freeze()
        gc.disable()
        ticks = 0
        while True:
            if ticks and (ticks >= _MOST_TICKS_BETWEEN_LOOKS or not wire.has_news(_QUIET_SECONDS)):
                gc.collect()
                ticks = 0
            word = as_word(wire.receive())
            with pulse.while_at_work():  # also after an answer: the next order waits until we look at it
                if isinstance(word, Follow):
                    following.go_on(word)
                    continue
                following.hush()
                leisure: list[Callable[[], None]] = []
                wire.send(*self._answered(word, base, leisure))
                for rest in leisure:
                    rest()
                gc.collect(0)
                ticks += 1

    def _answered(self, errand: Errand, base: list[pa.RecordBatch], leisure: list[Callable[[], None]]) -> list[bytes]:
        """The frames of the answer."""
        one = self.passes[errand.slot]
        task = one.task(errand.order, 0, leisure)
        try:
            with task.without_traces_of_failure():
                one.run(base, task)
                reports = task.finish()
            attached = task.attached()
            frames = [in_stream(rows) for rows in attached.values()]
            return [encoded(Done(reports, own_memory(), list(attached))), *frames]
        except Exception as error:
            return [encoded(Failed(f"{type(error).__name__}: {error}"))]


class _Pulse(threading.Thread):
    """Tells the driver that a pass is still at work, and ends the process when there is no driver to tell."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(name="pulse", daemon=True)
        self._wire, self._at_work = wire, False
        self.start()

    @contextmanager
    def while_at_work(self) -> Iterator[None]:
        self._at_work = True
        try:
            yield
        finally:
            self._at_work = False

    def run(self) -> None:
        while True:
            time.sleep(BEAT_SECONDS)
            if self._at_work:
                try:
                    self._wire.send(encoded(Beat()))
                except HungUp:
                    # A stage may run for ever, and nobody waits for it. What it has written nobody will name.
                    os._exit(1)


def in_stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def own_memory() -> int:
    """Bytes that this process has for itself. Maps of files are not counted: the cache's runs are shared, and belong to
    nobody."""
    try:
        _, held, shared, *_ = map(int, _STATM.read_bytes().split())
    except OSError:  # a system without /proc: the most that there ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return (held - shared) * resource.getpagesize()
