"""`where` and `select` of a table in the Python pass that holds its changes, for expressions that Arrow computes.

A change has the row after (its columns) and before (`_old`). A predicate or an expression is asked of both; what a row
was and is decides whether the change comes out as an insert, an update, a delete or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from hailstorm.columns import EVENT_TIME, HASH, KIND, OLD
from hailstorm.engine.stages.expressions import Expression
from hailstorm.engine.stages.task import Batches, Task
from hailstorm.ledger.keyed_state import changes, seen_changes


@dataclass(frozen=True)
class ChangesWhere:
    """The changes of the rows that satisfy the predicate, before or after."""

    predicate: Expression
    key: tuple[str, ...]
    values: tuple[str, ...]
    times: bool  # the times of rows matter to those who read it

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            before = _before(batch, self.key)
            is_, was = (
                pc.and_(pc.not_equal(batch.column(KIND), other), pc.fill_null(self.predicate(rows), False))
                for rows, other in ((batch, "delete"), (before, "insert"))
            )
            judged = pa.table(
                {
                    **{name: batch.column(name) for name in (*self.key, *self.values, EVENT_TIME, HASH)},
                    **{f"_was_{name}": before.column(name) for name in self.values},
                    "_is": is_,
                    "_was": was,
                }
            ).filter(pc.or_(is_, was))
            yield from changes(
                {name: judged.column(name) for name in self.key},
                {name: judged.column(name) for name in self.values},
                {name: judged.column(f"_was_{name}") for name in self.values},
                judged.column("_was"),
                pc.invert(judged.column("_is")),
                judged.column(EVENT_TIME),
                judged.column(HASH),
                pa.repeat(True, judged.num_rows) if self.times else None,
            ).to_batches()


@dataclass(frozen=True)
class ChangesSelect:
    """The changes of a projection. The key stays, so a change of a row is a change of its projection, or none."""

    names: tuple[str, ...]
    expressions: tuple[Expression, ...]
    key: tuple[str, ...]
    times: bool  # the times of rows matter to those who read it

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            before = _before(batch, self.key)
            yield from changes(
                {name: batch.column(name) for name in self.key},
                {name: compute(batch) for name, compute in zip(self.names, self.expressions, strict=True)},
                {name: compute(before) for name, compute in zip(self.names, self.expressions, strict=True)},
                pc.not_equal(batch.column(KIND), "insert"),
                pc.equal(batch.column(KIND), "delete"),
                batch.column(EVENT_TIME),
                batch.column(HASH),
                pa.repeat(True, batch.num_rows) if self.times else None,
            ).to_batches()


@dataclass(frozen=True)
class SeenChanges:
    """Without the changes that are of the time alone: what a bolt sees of a table."""

    phase = "compute"

    def __call__(self, batches: Batches, task: Task) -> Batches:
        for batch in batches:
            yield from seen_changes(pa.Table.from_batches([batch])).to_batches()


def _before(batch: pa.RecordBatch, key: tuple[str, ...]) -> pa.RecordBatch:
    """The rows as they were: nulls, but for the key, where there was none."""
    old = batch.column(OLD)
    fields = {field.name: pc.struct_field(old, [place]) for place, field in enumerate(old.type)}
    return pa.record_batch({**{name: batch.column(name) for name in key}, **fields})
