"""What is due, as rows among the rows of a keyed step.

An entry of an agenda names a key. It has to reach the task that has the rows of that key: with one task it is put
behind them (`AlsoDue`); with more, one task reads all entries (`ReadDue`), and they go to tasks together with the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hailstorm.columns import HASH, KEY_HASH
from hailstorm.engine.stages.read import share_of
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import shaped


@dataclass(frozen=True)
class ReadDue:
    """The entries that are due, with the hash of their key as `_hash`; other columns of the schema are null."""

    agendas: tuple[Layout, ...]
    schema: pa.Schema

    phase = "look up"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        if share_of(batches) == 0:
            yield from self.entries(task)

    def entries(self, task: Task) -> Batches:
        for agenda in self.agendas:
            due = task.due(agenda)
            if due is not None and due.num_rows:
                named = due.drop_columns([HASH]).rename_columns({KEY_HASH: HASH})
                yield from shaped(named, self.schema).to_batches()


@dataclass(frozen=True)
class AlsoDue:
    """The rows, and behind them what is due."""

    due: ReadDue

    phase = "look up"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            if batch.num_rows:
                yield from shaped(pa.Table.from_batches([batch]), self.due.schema).to_batches()
        yield from self.due.entries(task)
