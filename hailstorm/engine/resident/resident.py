"""The driver's end of one resident worker: starts it, gives it orders, takes its reports, ends it.

`keeper.py` makes them; `advance` runs passes with them. What a worker does not finish, for whatever reason, is
`Unfinished`: nothing of it counts, and the tick is run another way.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from hailstorm.engine.resident.messages import (
    Answer,
    Beat,
    Done,
    Errand,
    Failed,
    Follow,
    Here,
    News,
    as_answer,
    encoded,
)
from hailstorm.engine.resident.wire import HasFileno, HungUp, Wire
from hailstorm.engine.resident.worker import Address, Residence
from hailstorm.engine.spark.scratch import scratch_folder
from hailstorm.engine.spark.session import has_a_slot_for_a_resident, is_on_this_machine
from hailstorm.engine.stages.chain import Pass
from hailstorm.engine.stages.failure import told_by
from hailstorm.engine.stages.order import Order, Report
from hailstorm.errors import TransientRunError

SILENCE_SECONDS = 1.0  # a worker beats five times in that while it is at work
_SECONDS_TO_START = 60.0
_LOOK_SECONDS = 0.2  # between looks at a job whose worker has not dialled yet
_SECONDS_TO_LEAVE = 2.0  # until Spark is told to end it
_LONGEST_SOCKET = 100  # bytes in the name of a file that is a socket
_POOL = "hailstorm-resident"
_ENCRYPTING = (
    "spark.network.crypto.enabled",
    "spark.ssl.enabled",
    "spark.ssl.rpc.enabled",
    "spark.authenticate.enableSaslEncryption",
)


class Unfinished(TransientRunError):
    """A resident worker did not finish what it was given. The caller runs it another way; nobody else sees this."""

    def __init__(self, why: str) -> None:
        super().__init__(31, f"the resident worker did not finish a tick: {why}")


class Refused(Unfinished):
    """None will ever start in this session."""


class Resident:
    """One worker that has greeted us. Only the thread that ticks may `run`."""

    def __init__(self, wire: Wire, job: SparkJob, process: int, is_near: bool) -> None:
        self._wire, self._job, self.process = wire, job, process
        self.is_near = is_near  # on this machine: what it writes to a disk, we can sync
        self.memory = 0  # bytes, as of its last answer
        self.attached: dict[str, bytes] = {}  # files that the last order has written, by name: their rows as a stream
        self.heard: Mapping[str, Mapping[int, int]] = {}  # how far spouts are, of those that it follows
        self.ticks = 0
        self.lost = ""  # why it is of no more use
        self._dismissed = ""  # why another thread has let it go

    def run(self, slot: str, order: Order) -> list[Report]:
        """Run a pass, and give back what its task has reported. Raises what the pass failed of, or Unfinished."""
        self.lost = "it was left in the middle of an order"  # unless its answer is heard
        try:
            self._wire.send(encoded(Errand(slot, order)))
            answer = as_answer(self._wire.receive())
            while self._in_between(answer):
                answer = as_answer(self._wire.receive())
            self.attached = {}
            if isinstance(answer, Done):
                self.attached = {name: self._wire.receive() for name in answer.attached}
        except HungUp as error:
            self._lose(error)
            raise Unfinished(self.lost) from error
        self.lost = ""
        if isinstance(answer, Failed):
            raise told_by(answer.told) or Unfinished(answer.told)
        assert isinstance(answer, Done), answer
        self.memory = answer.memory
        self.ticks += 1
        return answer.reports

    def follow(self, positions: Mapping[str, Mapping[int, int]], rosters: Mapping[str, dict[str, str]]) -> None:
        """Let it look, from now on, for what comes after these positions."""
        try:
            self._wire.send(encoded(Follow({spout: dict(row) for spout, row in positions.items()}, dict(rosters))))
        except HungUp as error:
            self._lose(error)

    def wait(self, seconds: float, others: Sequence[HasFileno] = ()) -> None:
        """Until it has news, or has left, or one of the others has something to read, or the time is over."""
        if self._wire.has_news(seconds, others):
            self.is_there()

    def _in_between(self, said: Answer) -> bool:
        """Whether it is a word that may come at any time, also when an answer has overtaken it."""
        if isinstance(said, News):
            self.heard = said.ends
        return isinstance(said, Beat | News)

    def is_there(self) -> bool:
        """Whether it can be given an order, as far as is known without one."""
        while not self.lost and self._wire.has_news(0):
            try:
                said = as_answer(self._wire.receive())
            except HungUp as error:
                self._lose(error)
            else:
                self.lost = "" if self._in_between(said) else "it speaks unasked"
        return not self.lost

    def dismiss(self, why: str) -> None:
        """Let it go, from another thread than the one that ticks: that one learns it from its next word."""
        self._dismissed = why
        self._wire.hang_up()
        self._job.end()

    def _lose(self, error: HungUp) -> None:
        self.lost = self._dismissed or str(error)

    def end(self) -> None:
        """Let it go: it leaves when we hang up, or is ended. Takes up to some seconds when it hangs."""
        self.lost = self.lost or "it was let go"
        self._wire.close()
        self._job.end()


class SparkJob:
    """The Spark job of one task that a worker lives in."""

    def __init__(self, spark: SparkSession, residence: Residence) -> None:
        """Plans and submits it. It gets a pool of its own, and runs beside ticks."""
        context = spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", _POOL)
        context.setLocalProperty("spark.job.interruptOnCancel", "true")
        frame = spark.range(0, 1, 1, 1).mapInArrow(residence, "done INT")
        self._future: Any = frame._jdf.queryExecution().toRdd().toJavaRDD().countAsync()

    def has_ended(self) -> bool:
        return bool(self._future.isDone())

    def end(self) -> None:
        """Wait for a worker that is leaving; end one that does not."""
        with contextlib.suppress(Py4JError, OSError):  # the JVM has ended: so have its workers
            deadline = time.monotonic() + _SECONDS_TO_LEAVE
            while not self.has_ended():
                if time.monotonic() > deadline:
                    self._future.cancel(True)
                    return
                time.sleep(0.01)


def start_resident(spark: SparkSession, passes: Mapping[str, Pass], wanted: Callable[[], bool]) -> Resident:
    """Start a worker that can run these passes. Takes half a second, or until Spark has a slot for it.

    Raises Unfinished when none comes, or when it is `wanted` no more; and what Spark says when it refuses.
    """
    if (setting := _encryption_wanted(spark)) is not None and not is_on_this_machine(spark):
        raise Refused(f"its connection to the driver is not encrypted, and {setting} asks for that")
    if not has_a_slot_for_a_resident(spark):
        raise Unfinished("Spark has no slot for it beside those of ticks")
    secret = secrets.token_bytes(32)
    with _listening(spark) as (listener, address):
        job = SparkJob(spark, Residence(address, secret, passes))
        deadline = time.monotonic() + _SECONDS_TO_START
        while wanted() and not job.has_ended() and time.monotonic() < deadline:
            with contextlib.suppress(TimeoutError):  # nobody yet
                connection, _ = listener.accept()
                wire = Wire(connection, SILENCE_SECONDS)
                try:
                    return Resident(wire, job, _greeted(wire, secret), is_near=not address.port)
                except HungUp:  # a stranger, or a worker that is in trouble
                    wire.close()
    job.end()
    raise Unfinished("it did not start")


def _encryption_wanted(spark: SparkSession) -> str | None:
    """The setting by which whoever runs this has asked for it, if there is one. The wire is plain TCP: who listens
    would read rows, and who can cut in after the greeting could write some."""
    conf = spark.sparkContext.getConf()
    return next((name for name in _ENCRYPTING if conf.get(name, "false") == "true"), None)


def _greeted(wire: Wire, secret: bytes) -> int:
    """The process of a worker that knows the secret."""
    wire.admit(secret)
    answer = as_answer(wire.receive())
    if not isinstance(answer, Here):
        raise HungUp(f"it begins with {answer}")
    return answer.process


@contextmanager
def _listening(spark: SparkSession) -> Iterator[tuple[socket.socket, Address]]:
    """A socket that workers can reach: a file where they run on this machine, else a port of the driver's host."""
    conf = spark.sparkContext.getConf()
    file = scratch_folder() / f"resident-{uuid.uuid4().hex[:8]}"
    if is_on_this_machine(spark) and len(os.fsencode(file)) <= _LONGEST_SOCKET:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(file))
            listener.listen()
            listener.settimeout(_LOOK_SECONDS)
            try:
                yield listener, Address(str(file))
            finally:
                file.unlink(missing_ok=True)
        return
    host = conf.get("spark.driver.host") or "127.0.0.1"
    with socket.create_server((conf.get("spark.driver.bindAddress") or host, 0)) as listener:
        listener.settimeout(_LOOK_SECONDS)
        yield listener, Address(host, listener.getsockname()[1])
