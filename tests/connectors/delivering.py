"""A ledger with an outbox and the real delivery, without Spark: for tests that kill, cut and restart.

`Outgoing` writes commits with rows for a sink; `deliver` runs delivery in this process to the end, and `deliver_killed`
in another one that kills itself with SIGKILL at a fault point. Those processes are forked from one that has imported
everything, so that a test can afford many.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm import faults
from hailstorm.engine.delivery.deliverer import Deliverer
from hailstorm.engine.delivery.outbox import LedgerOutbox
from hailstorm.engine.delivery.sink_state import SinkState
from hailstorm.errors import Location
from hailstorm.ledger.commit import DataFile
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.sinks.sink import Sink
from hailstorm.topology import ends
from hailstorm.topology.schema import Column, Schema
from tests.connectors.tally import suffered

SCHEMA = Schema((Column("word", "string"), Column("n", "bigint")))

_SERVERS = ("kafka", "postgres", "redis")  # sinks of these modules deliver to real servers
_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload([__name__, "confluent_kafka.admin", *(f"hailstorm.sinks.{name}" for name in _SERVERS)])


@dataclass
class Outgoing:
    """What a topology `trending` has committed for its sink `board`."""

    folder: Path

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder, create=True)

    def commit(self, rows: pa.Table, *sinks: str) -> int:
        """The same rows for each of the sinks; without names for `board`."""
        number = self.ledger.head.commit + 1
        outbox = {}
        for sink in sinks or ("board",):
            path = f"outbox/{sink}/{number}.parquet"
            size = self.ledger.store.write(path, lambda file: pq.write_table(rows, file))
            outbox[sink] = (DataFile(path=path, rows=rows.num_rows, bytes=size),)
        self.ledger.commit(next_commit(self.ledger.head, "tick", 1, datetime.now(UTC), outbox=outbox))
        return number

    def cursor(self, sink: str = "board") -> int:
        return self.ledger.cursors.load(sink).commit

    def letters(self) -> list[dict[str, Any]]:
        return [row for table in self.ledger.rejected() for row in table.to_pylist()]

    def deliver(self, *sinks: ends.Sink) -> dict[str, SinkState]:
        return finish(self.folder, sinks)

    def deliver_killed(self, fault: str, *sinks: ends.Sink) -> None:
        """`during-delivery:3`: the third time it comes there. The process must die of that."""
        process = self.start_delivery(*sinks, fault=fault)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, process.exitcode
        if any(type(one.sink).__module__.endswith(_SERVERS) for one in sinks):
            suffered(f"killed {fault.split('-')[0]} delivery")

    def start_delivery(self, *sinks: ends.Sink, fault: str = "", pause: bool = False) -> ForkServerProcess:
        """In another process. With `pause` it does not die at the fault, but stops there until it gets SIGCONT."""
        process = _forks.Process(target=_finish_with, args=(fault, pause, self.folder, sinks))
        process.start()
        return process


def _finish_with(fault: str, pause: bool, folder: Path, sinks: tuple[ends.Sink, ...]) -> None:
    os.environ["HAILSTORM_FAULT"] = fault
    if pause:
        # A module takes no stand-in as far as types go; a fault looks up nothing but SIGKILL in it.
        faults.signal = SimpleNamespace(SIGKILL=signal.SIGSTOP)  # type: ignore[assignment]
    finish(folder, sinks)


def board(sink: Sink, mode: str = "exactly-once", key: tuple[str, ...] = ("word",), name: str = "board") -> ends.Sink:
    where = Location("app.py", 3)
    return ends.Sink(  # type: ignore[arg-type]
        name, where, ("counts",), SCHEMA, key=key, is_table=bool(key), sink=sink, delivery=mode
    )


@contextmanager
def delivering(folder: Path, *sinks: ends.Sink, topology: str = "trending") -> Iterator[Deliverer]:
    deliverer = Deliverer(topology, sinks, LedgerOutbox(Ledger(folder)))
    deliverer.start()
    try:
        yield deliverer
    finally:
        deliverer.stop()


def finish(folder: Path, sinks: tuple[ends.Sink, ...], topology: str = "trending") -> dict[str, SinkState]:
    """Deliver all there is, or until the sinks have stopped."""
    with delivering(folder, *sinks, topology=topology) as deliverer:
        deliverer.wait(60, Ledger(folder).head.commit)
        return deliverer.states()
