"""Delivers outboxes to sinks, in commit order, while the next tick runs.

The negotiator starts a `Deliverer`, notifies it of every commit, and asks it how far the sinks are. Each sink has a
thread of its own, so a slow one delays no other. Delivery reads commits and never makes one: a sink that fails is
tried again with growing waits while the topology goes on, and a sink that cannot go on says why in its state; what
to do about it, and when the outbox is too long, is the negotiator's decision.

    idle -> delivering -> idle              all that is committed has been delivered
            delivering -> waiting -> delivering    an error that may pass: close, wait, open, go on at the cursor
            delivering -> stopped           any other error

A sink may reject single rows (a constraint of its table). They become dead letters in the ledger's folder `rejected`,
before the cursor moves, and the rest is delivered; when they are too many, the sink stops.

Where the cursor is, and when it moves, is the delivery mode:

    exactly-once    with the rows, in the sink's own transaction; a sink that keeps no cursor gets an idempotency key
                    with each row, and the ledger keeps its cursor, after every commit
    at-least-once   after the rows, once per batch of commits: a crash repeats at most that batch
    at-most-once    before the rows: a crash or an error loses that commit's rows, and errors are counted in `lost`
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from hailstorm.errors import HailstormError, SinkError, TransientSinkError
from hailstorm.ledger import faults
from hailstorm.sinks.sink import KIND, OLD, Delivery, Rejected, a_tenth_of_many
from hailstorm.sinks.values import json_text, python_rows
from hailstorm.topology import step
from hailstorm.topology.arrow_types import arrow_schema

_FIRST_WAIT, _LONGEST_WAIT = 0.1, 30.0  # seconds
_STOP_WAIT = 10.0  # how long `stop` waits for a delivery that is under way


class Outbox(Protocol):
    """What delivery needs of a ledger. Called from several threads at once, never twice at once for one sink."""

    def pending(self, sink: str, after: int) -> list[tuple[int, tuple[str, ...]]]:
        """The first commits after this one that have files for the sink, in order; a bounded number of them."""

    def read(self, files: tuple[str, ...]) -> pa.Table:
        """The rows of these files, always in the same order: idempotency keys count them."""

    def load_cursor(self, sink: str) -> int:
        """The cursor that was stored last, or 0."""

    def store_cursor(self, sink: str, commit: int) -> None:
        """Durable when it returns. For a sink that keeps its own cursor this is a copy, some commits late."""

    def newest(self) -> int:
        """The newest commit's number, or 0."""

    def is_retry(self, commit: int) -> bool:
        """Whether this commit gives dead letters their second chance."""

    def store_rejected(self, sink: str, commit: int, letters: Sequence[tuple[str, bytes]], rows: pa.Table) -> None:
        """Keep rows as dead letters, each with its reason and its content for people. Durable when it returns;
        replaces an earlier call for the same commit."""

    def forget_rejected(self, sink: str, commit: int) -> None:
        """Take an earlier call for this commit back, if there was one."""


@dataclass(frozen=True)
class SinkState:
    """How a sink is doing. `behind` counts commits since the cursor, with or without rows for this sink."""

    cursor: int
    behind: int
    failing: str | None = None  # the error that delivery waits for to pass
    retry_in: float | None = None  # seconds until it tries again
    stopped: str | None = None  # the error that stopped this sink for good
    lost: int = 0  # commits given up since the start; only in at-most-once
    rejected: int = 0  # rows that became dead letters since the start
    seconds: float = field(default=0.0, compare=False)  # how long the last delivery took


OnChange = Callable[[str, SinkState], None]


def retry_wait(who: str, attempt: int) -> float:
    """Seconds before attempt 1, 2, 3 ...: doubling, and spread by a quarter so that sinks do not try in step.

    The spread comes from the name and not from chance, so that a run can be repeated.
    """
    spread = zlib.crc32(f"{who}/{attempt}".encode()) / 2**32
    return min(_FIRST_WAIT * 2.0 ** (min(attempt, 20) - 1), _LONGEST_WAIT) * (0.75 + 0.25 * spread)


