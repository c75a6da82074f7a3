"""Deposit: rows go to outboxes, to scratch files for a later wave, or become dead letters."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hailstorm.engine.stages.bolt import refuse_row
from hailstorm.engine.stages.chain import Batches, Task
from hailstorm.engine.stages.read import HIDDEN
from hailstorm.ledger.runs import HASH


@dataclass(frozen=True)
class Deposit:
    """Write the rows of a step for its sinks, and for a later wave when `feeds`. Pass them on when `forwards`."""

    step: str
    sinks: tuple[str, ...]
    feeds: bool
    forwards: bool

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        kept = []
        for batch in batches:
            if batch.num_rows:
                kept.append(batch)
                if self.forwards:
                    yield batch
        if not kept:
            return
        rows = pa.Table.from_batches(kept)
        for sink in self.sinks:
            task.write_outbox(sink, rows.drop_columns([n for n in (*HIDDEN.names, HASH) if n in rows.schema.names]))
        if self.feeds:
            task.write_scratch(self.step, rows)


@dataclass(frozen=True)
class RefuseNullKeys:
    """The rows behind a null key, one dead letter each. Runs only when a tick met such a key."""

    step: str
    on_error: str

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            for index in range(batch.num_rows):
                refuse_row(batch, index, self.step, "the key is null", self.on_error, task)
        yield from ()
