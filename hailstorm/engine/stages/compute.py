"""Select and where in the Python pass that holds the rows, for expressions that Arrow computes as Spark does."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from hailstorm.engine.expressions import Expression
from hailstorm.engine.stages.chain import Batches, Task
from hailstorm.engine.stages.read import HIDDEN


@dataclass(frozen=True)
class SelectColumns:
    """These columns and the hidden ones."""

    names: tuple[str, ...]
    expressions: tuple[Expression, ...]

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            made = [expression(batch) for expression in self.expressions]
            hidden = [batch.column(name) for name in HIDDEN.names]
            yield pa.RecordBatch.from_arrays([*made, *hidden], names=[*self.names, *HIDDEN.names])


@dataclass(frozen=True)
class AddColumns:
    """All columns, and these behind them."""

    names: tuple[str, ...]
    expressions: tuple[Expression, ...]

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            made = [expression(batch) for expression in self.expressions]
            names = [*batch.schema.names, *self.names]
            yield pa.RecordBatch.from_arrays([*batch.columns, *made], names=names)


@dataclass(frozen=True)
class KeepWhere:
    predicate: Expression

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield batch.filter(self.predicate(batch))