class Deliverer:
    """All sinks of one run. `start` once, `notify` after every commit, `drain` if there is time, `stop` at the end."""

    def __init__(
        self, topology: str, sinks: Sequence[step.Sink], outbox: Outbox, on_change: OnChange | None = None
    ) -> None:
        """`on_change(sink, state)` is called from the sink's thread, when its cursor or its health has changed."""
        self._changed = threading.Condition()
        newest = outbox.newest()
        self._couriers = {
            sink.name: _Courier(topology, sink, outbox, self._changed, newest, on_change or _ignore) for sink in sinks
        }

    def start(self) -> None:
        for courier in self._couriers.values():
            courier.thread.start()

    def notify(self, commit: int) -> None:
        """A commit has happened. Returns at once."""
        with self._changed:
            for courier in self._couriers.values():
                courier.newest = max(courier.newest, commit)
            self._changed.notify_all()

    def states(self) -> dict[str, SinkState]:
        with self._changed:
            return {name: courier.state() for name, courier in self._couriers.items()}

    def behind(self, sink: str) -> int:
        with self._changed:
            return self._couriers[sink].state().behind

    def wait(self, timeout: float | None, until_commit: int) -> bool:
        """Whether every sink has got everything up to this commit. Does not wait for sinks that have stopped."""

        def arrived() -> list[bool]:
            going_on = (c for c in self._couriers.values() if c.progress.stopped is None)
            return [courier.progress.cursor >= until_commit for courier in going_on]

        with self._changed:
            self._changed.wait_for(lambda: all(arrived()), timeout)
            return all(courier.progress.cursor >= until_commit for courier in self._couriers.values())

    def drain(self, timeout: float | None) -> bool:
        """Deliver what is committed, for a graceful stop. Sinks that are waiting to try again do so now."""
        with self._changed:
            newest = max((courier.newest for courier in self._couriers.values()), default=0)
            for courier in self._couriers.values():
                courier.hurry = True
            self._changed.notify_all()
        return self.wait(timeout, newest)

    def stop(self) -> None:
        """End the threads and close the sinks. What was not delivered waits in the outbox."""
        with self._changed:
            for courier in self._couriers.values():
                courier.stopping = True
            self._changed.notify_all()
        deadline = time.monotonic() + _STOP_WAIT
        for courier in self._couriers.values():
            if courier.thread.ident is not None:
                courier.thread.join(max(0.0, deadline - time.monotonic()))


@dataclass(frozen=True)
class _Progress:
    cursor: int = 0
    failing: str | None = None
    attempt: int = 0  # how often in a row it has failed
    retry_at: float | None = None
    stopped: str | None = None
    lost: int = 0
    rejected: int = 0
    seconds: float = 0.0


