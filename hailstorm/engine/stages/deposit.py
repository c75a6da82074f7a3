"""Deposit: rows go to outboxes, to scratch files for a later wave, or become dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

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
    """Rows behind a null key are dead letters, one each; the others go on."""

    step: str
    key: tuple[str, ...]

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            keys = [batch.column(name) for name in self.key]
            if any(key.null_count for key in keys):
                null = reduce(pc.or_, map(pc.is_null, keys))
                for index in pc.indices_nonzero(null).to_pylist():
                    refuse_row(batch, index, self.step, "the key is null", "dead-letter", task)
                batch = batch.filter(pc.invert(null))
            yield batch
