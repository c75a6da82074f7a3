"""Select and where in the Python pass that holds the rows, for expressions that Arrow computes as Spark does."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hailstorm.engine.stages.expressions import Expression
from hailstorm.engine.stages.task import Batches, Task


@dataclass(frozen=True)
class ComputeColumns:
    """New columns, and behind them the ones that are kept: all, unless it says which."""

    names: tuple[str, ...]
    expressions: tuple[Expression, ...]
    kept: tuple[str, ...] | None = None

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            made = [expression(batch) for expression in self.expressions]
            kept = batch.schema.names if self.kept is None else self.kept
            columns = [*made, *(batch.column(name) for name in kept)]
            yield pa.RecordBatch.from_arrays(columns, names=[*self.names, *kept])


@dataclass(frozen=True)
class KeepWhere:
    predicate: Expression

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield batch.filter(self.predicate(batch))