class _Courier:
    """One sink's thread, and what others may know of it: those fields are written under `changed`."""

    def __init__(
        self,
        topology: str,
        sink: step.Sink,
        outbox: Outbox,
        changed: threading.Condition,
        newest: int,
        on_change: OnChange,
    ) -> None:
        self.topology, self.step, self.outbox = topology, sink, outbox
        self.name, self.mode, self.sink = sink.name, sink.delivery, sink.sink
        self.changed, self.on_change = changed, on_change
        self.newest, self.progress = newest, _Progress()
        self.stopping, self.hurry = False, False
        self.delivery: Delivery | None = None  # while the sink is open
        self.rows = pa.table({})  # what is being delivered
        self.known = newest  # the newest commit when the sink was opened: up to it, an attempt may have been cut off
        # A daemon, because a sink that hangs must not keep the process from ending.
        self.thread = threading.Thread(target=self._run, name=f"deliver {sink.name}", daemon=True)

    def state(self) -> SinkState:
        now = self.progress
        retry_in = None if now.retry_at is None else max(0.0, now.retry_at - time.monotonic())
        behind = max(0, self.newest - now.cursor)
        return SinkState(now.cursor, behind, now.failing, retry_in, now.stopped, now.lost, now.rejected, now.seconds)

    def _run(self) -> None:
        try:
            while not self.stopping and self.progress.stopped is None:
                try:
                    self._deliver_all()
                    self._wait_for_commit()
                except (TransientSinkError, OSError) as error:
                    self._close()
                    self._wait_to_retry(error)
                except Exception as error:  # a sink is foreign code: whatever it raises stops it, and only it
                    self._change(stopped=_reason(error), failing=None)
        finally:
            self._close()

    def _deliver_all(self) -> None:
        if self.delivery is None:
            self._open()
        while not self.stopping:
            newest = self.newest  # before asking: a commit that comes meanwhile is asked for in the next round
            page = self.outbox.pending(self.name, self.progress.cursor)
            if not page:
                self._change(cursor=max(self.progress.cursor, newest), failing=None, attempt=0)
                return
            for number, (commit, files) in enumerate(page, 1):
                self._deliver(commit, files, is_last=number == len(page))
                if self.stopping:
                    break

    def _deliver(self, commit: int, files: tuple[str, ...], is_last: bool) -> None:
        assert self.delivery is not None
        began = time.monotonic()
        rows = self.rows = _fitting(self.outbox.read(files), self.delivery)
        if commit <= self.known:
            # An attempt that was cut off has perhaps rejected rows that are taken now.
            self.outbox.forget_rejected(self.name, commit)
        faults.fault("before-delivery")
        if self.mode == "at-most-once":
            self.outbox.store_cursor(self.name, commit)
            faults.fault("during-delivery")
        try:
            self.sink.deliver(commit, rows)
        except Exception:
            if self.mode == "at-most-once":  # It may have arrived, so it may not be sent again.
                self._change(cursor=commit, lost=self.progress.lost + 1)
            raise
        if self.mode != "at-most-once":
            self._store_cursor(commit, is_last or self.stopping)
        faults.fault("after-delivery")
        self._change(cursor=commit, failing=None, attempt=0, seconds=time.monotonic() - began)

    def _reject(self, commit: int, rejected: Sequence[Rejected]) -> None:
        if len(rejected) > self._most_rejected(commit, self.rows.num_rows):
            raise SinkError(
                13,
                f"sink '{self.name}' rejects {len(rejected)} of {self.rows.num_rows} rows of commit {commit}, "
                "more than 10%: that is no bad row but a bad target or topology",
                at=self.step.at,
                hint=f"The first reason: {rejected[0].reason}\nThe rows wait in the outbox until it is mended.",
            )
        rows = self.rows.take([row.row for row in rejected])
        contents = (json_text(content).encode() for content in python_rows(rows))
        letters = [(row.reason, content) for row, content in zip(rejected, contents, strict=True)]
        self.outbox.store_rejected(self.name, commit, letters, rows)
        self._change(rejected=self.progress.rejected + len(rejected))

    def _most_rejected(self, commit: int, rows: int) -> int:
        """Rows that get a second chance may all fail again: that says nothing new about the target."""
        return rows if self.outbox.is_retry(commit) else a_tenth_of_many(commit, rows)

    def _store_cursor(self, commit: int, is_last: bool) -> None:
        if self.sink.keeps_cursor:
            # Only a copy, for `status` and others who can read the ledger and not the sink.
            must_store = is_last
        else:
            faults.fault("during-delivery")
            must_store = is_last or self.mode == "exactly-once"
        if must_store:
            self.outbox.store_cursor(self.name, commit)

    def _open(self) -> None:
        columns = columns_of(self.step)
        delivery = Delivery(self.topology, self.name, columns, self.step.key, self._reject, self._most_rejected)
        self.sink.open(delivery)
        self.delivery, self.known = delivery, self.newest
        cursor = (self.sink.cursor() or 0) if self.sink.keeps_cursor else 0
        if cursor > self.newest:
            raise SinkError(
                9,
                f"sink '{self.name}' has got commit {cursor}, but this ledger is only at commit {self.newest}",
                at=self.step.at,
                hint=f"Another ledger of topology '{self.topology}' has written there; going on would mix the two.\n"
                "Name another target or another topology, or remove the target if it can be made again.",
            )
        if self.mode == "at-most-once" or not self.sink.keeps_cursor:
            # Within one run the memory may know more than the ledger: at-least-once stores once per batch.
            cursor = max(cursor, self.progress.cursor, self.outbox.load_cursor(self.name))
        self._change(cursor=cursor)

    def _close(self) -> None:
        if self.delivery is None:
            return
        self.delivery = None
        try:
            self.sink.close()
        except Exception as error:  # what was delivered is safe already, so this is no reason to stop
            self._change(failing=_reason(error))

    def _wait_for_commit(self) -> None:
        with self.changed:
            self.hurry = False
            self.changed.wait_for(lambda: self.stopping or self.newest > self.progress.cursor)

    def _wait_to_retry(self, error: Exception) -> None:
        attempt = self.progress.attempt + 1
        wait = retry_wait(f"{self.topology}/{self.name}", attempt)
        self._change(failing=_reason(error), attempt=attempt, retry_at=time.monotonic() + wait)
        with self.changed:
            self.changed.wait_for(lambda: self.stopping or self.hurry, wait)
            self.hurry = False
        self._change(retry_at=None)

    def _change(self, **changes: Any) -> None:
        with self.changed:
            before, self.progress = self.progress, replace(self.progress, **changes)
            self.changed.notify_all()
            state = self.state()
        if self.progress != before:
            self.on_change(self.name, state)


def columns_of(sink: step.Sink) -> pa.Schema:
    """What the sink is to prepare for. Every type is known: the negotiator has filled them in."""
    return arrow_schema((column.name, column.type or "string") for column in sink.schema)


def _fitting(rows: pa.Table, delivery: Delivery) -> pa.Table:
    """The rows with exactly the columns and types that the sink was opened with."""
    missing = [name for name in delivery.schema.names if name not in rows.column_names]
    if missing:
        raise SinkError(10, f"the outbox of sink '{delivery.sink}' has no column {', '.join(missing)}")
    hidden = [rows.schema.field(name) for name in (KIND, OLD) if name in rows.column_names]
    wanted = pa.schema([*delivery.schema, *hidden])
    return rows.select(wanted.names).cast(wanted)


def _reason(error: Exception) -> str:
    return error.render() if isinstance(error, HailstormError) else f"{type(error).__name__}: {error}"


def _ignore(sink: str, state: SinkState) -> None:
    """For callers that do not watch."""
