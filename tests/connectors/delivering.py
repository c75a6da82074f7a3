"""A ledger with an outbox and the real delivery, without Spark: for tests that kill, cut and restart.

`Outgoing` writes commits with rows for a sink; `deliver` runs delivery in this process to the end, and `deliver_killed`
in another one that kills itself with SIGKILL at a fault point.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hailstorm.engine.delivery import Deliverer, SinkState
from hailstorm.engine.outbox import LedgerOutbox
from hailstorm.errors import Location
from hailstorm.ledger.commit import DataFile
from hailstorm.ledger.ledger import Ledger, next_commit
from hailstorm.sinks.sink import Sink
from hailstorm.topology import step
from hailstorm.topology.schema import Column, Schema

SCHEMA = Schema((Column("word", "string"), Column("n", "bigint")))

_IN_ANOTHER_PROCESS = """
import pickle, sys
from tests.connectors.delivering import finish
folder, sinks, topology = pickle.load(sys.stdin.buffer)
finish(folder, sinks, topology)
"""


@dataclass
class Outgoing:
    """What a topology `trending` has committed for its sink `board`."""

    folder: Path

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.folder, create=True)

    def commit(self, rows: pa.Table, sink: str = "board") -> int:
        number = self.ledger.head.commit + 1
        path = f"outbox/{sink}/{number}.parquet"
        size = self.ledger.store.write(path, lambda file: pq.write_table(rows, file))
        file = DataFile(path=path, rows=rows.num_rows, bytes=size)
        self.ledger.commit(next_commit(self.ledger.head, "tick", 1, datetime.now(UTC), outbox={sink: (file,)}))
        return number

    def cursor(self, sink: str = "board") -> int:
        return self.ledger.load_cursor(sink)

    def letters(self) -> list[dict[str, Any]]:
        return [row for table in self.ledger.rejected() for row in table.to_pylist()]

    def deliver(self, *sinks: step.Sink) -> dict[str, SinkState]:
        return finish(self.folder, sinks)

    def deliver_killed(self, fault: str, *sinks: step.Sink) -> None:
        """`during-delivery:3`: the third time it comes there. The process must die of that."""
        died = subprocess.run(
            [sys.executable, "-c", _IN_ANOTHER_PROCESS],
            input=pickle.dumps((self.folder, sinks, "trending")),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path]), "HAILSTORM_FAULT": fault},
            timeout=120,
            check=False,
        )
        assert died.returncode == -signal.SIGKILL, died.returncode


def board(sink: Sink, mode: str = "exactly-once", key: tuple[str, ...] = ("word",), name: str = "board") -> step.Sink:
    where = Location("app.py", 3)
    return step.Sink(name, where, ("counts",), SCHEMA, key=key, sink=sink, delivery=mode)  # type: ignore[arg-type]


@contextmanager
def delivering(folder: Path, *sinks: step.Sink, topology: str = "trending") -> Iterator[Deliverer]:
    deliverer = Deliverer(topology, sinks, LedgerOutbox(Ledger(folder)))
    deliverer.start()
    try:
        yield deliverer
    finally:
        deliverer.stop()


def finish(folder: Path, sinks: tuple[step.Sink, ...], topology: str = "trending") -> dict[str, SinkState]:
    """Deliver all there is, or until the sinks have stopped."""
    with delivering(folder, *sinks, topology=topology) as deliverer:
        deliverer.wait(60, Ledger(folder).head.commit)
        return deliverer.states()
