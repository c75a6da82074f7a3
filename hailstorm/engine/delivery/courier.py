"""A courier: one sink's thread. It opens the sink, hands over parcel by parcel, and says how it is doing.

    idle -> delivering -> idle                  all that is committed has been delivered
            delivering -> waiting -> delivering    an error that may pass: close, wait, open, go on at the cursor
            delivering -> stopped                  any other error
            opening -> lacking -> delivering       it needs the whole table first, and waits for a commit with that

Under load several commits go in one transaction, where the sink can do that (`Joining`): what has come while the last
transaction was under way.

A sink may reject single rows (a constraint of its table). They become dead letters in the ledger's folder `rejected`,
before the cursor moves, and the rest is delivered; when they are too many, the sink stops.

Where the cursor is, and when it moves, is the delivery mode:

    exactly-once    with the rows, in the sink's own transaction; a sink that keeps no cursor gets an idempotency key
                    with each row, and the ledger keeps its cursor, after every commit
    at-least-once   after the rows, once per batch of commits: a crash repeats at most that batch
    at-most-once    before the rows: a crash or an error loses that commit's rows, and errors are counted in `lost`

Where it begins when it is opened is in beginnings.py.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from hailstorm import faults
from hailstorm.engine.delivery.beginnings import beginning_of_stream, lacks_table, own_cursor
from hailstorm.engine.delivery.outbox import Entry, Outbox, fitting
from hailstorm.engine.delivery.rejections import Rejections
from hailstorm.engine.delivery.sink_state import Delivered, SinkState
from hailstorm.engine.retry_wait import retry_wait
from hailstorm.errors import HailstormError, LedgerError, TransientSinkError
from hailstorm.sinks.sink import Delivery, Joining, Parcel, Rejected
from hailstorm.topology import ends
from hailstorm.topology.arrow_types import arrow_schema
from hailstorm.topology.settings import Settings

_COPY_SECONDS = 1.0  # between two copies of a sink's own cursor
_MOST_ROWS_TOGETHER = 10_000
_MOST_DELIVERED = 1_000


@dataclass(frozen=True)
class Progress:
    cursor: int = 0
    failing: str | None = None
    attempt: int = 0  # how often in a row it has failed
    retry_at: float | None = None
    stopped: str | None = None
    lacks_table: bool = False
    asked: int = -1  # the newest commit that it has looked at for its table
    lost: int = 0
    rejected: int = 0
    seconds: float = 0.0
    note: str | None = None

    @property
    def error(self) -> str | None:
        return self.stopped or self.failing


class Courier:
    """`thread` is started and joined by the deliverer. `progress` and the flags are written under `changed`."""

    def __init__(
        self,
        topology: str,
        sink: ends.Sink,
        outbox: Outbox,
        changed: threading.Condition,
        settings: Settings,
    ) -> None:
        self.topology, self.step, self.outbox = topology, sink, outbox
        self.name, self.mode, self.sink = sink.name, sink.delivery, sink.sink
        self.changed, self.settings = changed, settings
        self.newest = outbox.newest()
        self.progress = Progress()
        self.rejections = Rejections(sink, outbox, settings, self._pieces)
        self.stopping, self.hurry = False, False
        self.last_try: int | None = None  # after this many failed attempts in a row, only one more is waited for
        self.was_open = False
        self.told = False  # whether the ledger knows how this run's delivery is doing
        self.delivery: Delivery | None = None  # while the sink is open
        self.delivered: deque[Delivered] = deque(maxlen=_MOST_DELIVERED)  # that nobody has asked for yet
        self.uncopied: int | None = None  # the sink's own cursor, where its copy in the ledger is older
        self.copy_at = 0.0
        self.known = self.newest  # the newest commit when the sink was opened: up to it, an attempt may be cut off
        # A daemon, because a sink that hangs must not keep the process from ending.
        self.thread = threading.Thread(target=self._run, name=f"deliver {sink.name}", daemon=True)

    @property
    def lacks_table(self) -> bool:
        """Whether no commit so far has the whole table that it needs."""
        return self.progress.lacks_table and self.progress.asked >= self.newest

    @property
    def is_held(self) -> bool:
        """Whether waiting is of no use: somebody else must do something first, or its last try has failed."""
        has_tried = self.last_try is not None and self.progress.attempt > self.last_try
        return self.progress.stopped is not None or self.lacks_table or has_tried

    def state(self) -> SinkState:
        now = self.progress
        return SinkState(
            cursor=now.cursor,
            behind=max(0, self.newest - now.cursor),
            failing=now.failing,
            retry_in=None if now.retry_at is None else max(0.0, now.retry_at - time.monotonic()),
            stopped=now.stopped,
            lost=now.lost,
            rejected=now.rejected,
            seconds=now.seconds,
            note=now.note,
        )

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
            with suppress(OSError, LedgerError):  # it is a copy
                self._copy_cursor()
            self._close()

    def _deliver_all(self) -> None:
        if self.delivery is None:
            self._open()
        while not self.stopping:
            newest = self.newest  # before asking: a commit that comes meanwhile is asked for in the next round
            if self.progress.lacks_table:
                if self.outbox.beginning(self.name).whole <= self.progress.cursor:
                    self._change(asked=newest)
                    return
                self._change(lacks_table=False)
            page = self.outbox.pending(self.name, self.progress.cursor)
            if not page:
                self._change(cursor=max(self.progress.cursor, newest), failing=None, attempt=0)
                return
            for together in self._together(page):
                try:
                    self._deliver(together, is_last=together[-1] is page[-1])
                except (TransientSinkError, OSError):
                    raise
                except Exception:
                    if len(together) == 1:
                        raise
                    for entry in together:  # one of them cannot be delivered, and those before it can
                        self._deliver([entry], is_last=entry is page[-1])
                if self.stopping:
                    break

    def _together(self, page: Sequence[Entry]) -> Iterator[list[Entry]]:
        """What goes in one transaction each: some commits, or one that is large or a whole table."""
        may_join = isinstance(self.sink, Joining) and self.mode != "at-most-once"
        held: list[Entry] = []
        for entry in page:
            rows = sum(one.rows for one in held) + entry.rows
            if held and not (may_join and rows <= _MOST_ROWS_TOGETHER and not entry.whole and not held[0].whole):
                yield held
                held = []
            held.append(entry)
        yield held

    def _deliver(self, entries: Sequence[Entry], is_last: bool) -> None:
        began = time.monotonic()
        commit = entries[-1].commit
        if taken_back := self.rejections.begin(entries):
            self._change(rejected=self.progress.rejected - taken_back)
        for entry in entries:
            if entry.commit <= self.known:
                # An attempt that was cut off has perhaps rejected rows that are taken now.
                self.outbox.forget_rejected(self.name, entry.commit)
        faults.fault("before-delivery")
        if self.mode == "at-most-once":
            self.outbox.store_cursor(self.name, commit, self.rejections.recent, ahead=True)
            faults.fault("during-delivery")
        try:
            parcels = [Parcel(one.commit, one.rows, partial(self._pieces, one), one.whole) for one in entries]
            if len(parcels) > 1 and isinstance(self.sink, Joining):
                self.sink.deliver_together(parcels)
            else:
                for parcel in parcels:
                    self.sink.deliver(parcel)
        except Exception:
            if self.mode == "at-most-once":  # It may have arrived, so it must not be sent again.
                self._change(cursor=commit, lost=self.progress.lost + 1)
            raise
        self.rejections.end()
        if self.mode != "at-most-once":
            self._store_cursor(commit, is_last or self.stopping)
        faults.fault("after-delivery")
        ended = time.monotonic()
        self.delivered.append(Delivered(tuple(entry.commit for entry in entries), began, ended))
        self._change(cursor=commit, failing=None, attempt=0, seconds=ended - began)

    def _pieces(self, entry: Entry) -> Any:
        assert self.delivery is not None
        schema = self.delivery.schema
        return (fitting(piece, schema) for piece in self.outbox.pieces(entry))

    def _reject(self, commit: int, rejected: Sequence[Rejected]) -> None:
        self.rejections.reject(commit, rejected)
        self._change(rejected=self.progress.rejected + len(rejected))

    def _store_cursor(self, commit: int, is_last: bool) -> None:
        if self.sink.keeps_cursor:
            # Only a copy, for `status` and others who can read the ledger and not the sink. It may be late: to sync a
            # file after every transaction would take as long as the transaction.
            must_store = self.stopping or (is_last and time.monotonic() >= self.copy_at)
            self.uncopied = None if must_store else commit
        else:
            faults.fault("during-delivery")
            must_store = is_last or self.mode == "exactly-once"
        if must_store:
            self.outbox.store_cursor(self.name, commit, self.rejections.recent)
            self.copy_at = time.monotonic() + _COPY_SECONDS

    def _copy_cursor(self) -> None:
        # Not `progress.cursor`: that is ahead of the sink's own after commits without rows for it, and a target whose
        # cursor is behind the copy has lost its rows.
        if self.uncopied is not None:
            commit, self.uncopied = self.uncopied, None
            self.outbox.store_cursor(self.name, commit, self.rejections.recent)
            self.copy_at = time.monotonic() + _COPY_SECONDS

    # Opening and closing

    def _open(self) -> None:
        beginning, stored = self.outbox.beginning(self.name), self.outbox.load_cursor(self.name)
        delivery = Delivery(
            topology=self.topology,
            sink=self.name,
            ledger=self.outbox.ledger,
            schema=columns_of(self.step),
            key=self.step.key,
            is_table=self.step.is_table,
            takes_over=beginning.resent > stored,
            first_name=beginning.first_name,
            reject=self._reject,
            most_rejected=self.rejections.most,
            has_ledger=self.outbox.is_ours,
        )
        self.sink.open(delivery)
        self.delivery, self.known = delivery, self.newest
        cursor = own_cursor(self.step, delivery, self.newest)
        if self.mode == "at-most-once" or not self.sink.keeps_cursor:
            # Within one run the memory may know more than the ledger: at-least-once stores once per batch.
            cursor = max(cursor, self.progress.cursor, stored)
        if self.step.is_table:
            lacks = lacks_table(self.step, beginning, cursor, stored, is_first=not self.was_open)
            note = "gets the whole table first" if lacks and not self.sink.forgets else None
        else:
            lacks = False
            cursor, note = beginning_of_stream(self.outbox, self.name, beginning, cursor, stored)
        self.was_open = True
        self._change(cursor=cursor, lacks_table=lacks, note=note or self.progress.note)

    def _close(self) -> None:
        if self.delivery is None:
            return
        self.delivery = None
        try:
            self.sink.close()
        except Exception as error:  # what was delivered is safe already, so this is no reason to stop
            self._change(failing=_reason(error))

    # Waiting

    def _wait_for_commit(self) -> None:
        with self.changed:
            self.hurry = False
            # A sink that lacks its table is behind all the time: it waits for the next commit, and not for any.
            after = self.progress.asked if self.progress.lacks_table else self.progress.cursor
            wait = max(0.0, self.copy_at - time.monotonic()) if self.uncopied is not None else None
            if self.changed.wait_for(lambda: self.stopping or self.newest > after, wait):
                return
        self._copy_cursor()

    def _wait_to_retry(self, error: Exception) -> None:
        attempt = self.progress.attempt + 1
        wait = retry_wait(f"{self.topology}/{self.name}", attempt)
        self._change(failing=_reason(error), attempt=attempt, retry_at=time.monotonic() + wait)
        with self.changed:
            self.changed.wait_for(lambda: self.stopping or self.hurry, wait)
            self.hurry = False
        self._change(retry_at=None)

    # Telling

    def _change(self, **changes: Any) -> None:
        with self.changed:
            before, self.progress = self.progress, replace(self.progress, **changes)
            self.changed.notify_all()
            state = self.state()
        if self.progress.error != before.error or state.retry_in is not None or not self.told:
            self._tell_ledger(state)

    def _tell_ledger(self, state: SinkState) -> None:
        """Write down what keeps the sink, or that nothing does any more: others can read the ledger, not this process.

        A ledger that cannot be written is a matter of the next commit, which says so.
        """
        next_try = None if state.retry_in is None else datetime.now(UTC) + timedelta(seconds=state.retry_in)
        with suppress(OSError, LedgerError):
            self.outbox.store_health(self.name, state.error, next_try)
            self.told = True


def columns_of(sink: ends.Sink) -> pa.Schema:
    """What the sink is to prepare for. Every type is known: the negotiator has filled them in."""
    return arrow_schema((column.name, column.type or "string") for column in sink.schema)


def _reason(error: Exception) -> str:
    return error.render() if isinstance(error, HailstormError) else f"{type(error).__name__}: {error}"
