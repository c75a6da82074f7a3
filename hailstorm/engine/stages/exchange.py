"""What tasks of one machine hand to each other by ranges of hashes: Arrow files, which the next wave maps.

Spark's own shuffle makes rows of columns and columns of rows, and costs more than all the rest of a large tick. It
is for clusters, whose machines share no disk (plan/ranges.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hailstorm.engine.stages.chain import Batches, Task
from hailstorm.engine.stages.due import ReadDue
from hailstorm.engine.stages.read import share_of
from hailstorm.ledger.keyed_state import Layout
from hailstorm.ledger.runs import Hashes, hashes_of

_LOWEST, _HASHES = -(1 << 63), 1 << 64


def part_names(step: str, tasks: int) -> tuple[str, ...]:
    """Under which each task finds what is its own."""
    return tuple(f"{step}!{task}" for task in range(tasks))


def _firsts(tasks: int) -> Hashes:
    """The first hash of every task's range but the first one's."""
    return np.array([_LOWEST + _HASHES * task // tasks for task in range(1, tasks)], dtype=np.int64)


@dataclass(frozen=True)
class LeaveParts:
    """The end of a line: leave each task the rows of its range. Batches are sorted by hash."""

    step: str
    tasks: int

    phase = "write"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            cuts = np.searchsorted(hashes_of(rows), _firsts(self.tasks)).tolist()
            names = part_names(self.step, self.tasks)
            for name, start, end in zip(names, [0, *cuts], [*cuts, rows.num_rows], strict=True):
                if start < end:
                    task.leave(name, rows.slice(start, end - start))
        yield from ()


@dataclass(frozen=True)
class ReadParts:
    """What was left for this task, and what is due of its range, as rows without a time."""

    step: str
    schema: pa.Schema
    tasks: int
    agendas: tuple[Layout, ...]

    phase = "read"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        share = share_of(batches)
        yield from task.rows_left(part_names(self.step, self.tasks)[share], 0, 1)
        for entries in ReadDue(self.agendas, self.schema).entries(task):
            rows = pa.Table.from_batches([entries])
            owners = np.searchsorted(_firsts(self.tasks), hashes_of(rows), side="right")
            yield from rows.filter(pa.array(owners == share)).to_batches()
